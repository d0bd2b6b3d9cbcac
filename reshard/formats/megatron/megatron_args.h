/*
 * reshard/formats/megatron/megatron_args.h - the arguments of the Megatron-LM program that saved:
 * whether its model is the one of config.json.
 *
 * Shapes alone do not tell: with other numbers of heads, the rows of query, key and value would be
 * taken apart at the wrong places.
 */
#ifndef RESHARD_FORMATS_MEGATRON_MEGATRON_ARGS_H
#define RESHARD_FORMATS_MEGATRON_MEGATRON_ARGS_H

#include "layout/model.h"
#include "reshard/formats/export_writer.h"
#include "reshard/formats/megatron/pipeline_layout.h"
#include "torch/pickle.h"
#include "torch/pickle_writer.h"

/* How the experts of a rank are stored (--moe-grouped-gemm). */
enum megatron_experts {
    MEGATRON_EXPERTS_SEQUENTIAL, /* each has two matrices */
    MEGATRON_EXPERTS_GROUPED,    /* the same, but all first ones are before all second ones */
    MEGATRON_EXPERTS_STACKED,    /* weight1 and weight2, which are transposed */
};

/* The argument of struct megatron_args' expert_block. */
#define MEGATRON_BLOCK_ARG "moe_mlp_glu_interleave_size"

/* What the arguments say about where tensors are. */
struct megatron_args {
    int tp, pp, vpp, ep;           /* sizes; 1 when they are not given */
    int expert_tp;                 /* ranks over which an expert is cut; tp when it is not given */
    int first_layers, last_layers; /* of the first and the last stage; 0: as the others */
    bool counts_embedding, counts_loss; /* as a layer, when layers are divided among stages */
    struct pipeline_layout layout;      /* instead of these four, if there is one */
    bool local_modules; /* --transformer-impl local: norms are modules of their own */
    enum megatron_experts experts;
    int64_t expert_block; /* --moe-mlp-glu-interleave-size: see megatron_map.h; 0: not used */
    int64_t bucket_size;  /* elements after which the distributed optimizer begins a new bucket; 0:
                             it has one bucket */
    int64_t buckets;      /* --ddp-num-buckets: how many instead; 0: not given */
};

/* Compare the arguments of Megatron-LM, or of a program made of it, in the file at `path`, with m.
 * TP_E_USAGE: a size differs, or the program used an option that changes what tensors mean.
 * Arguments that are absent are not compared. */
tp_status megatron_args_check(const struct pickle_value *args, const struct model *m,
                              const char *path, struct tp_err *err);

/* Read the args of `root`, the file at `path`, and compare them with m, as megatron_args_check
 * does. TP_E_CORRUPT: a parallel size is not a number. `out` lives as long as the arena. */
tp_status megatron_args_read(struct megatron_args *out, const struct pickle_value *root,
                             const struct model *m, const char *path, struct arena *arena,
                             struct tp_err *err);

/* Read bucket_size and buckets alone, for so many data-parallel ranks, those of context parallelism
 * included. False: one is not a number. */
bool megatron_args_read_buckets(struct megatron_args *out, const struct pickle_value *args,
                                int64_t ranks);

/* The type in which gradients of such weights are added up. Without an argument that says it, it is
 * what Megatron-LM chooses. */
enum dtype megatron_args_gradients(const struct pickle_value *args, enum dtype weights);

/* Tokens that Megatron's tokenizer adds to vocab_size: NullTokenizer the end of a document. */
int megatron_args_added_tokens(const struct pickle_value *args);

/* Rows of a vocabulary when it is filled up, with make_vocab_size_divisible_by, at tp. */
int64_t megatron_args_padded_rows(int64_t rows, int64_t divisor, int64_t tp);

/* ---- writing ---- */

struct megatron_map;

/* Arguments of the vocabulary. */
struct megatron_args_vocab {
    int64_t size, padded; /* vocab_size, padded_vocab_size */
    int64_t divisor;      /* make_vocab_size_divisible_by */
};

/* Sizes of the job for which a checkpoint is written. */
struct megatron_args_sizes {
    int tp, pp, vpp, ep;
    struct megatron_args_vocab vocab;
    bool has_optimizer; /* state of one is written */
    bool distributed_optimizer;
    bool model_space;              /* as fully_sharded_model_space (megatron_version.h) */
    struct export_modules modules; /* what is unknown of them is not said */
    int dp, cp; /* data-parallel and context-parallel ranks; 0: the files do not depend on them */
};

/* Rows of padding of m's vocabulary that the source has, and that what is written at spec's tp has
 * too: `padding` of reshard/formats/export_format.h. */
tp_status megatron_args_padding(int64_t *rows, const struct model *m,
                                const struct piece_source *extras, const struct spec *spec,
                                struct arena *arena, struct tp_err *err);

/* Pad the vocabulary of a map that has its tp, and is to be written: to a multiple of tp and of
 * --make-vocab-size-divisible-by in the source's arguments, else of 128, Megatron's default. *out
 * is what the arguments then say. TP_E_CORRUPT: the source's is not a number of rows. */
tp_status megatron_args_pad_vocab(struct megatron_map *map, struct megatron_args_vocab *out,
                                  const struct export_contents *q, struct tp_err *err);

/* Push keys and values of what is beside model and optimizer: args, iteration, versions. */
void megatron_args_write(struct pickle_writer *w, const struct export_contents *q,
                         const struct megatron_args_sizes *sizes);

/* Say what the groups have as the rates of a schedule, where the source has none. */
void megatron_args_note_rate(const struct export_contents *q, bool has_optimizer);

/* Push a parameter group of the optimizer, which Megatron finds by its multipliers and by whether
 * it is that of experts on several ranks. Keys and values that are pushed between the two calls
 * belong to it too. */
void megatron_args_begin_group(struct pickle_writer *w, const struct export_adamw *adamw,
                               bool weight_decay, bool experts);
void megatron_args_end_group(struct pickle_writer *w);

#endif
