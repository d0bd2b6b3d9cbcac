/*
 * trainer/config.h - what a training run is asked to do. The rules that its numbers follow are
 * written down at the head of tests/oracle/oracle_numpy.py.
 */
#ifndef TRAINER_CONFIG_H
#define TRAINER_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/model.h"
#include "layout/spec.h"
#include "layout/workload.h"

enum train_resume {
    RESUME_NO,
    RESUME_AUTO, /* an empty root starts from the beginning, said loudly */
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
    int64_t exit_step;         /* save and stop after so many; 0: never */
    int64_t seq_length;        /* tokens in a sequence */
    int64_t global_batch_size; /* sequences in a step, over all ranks */
    int64_t micro_batch_size;  /* sequences a dp rank takes at once; 0: all of its share */
    struct train_optimizer opt;
    int64_t seed;
    enum dtype dtype; /* DTYPE_F32, or DTYPE_BF16: gemm operands, with fp32 masters */
    enum recompute recompute;
    int same_bits;      /* tensor shards at every layout, emulated where tp has fewer; 0: as tp */
    int threads;        /* kernel threads a rank; 0: cores / ranks of the host */
    int64_t mem_bytes;  /* most a rank may need; 0: no limit */
    const char *ckpt;   /* root; NULL: nothing is saved */
    int64_t epoch;      /* of the root, taken by the launcher; 0: rank 0 takes the next one */
    int64_t save_every; /* 0: the last step only */
    int keep;           /* newest checkpoints that stay; 0: all */
    enum train_resume resume;
    const char *log, *logits;  /* files, or NULL */
    const char *heartbeat_dir; /* where ranks report to their watcher; NULL: they do not */
};

/* The defaults; paths are NULL. */
struct train_config train_config_default(void);

/* What a step of it has to do. */
struct workload train_config_work(const struct train_config *c);

/* Fill micro and check every number against the others, the model and the mesh (for those rules see
 * layout/workload_check.h): TP_E_USAGE or TP_E_LAYOUT with a sentence that names the flag. */
tp_status train_config_check(struct train_config *c, const struct model *m, struct tp_err *err);

/* Microbatches that a dp rank runs in a step. */
int64_t train_config_micros(const struct train_config *c);

/* Number in the batch of the first sequence of such a microbatch. A dp rank has a run of them; with
 * --same-bits and zero3, which sums over dp first, they take microbatches in turn. */
int64_t train_config_sequence(const struct train_config *c, int dp_rank, int64_t micro);

#endif
