/*
 * trainer/config.h - the configuration of a training run. The head of tests/oracle/oracle_numpy.py
 * documents the arithmetic of a step.
 */
#ifndef TRAINER_CONFIG_H
#define TRAINER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "core/heartbeat.h"
#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"

enum train_resume {
    RESUME_NO,
    RESUME_AUTO, /* an empty root: start from the beginning, with a note */
    RESUME_MUST, /* an empty root is an error */
};

/* AdamW (Loshchilov and Hutter 2019), linear warmup, then a cosine to min_lr at the last step. */
struct train_optimizer {
    double lr, min_lr, beta1, beta2, eps, weight_decay;
    double clip; /* largest L2 norm of all gradients; 0: no clipping */
    int64_t warmup;
};

struct train_config {
    const char *model_path; /* folder or config.json, for messages */
    const char *data_path;
    struct spec spec;
    int64_t steps;             /* of the whole run */
    int64_t exit_step;         /* save and stop after this step; -1: never */
    int64_t seq_length;        /* tokens in a sequence */
    int64_t global_batch_size; /* sequences per step, over all ranks */
    int64_t micro_batch_size;  /* sequences in a microbatch of a dp rank; 0: all of its share */
    struct train_optimizer opt;
    int64_t seed;
    enum dtype dtype; /* DTYPE_F32; or DTYPE_BF16 for operands of products, with fp32 masters */
    enum recompute recompute;
    int same_bits; /* tensor shards at every layout; ranks emulate several if tp is less. 0: tp */
    bool cuda_graphs; /* steps are recorded, if the device can */
    int threads; /* kernel threads per rank; 0: cores / ranks of the host, or fewer (mem_bytes) */
    int64_t mem_bytes; /* limit of a rank's memory; 0: none */
    bool on_gpu;       /* that is the memory of a GPU */
    const char *ckpt;  /* root; NULL: nothing is saved */
    int64_t epoch;     /* of the root, if the launcher has claimed one; 0: rank 0 claims the next */
    int64_t save_every; /* 0: the last step only */
    int ckpt_zstd;      /* level with which checkpoints are compressed; 0: they are not */
    int keep;           /* how many of the newest checkpoints to keep; 0: all */
    enum train_resume resume;
    int64_t step;                /* resume this one; -1: the newest that is intact */
    bool reset_optim;            /* resume with zero moments, as a new optimizer */
    const char *log, *logits;    /* files, or NULL */
    struct heartbeat *heartbeat; /* where this rank reports to its watcher, borrowed; or NULL */
};

/* The defaults; paths are NULL. */
struct train_config train_config_default(void);

/* The workload of a step. */
struct workload train_config_work(const struct train_config *c);

/* Fill in micro_batch_size and check the numbers against each other, the model and the mesh (by
 * the rules of layout/workload_check.h). TP_E_USAGE or TP_E_LAYOUT: the message names the
 * option. */
tp_status train_config_check(struct train_config *c, const struct model *m, struct tp_err *err);

/* Microbatches per step of a dp rank. */
int64_t train_config_micros(const struct train_config *c);

/* Index in the batch of the first sequence of microbatch `micro` of a dp rank. The microbatches of
 * a dp rank follow each other in the batch. With --same-bits and zero3, which sums over dp first,
 * the dp ranks take microbatches in turn. */
int64_t train_config_sequence(const struct train_config *c, int dp_rank, int64_t micro);

#endif
