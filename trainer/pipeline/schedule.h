/*
 * trainer/pipeline/schedule.h - pipeline schedules as data: for every rank along pp, the list of
 * passes it runs in order. 1F1B (Narayanan et al. 2019, PipeDream-Flush) and its interleaved form
 * (Narayanan et al. 2021, PTD-P), in which a rank has v chunks of layers that are not neighbours.
 *
 * p ranks, m microbatches a step, v chunks a rank: stage c * p + r is chunk c of rank r, and there
 * are p * v stages. A pass is the forward or the backward work of one microbatch through one chunk.
 * It receives what the neighbouring stage sends and sends to the next; a stage's neighbour may lie
 * on the same rank only when p is 1.
 *
 * Rules that a runner may count on (tests/unit/trainer_schedule.c):
 *   - activations that go forward arrive in the order in which their receiver wants them, and so do
 *     gradients that go back, each kind by itself: two channels between ranks need no tags;
 *   - with sends that return at once it never deadlocks, even when a rank has but SCHEDULE_BUFFERS
 *     buffers for gradients that are under way, and waits for the older before it writes a third
 *     (with one it would, for v > 1). Activations that go forward lie in their slot: when its
 *     backward pass begins, their receiver has long taken them;
 *   - a slot (what a pass keeps for its backward pass) is in use from the forward to the backward
 *     pass of the same microbatch and chunk; a rank needs n_slots of them.
 */
#ifndef TRAINER_PIPELINE_SCHEDULE_H
#define TRAINER_PIPELINE_SCHEDULE_H

#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

enum op_kind { OP_FORWARD, OP_BACKWARD };

enum { SCHEDULE_BUFFERS = 2 };

/* One pass of a rank. */
struct op {
    enum op_kind kind;
    int micro; /* 0 .. m - 1 */
    int chunk; /* 0 .. v - 1 */
    int slot;  /* 0 .. n_slots - 1 */
    int from;  /* rank along pp that sends what it works on; -1: nobody (an end of the pipeline) */
    int to;    /* rank along pp that gets its result; -1: nobody */
};

struct schedule_rank {
    int n_ops, n_slots;
    struct op *ops;
};

struct schedule {
    int p, m, v;
    struct schedule_rank *ranks; /* [p] */
};

/* Make the schedule; lists live in the arena.
 * TP_E_LAYOUT: v > 1 and p does not divide m (PTD-P runs microbatches in groups of p). */
tp_status schedule_make(struct schedule *out, int p, int m, int v, struct arena *arena,
                        struct tp_err *err);

/* Stage of a rank's chunk, 0 .. p * v - 1. */
int schedule_stage(const struct schedule *s, int rank, int chunk);

/* A schedule on a clock of its own, on which messages take no time. */
struct replay {
    int64_t makespan; /* from the start of the first pass to the end of the last */
    int64_t ideal;    /* the work of one rank: m * v * (forward + backward) */
    int64_t messages; /* between ranks, both kinds */
    int64_t **start;  /* [p][n_ops] when each pass begins */
};

/* Run s with so many ticks for a chunk's forward and backward pass; bubble = makespan - ideal.
 * TP_E_INTERNAL: it deadlocks (never, by tests). */
tp_status schedule_replay(struct replay *out, const struct schedule *s, int64_t forward_ticks,
                          int64_t backward_ticks, struct arena *arena, struct tp_err *err);

#endif
