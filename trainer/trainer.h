/*
 * trainer/trainer.h - one rank of a training run: everything that it holds between steps.
 */
#ifndef TRAINER_TRAINER_H
#define TRAINER_TRAINER_H

#include "core/arena.h"
#include "device/device.h"
#include "trainer/config.h"
#include "trainer/data/dataset.h"
#include "trainer/data/tokens_ahead.h"
#include "trainer/data_parallel/fsdp_units.h"
#include "trainer/data_parallel/grad_reduction.h"
#include "trainer/data_parallel/params.h"
#include "trainer/model/network.h"
#include "trainer/optimizer.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/process_groups.h"
#include "trainer/sizing/memory.h"
#include "trainer/sizing/step_buffers.h"
#include "trainer/step_graph.h"

/* What a checkpoint contains in addition to tensors. */
struct trainer_position {
    int64_t step;            /* steps done: the number of the next one */
    int64_t optimizer_start; /* the step at which the moments were zero */
    int64_t next_sample;     /* global index of the next sample */
    int64_t tokens;          /* trained so far */
};

/* Bytes of a rank's buffers. */
struct trainer_size {
    int64_t shared; /* for collectives: gradients, residuals; the same on every rank */
    int64_t own;    /* weights, moments, other activations, scratch */
    int64_t params, grads, moments; /* parts of shared + own; masters count as params */
    int64_t unsharded;              /* zero3: weights and gradients of one unsharded unit */
    int64_t activations;            /* slots, scratch, buckets; the step's numbers are in no part */
};

/* Where a trainer computes. */
struct trainer_device {
    struct device *device; /* borrowed */
    const struct kernel_ops *ops;
    const struct comm_transport *transport; /* of collectives; NULL: the CPU's */
    int threads;       /* of the host, for work outside of the device; 0 is 1 */
    int64_t gpu_bytes; /* memory of the device, if it is a GPU; else 0 */
};

struct trainer {
    struct device *device;             /* borrowed */
    int host_threads;                  /* for work outside of it; at least 1 */
    const struct train_config *config; /* borrowed */
    const struct model *model;         /* borrowed */
    struct layout layout;              /* of the whole state: param, (master), moments */
    struct process_groups parallel;
    struct params params;
    struct grad_reduction reduction;
    struct network net;
    struct schedule schedule;
    struct fsdp_units units;
    struct bucket_transfer weights, grads; /* under ZeRO */
    int n_slots;
    struct activations *slots;
    struct activations_scratch scratch;
    struct step_buffers io;            /* what a step exchanges with the host */
    struct step_graph graph;           /* how a step is queued */
    struct device_queue *queue;        /* for computing */
    struct device_queue *comm_queue;   /* for collectives that run during computation */
    struct device_event *computed;     /* of trainer_sync */
    struct device_event *state_copied; /* a snapshot is copied: weights and moments may change */
    struct dataset data;
    struct tokens_ahead ahead; /* on a device that computes while the host does something else */
    struct trainer_position position;
    struct arena arena;
    struct memory_rank memory; /* as counted, for this stage */
    struct buffer_pools pools; /* the memory of all buffers */
    struct trainer_size size;
};

/* The layout of a run's state. TP_E_LAYOUT as layout_make. */
tp_status trainer_layout(struct layout *out, const struct train_config *c, const struct model *m,
                         struct arena *arena, struct tp_err *err);

/* The sizes of the largest rank on a device with these operations; NULL: on CPUs. `shared` is the
 * largest of any rank. */
tp_status trainer_measure(struct trainer_size *size, const struct train_config *c,
                          const struct model *m, const struct kernel_ops *ops, struct tp_err *err);

/* Allocate and bind everything; weights are zero. Collective over all ranks: on failure every rank
 * gets the same message. Free with trainer_close, also after a failure. */
tp_status trainer_open(struct trainer *t, const struct train_config *c, const struct model *m,
                       const struct trainer_device *d, struct comm_world *ranks,
                       struct tp_err *err);
void trainer_close(struct trainer *t);

/* Wait until the device has computed what was queued so far. The device's failure, if it has
 * one. */
tp_status trainer_sync(struct trainer *t, struct tp_err *err);

#endif
