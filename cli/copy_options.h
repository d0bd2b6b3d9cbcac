/*
 * cli/copy_options.h - options and output that tp-reshard, tp-ckpt export and tp-ckpt import have
 * in common.
 */
#ifndef CLI_COPY_OPTIONS_H
#define CLI_COPY_OPTIONS_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/progress.h"
#include "layout/dtype.h"
#include "reshard/copy_totals.h"

/* The end of --help of tp-ckpt export and import. */
#define COPY_EXIT_CODES                                                                          \
    "Ctrl-C, SIGTERM, SIGHUP (a terminal that closes), a crash or a power failure leaves what\n" \
    "was written beside the result, and the same command resumes from it. It starts over\n"      \
    "when the source or the options changed.\n\n"                                                \
    "exit codes: 0 done; 2 the request is wrong; 3 it failed (after 2 and 3 nothing was "        \
    "written);\n"                                                                                \
    "75 interrupted: run the same command again to resume."

/* Values of options, to be put into an option table. */
struct copy_options {
    int64_t memory_bytes;   /* --mem */
    int threads;            /* --jobs */
    const char *dtype_text; /* --dtype; NULL: not given */
    enum dtype dtype;       /* filled in by copy_options_check */
    double journal_s;       /* --journal */
    const char *zstd;       /* --zstd[=LEVEL]; NULL: not given, "": without a level */
};

/* The option --zstd, for an option table. */
#define COPY_OPTION_ZSTD(v)                                                 \
    OPT_STR_OPT(                                                            \
        0, "zstd", "LEVEL", v,                                              \
        "compress the files with zstd, level 1 to 19 (default 1); chunks\n" \
        "that do not shrink are stored raw. h5py reads such files with\nthe package hdf5plugin")

/* The option --journal, for an option table. */
#define COPY_OPTION_JOURNAL(v)                                        \
    OPT_DOUBLE(0, "journal", "SECONDS", v,                            \
               "seconds between records of progress, from which an\n" \
               "interrupted run resumes (default 2)")

/* The options that say which modules and optimizer a program of Megatron-LM, transformers or
 * Accelerate has, for an option table. `o` points to a struct export_options; `otherwise` comes
 * before their defaults. */
#define COPY_OPTIONS_MODULES(o, otherwise)                                                  \
    OPT_STR(0, "transformer-impl", "local|transformer_engine", &(o)->transformer_impl,      \
            "megatron: write the names that Megatron-LM loads with this option\n"           \
            "(default: " otherwise "transformer_engine)"),                                  \
        OPT_STR(0, "moe-experts", "grouped|sequential", &(o)->moe_experts,                  \
                "megatron: write experts for Megatron-LM with --moe-grouped-gemm, or\n"     \
                "without it (default: " otherwise                                           \
                "grouped with\ntransformer_engine, sequential with local)"),                \
        OPT_STR(0, "megatron-adam", "fused|torch", &(o)->megatron_adam,                     \
                "megatron, torch_dist: class of the ordinary optimizer: FusedAdam of\n"     \
                "Transformer Engine and Apex, or torch.optim.AdamW, which Megatron-LM\n"    \
                "uses without them (default: " otherwise "fused)"),                         \
        OPT_STR(0, "megatron-core", "VERSION", &(o)->megatron_core,                         \
                "torch_dist: write the optimizer in the form that this version of\n"        \
                "Megatron-core loads, 0.8 or later (default: that of 0.15)"),               \
        OPT_STR(0, "lr", "X", &(o)->lr,                                                     \
                "megatron, torch_dist: --lr of the program that loads it, for a schedule\n" \
                "of its own (default: " otherwise "the optimizer's rate)"),                 \
        OPT_STR(0, "min-lr", "X", &(o)->min_lr,                                             \
                "megatron, torch_dist: its --min-lr (default: " otherwise "0 with --lr,\n"  \
                "else the optimizer's rate)"),                                              \
        OPT_STR(0, "transformers", "4|5", &(o)->transformers,                               \
                "dcp, accelerate, deepspeed: write the names that the modules of this\n"    \
                "version of transformers have; 5 stacks the experts of a layer in one\n"    \
                "tensor "                                                                   \
                "(default: " otherwise "4, which has the names of files)"),                 \
        OPT_STR(0, "param-groups", "one|norms|examples", &(o)->param_groups,                \
                "accelerate-ddp: the groups of the program's optimizer: one of all\n"       \
                "parameters; two, of which norms and biases are the second, without\n"      \
                "weight decay; or those of transformers' examples, with biases and\n"       \
                "layer_norm.weight in the second (default: " otherwise "norms)")

/* The defaults: a record each 2 s, 1 GiB, a thread for each processor, no cast. */
struct copy_options copy_options_default(void);

/* Check --jobs, --journal and --dtype. *dtype is the type to cast the weights to, or NULL; it
 * points into o. */
tp_status copy_options_check(struct copy_options *o, const enum dtype **dtype, struct tp_err *err);

/* The progress of a copy, as lines of text or JSON, with what is sent to a store. */
struct progress *copy_options_progress(const char *title, bool json);

/* The level of --zstd, 0 when it was not given. TP_E_USAGE: it is not a level. */
tp_status copy_options_level(int *level, const struct copy_options *o, struct tp_err *err);

/* Print the line "zstd  ...": what compressed files have of the bytes that were written. */
void copy_options_print_stored(int level, int64_t stored_bytes, int64_t bytes_written);

/* Print the line "resumed  ...": how many tiles of all an interrupted run had completed, and how
 * many chunks of those were damaged. Nothing when tiles is 0. */
void copy_options_print_resumed(int64_t tiles, int64_t all, int64_t damaged);

/* The same as members of a JSON object. */
json_t *copy_options_resumed_json(const struct copy_totals *t);

/* Print the line "checked  ..." for people, which says what was proved. digests_equal: how many
 * tensors have the same digest at both ends. casts: how many were cast, and what was written has
 * the digest of the cast of what was read. from_checkpoint: the source has checksums, and all that
 * cover what was read agree. */
void copy_options_print_proof(int digests_equal, int casts, bool from_checkpoint);

#endif
