/*
 * reshard/formats/megatron/bridge_args.h - what Megatron-Bridge and NeMo 2 record beside a
 * torch_dist checkpoint, as the arguments that Megatron-LM would have.
 *
 *     iter_0000100/run_config.yaml            Megatron-Bridge: its ConfigContainer
 *     NAME/context/model.yaml, NAME/weights/  NeMo 2: the config of its model
 *
 * Both dump the fields of Megatron-core's TransformerConfig and of their own class around it. Most
 * have the names of Megatron-LM's arguments; the others are renamed.
 */
#ifndef RESHARD_FORMATS_MEGATRON_BRIDGE_ARGS_H
#define RESHARD_FORMATS_MEGATRON_BRIDGE_ARGS_H

#include "reshard/formats/pieces/piece.h"
#include "torch/pickle.h"

#define BRIDGE_RUN_CONFIG "run_config.yaml"

struct bridge_args {
    const struct pickle_value *args; /* a dict; NULL: the folder has neither file */
    const char *path;                /* of the file */
    const char *hf_id;   /* of the Hugging Face model that it was made from; NULL: not known */
    bool has_blocks;     /* experts have blocks of gate and up in memory (MEGATRON_BLOCK_ARG), which
                            Bridge puts in order when it saves torch_dist */
    const char *unknown; /* why no config.json can be made of the model: "X with layers of Y";
                            NULL: one can */
};

/* Read the file of the folder `dir`, which has .metadata. `rows` are those of the embedding, for
 * padded_vocab_size; 0: not known. Everything lives in the arena of s. TP_E_CORRUPT: it is damaged.
 * TP_E_BUDGET: s has a limit that is too small. */
tp_status bridge_args_read(struct bridge_args *out, const char *dir, int64_t rows,
                           struct piece_source *s, struct tp_err *err);

#endif
