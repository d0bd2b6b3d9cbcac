/*
 * reshard/export_request.h - what an export is asked to do.
 */
#ifndef RESHARD_EXPORT_REQUEST_H
#define RESHARD_EXPORT_REQUEST_H

#include <stdbool.h>
#include <stdint.h>

#include "core/progress.h"
#include "layout/dtype.h"
#include "reshard/unknown_tensors.h"

struct comm_control;

struct export_request {
    const char *ckpt;        /* root or step directory; foreign: folder */
    bool foreign;            /* another framework wrote it */
    const char *from_format; /* of a foreign one; NULL: what its files are */
    const char *config;      /* of a foreign one: config.json or a folder with one; NULL: its own */
    const char *rules;       /* of a foreign one: as of struct import_request */
    struct unknown_tensors_ignore ignore; /* of a foreign one: tensors to leave out on purpose */
    int64_t step;        /* -1: the newest complete one; foreign: as the optimizer says */
    const char *layout;  /* spec of the files, for formats that cut tensors; axes that it does
                            not name, or all when NULL, are as in the source; foreign: 1 */
    const char *format;  /* of reshard/formats/export_format.h */
    const char *out;     /* folder to create; or s3://... */
    const char *scratch; /* for a store or a dry run: where headers are made (TMPDIR); NULL: /tmp */
    bool dry_run;        /* plan only, and write nothing to `out` */
    const enum dtype *dtype;    /* of the weights; NULL: as trained, but f32 where a format has the
                                   optimizer's moments and no masters. f32 is taken from the masters
                                   where there are any */
    bool q8_0;                  /* GGUF: weights become Q8_0; dtype is f32 then */
    bool no_optim;              /* weights only */
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
    int64_t max_shard_bytes; /* the most bytes of tensors in a file; 0: no limit */
    const char *assets;      /* folder with tokenizer and so on to copy, or NULL */
    int64_t memory_bytes;    /* the most resident memory */
    int threads;
    double journal_s;             /* seconds between records of progress; 0: after each tile */
    bool force;                   /* replace OUT when it is a model's folder */
    struct progress *progress;    /* counts bytes written and receives notes; NULL: none */
    struct comm_control *control; /* processes that share the work, with the same request but for
                                     progress; NULL: this one alone */
};

#endif
