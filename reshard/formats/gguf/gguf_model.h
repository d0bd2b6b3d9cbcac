/*
 * reshard/formats/gguf/gguf_model.h - a model as llama.cpp describes it: its architecture, the
 * metadata keys, and what its converter does to tensors.
 */
#ifndef RESHARD_FORMATS_GGUF_GGUF_MODEL_H
#define RESHARD_FORMATS_GGUF_GGUF_MODEL_H

#include "core/err.h"
#include "layout/model.h"
#include "reshard/formats/gguf/gguf_bytes.h"

struct gguf_arch {
    enum model_family family;
    const char *name;    /* "llama" */
    bool rope_pairs;     /* the two halves of each head of q and k become pairs */
    bool qkv_by_head;    /* q, k and v of each head become all q, all k, all v */
    bool transposed;     /* matrices of layers are stored [in, out], and become [out, in] */
    bool norms_plus_one; /* norms multiply by 1 + weight, and the file has 1 + weight */
};

/* The architecture of a model. TP_E_USAGE: llama.cpp does not compute this model; the message says
 * what is different. `path` is of the checkpoint, for messages. */
tp_status gguf_model_arch(const struct gguf_arch **out, const struct model *m, const char *path,
                          struct tp_err *err);

/* Add the keys of the model, without the tokenizer's. */
tp_status gguf_model_keys(struct gguf_bytes *b, const struct gguf_arch *a, const struct model *m,
                          const char *path, struct tp_err *err);

/* Whether the rotary embedding needs a tensor of factors (rope_freqs.weight), one for each pair;
 * and the factor of pair i, by which llama.cpp divides its frequency. */
bool gguf_model_has_rope_factors(const struct model *m);
float gguf_model_rope_factor(const struct model *m, int64_t i);

#endif
