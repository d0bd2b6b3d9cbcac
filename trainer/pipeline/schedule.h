/*
 * trainer/pipeline/schedule.h - pipeline schedules as data: for every rank along pp, the list of
 * passes that it runs in order. 1F1B (Narayanan et al. 2019, PipeDream-Flush) and interleaved 1F1B
 * (Narayanan et al. 2021, PTD-P), in which a rank has v virtual stages that do not follow each
 * other.
 *
 * p ranks, m microbatches in a step, v virtual stages on each rank: stage c * p + r is number c of
 * rank r, so there are p * v stages. A pass is the forward or backward work of one microbatch in
 * one stage. It receives the result of one neighbouring stage and sends its own to the other. Two
 * neighbouring stages are on the same rank only when p is 1.
 *
 * A caller may rely on these properties (tests/unit/trainer_schedule.c checks them):
 *   - Activations arrive in the order in which their receiver needs them, and so do gradients. So
 *     with one communicator for each of the two, messages need no tags.
 *   - If sends do not wait for their receiver, a step never deadlocks, even when a rank has only
 *     SCHEDULE_BUFFERS buffers for gradients and waits for the older one before it writes a third.
 *     (With one buffer it would deadlock for v > 1.) Activations are sent from their slot, because
 *     their receiver has received them before the slot's backward pass begins.
 *   - A slot (what a pass keeps for its backward pass) is in use from the forward pass to the
 *     backward pass of the same microbatch and stage. A rank needs n_slots of them.
 */
#ifndef TRAINER_PIPELINE_SCHEDULE_H
#define TRAINER_PIPELINE_SCHEDULE_H

#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

enum schedule_op_kind { OP_FORWARD, OP_BACKWARD };

enum { SCHEDULE_BUFFERS = 2 };

/* One pass of a rank. */
struct schedule_op {
    enum schedule_op_kind kind;
    int micro;  /* 0 .. m - 1 */
    int vstage; /* 0 .. v - 1 */
    int slot;   /* 0 .. n_slots - 1 */
    int from;   /* rank along pp that sends its input; -1: none (an end of the pipeline) */
    int to;     /* rank along pp that gets its result; -1: none */
};

struct schedule_rank {
    int n_ops, n_slots;
    struct schedule_op *ops;
};

struct schedule {
    int p, m, v;
    struct schedule_rank *ranks; /* [p] */
};

/* Make the schedule; lists live in the arena.
 * TP_E_LAYOUT: v > 1 and p does not divide m (PTD-P runs microbatches in groups of p). */
tp_status schedule_make(struct schedule *out, int p, int m, int v, struct arena *arena,
                        struct tp_err *err);

/* The stage, 0 .. p * v - 1, that is a rank's virtual stage. */
int schedule_stage(const struct schedule *s, int rank, int vstage);

/* The times of a schedule when messages take no time. */
struct schedule_replay {
    int64_t makespan; /* from the start of the first pass to the end of the last */
    int64_t ideal;    /* the work of one rank: m * v * (forward + backward) */
    int64_t messages; /* between ranks, of activations and gradients */
    int64_t **start;  /* [p][n_ops] when each pass begins */
};

/* Simulate s with these durations of a forward and a backward pass; bubble = makespan - ideal.
 * TP_E_INTERNAL: it deadlocks (tests show that it never does). */
tp_status schedule_replay(struct schedule_replay *out, const struct schedule *s,
                          int64_t forward_ticks, int64_t backward_ticks, struct arena *arena,
                          struct tp_err *err);

#endif
