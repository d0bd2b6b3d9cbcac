/*
 * reshard/export_options.h - the options that only some formats have: of the program that is to
 * load what is written.
 */
#ifndef RESHARD_EXPORT_OPTIONS_H
#define RESHARD_EXPORT_OPTIONS_H

#include <stdbool.h>

#include "core/err.h"
#include "reshard/formats/export_format.h"

struct export_options {
    bool distributed_optimizer; /* Megatron's formats: as with --use-distributed-optimizer */
    bool ordinary_optimizer;    /* not so, although the source is */
    const char *megatron_adam; /* class of the ordinary optimizer: "fused" (FusedAdam of Transformer
                                  Engine or Apex) or "torch" (torch.optim.AdamW); NULL: the
                                  source's, else fused */
    const char *transformer_impl; /* megatron: "local" or "transformer_engine": the modules whose
                                     names are written; NULL: the source's, else the latter */
    const char *moe_experts;      /* megatron: "sequential" or "grouped"; NULL: the source's, else
                                     grouped with transformer_engine */
    const char *transformers;     /* dcp, accelerate, deepspeed: the version whose modules' names
                                     are written, "4" or "5"; NULL: the source's, else 4 */
    const char *param_groups;     /* accelerate-ddp: "one", "norms" or "examples", which parameters
                                     have no weight decay; NULL: the source's groups, else norms */
    const char *megatron_core;    /* torch_dist: the version of Megatron-core that is to load the
                                     optimizer; NULL: 0.15 or later */
    const char *lr, *min_lr; /* Megatron's formats: rates of the schedule of the program that is
                                to load the optimizer; NULL: the source's, else AdamW's rate;
                                min_lr NULL with lr: the source's, else 0 */
};

/* 1 or 2: the word is the first or the second one; 0: it is NULL; -1: it is another one. */
int export_options_word(const char *word, const char *first, const char *second);

/* A learning rate; false: the text is not one. */
bool export_options_rate(double *out, const char *text);

/* TP_E_USAGE: an option is not for this format (NULL: a checkpoint of tp-train, which has none of
 * them). */
tp_status export_options_check_format(const struct export_options *o, const struct export_format *f,
                                      struct tp_err *err);

/* TP_E_USAGE: an option is not for this format, has a value that it does not take, or excludes
 * another one. */
tp_status export_options_check(const struct export_options *o, const struct export_format *f,
                               bool no_optim, struct tp_err *err);

#endif
