/*
 * reshard/formats/export_writer.h - what a format that can be written gets and returns
 * (reshard/formats/export_format.h).
 */
#ifndef RESHARD_FORMATS_EXPORT_WRITER_H
#define RESHARD_FORMATS_EXPORT_WRITER_H

#include "core/progress.h"
#include "layout/layout.h"
#include "layout/model.h"
#include "reshard/engine/endpoint.h"

/* AdamW's options, for formats that record them. */
struct export_adamw {
    double lr, beta1, beta2, eps, weight_decay;
    double max_lr, min_lr; /* of a schedule; negative: as lr; NAN: the source has none */
};

/* Those of torch.optim.AdamW. */
#define EXPORT_ADAMW_DEFAULT ((struct export_adamw){ 1e-3, 0.9, 0.999, 1e-8, 0.01, -1, -1 })

/* The modules of Megatron-LM's layers, whose names and order a folder for each rank has: its
 * --transformer-impl, and whether experts are modules of their own or grouped layers
 * (--moe-grouped-gemm). */
enum export_impl { EXPORT_IMPL_UNKNOWN, EXPORT_IMPL_LOCAL, EXPORT_IMPL_ENGINE };
enum export_experts { EXPORT_EXPERTS_UNKNOWN, EXPORT_EXPERTS_SEQUENTIAL, EXPORT_EXPERTS_GROUPED };

struct export_modules {
    enum export_impl impl;
    enum export_experts experts;
    bool fused_mlp_norm; /* torch_dist: the norm before experts has the name of one that is fused
                            with the MLP, as Megatron's own modules save it */
};

struct piece_source;

/* What is written. */
struct export_contents {
    const char *dir;         /* exists, and is empty */
    const char *source;      /* the checkpoint, for messages */
    const char *from_format; /* its format, where another framework wrote it; NULL: not known */
    const struct model *model;
    const struct tensor *tensors; /* as they are to be written: group, name, type, shape */
    int n;
    const struct layout *layout; /* of these tensors: how a format that cuts them cuts them */
    int64_t step;                /* of the run */
    int64_t optimizer_step;      /* that AdamW has counted */
    struct export_adamw adamw;
    bool distributed_optimizer; /* Megatron-LM's, where the format has it */
    bool torch_adam; /* Megatron-LM's ordinary optimizer is torch.optim.AdamW, which counts
                        the steps of each tensor; else FusedAdam of Transformer Engine or
                        Apex, which counts those of a group */
    struct export_modules modules; /* Megatron-LM's, that were chosen or that the source has */
    bool module_names; /* transformers 5's, where the format has names of modules; else those of a
                          model's files */
    const char *param_groups;  /* Accelerate's without FSDP: "one", "norms" or "examples"; NULL: the
                                  source's, else norms */
    const char *megatron_core; /* the version that is to load it, where the format has a form for
                                  each; NULL: the newest */
    int64_t max_shard_bytes;   /* the most bytes of tensors in a file; 0: no limit */
    bool q8_0;                 /* weights become ggml's Q8_0; their type above is f32 then */
    const char *assets;        /* the folder of the tokenizer, or NULL */
    struct progress *progress; /* receives notes; NULL: none */
    /* What is read, where its extras (reshard/formats/pieces/piece.h) are those of the format; they
     * are written too. NULL: there are none. */
    struct piece_source *extras;
};

/* A folder that is being written. */
struct export_writer {
    const struct reshard_endpoint *endpoint; /* tensor i is tensors[i]; valid until close */
    int files;                               /* with tensors */
    int64_t bytes;       /* of the files, where they differ from the endpoint's; else 0 */
    int64_t later_bytes; /* memory that finish needs */
    int64_t send_bytes;  /* memory for each tensor that is on its way to a store */
    void *ctx;           /* of the format */
};

#endif
