/* trainer/pipeline/schedule.c - see trainer/pipeline/schedule.h. */
#include "trainer/pipeline/schedule.h"

#include <stdbool.h>
#include <stdlib.h>

int schedule_stage(const struct schedule *s, int rank, int vstage)
{
    return vstage * s->p + rank;
}

/* The number of forward passes before a rank alternates forward and backward passes. */
static int warmup_of(const struct schedule *s, int rank)
{
    int64_t all = (int64_t)s->m * s->v, w;

    if (s->v == 1)
        w = s->p - rank - 1;
    else if (s->m == s->p) /* one group only: nothing to interleave with */
        w = all;
    else
        w = 2 * (int64_t)(s->p - rank - 1) + (int64_t)(s->v - 1) * s->p;
    return (int)(w < all ? w : all);
}

/* Number i of a rank's forward (or backward) passes: microbatches in groups of p, each group
 * through all virtual stages. Backward passes visit the virtual stages in reverse order. */
static struct schedule_op pass_number(const struct schedule *s, int rank,
                                      enum schedule_op_kind kind, int i)
{
    int group = s->v > 1 ? s->p : s->m, within = i % (group * s->v);
    int vstage = within / group;
    struct schedule_op op = { .kind = kind };
    int stage, last = s->p * s->v - 1, before, after;

    op.micro = i / (group * s->v) * group + within % group;
    op.vstage = kind == OP_FORWARD ? vstage : s->v - 1 - vstage;
    stage = schedule_stage(s, rank, op.vstage);
    before = stage > 0 ? (stage - 1) % s->p : -1;
    after = stage < last ? (stage + 1) % s->p : -1;
    op.from = kind == OP_FORWARD ? before : after;
    op.to = kind == OP_FORWARD ? after : before;
    return op;
}

/* Assign slots: a forward pass takes the lowest free slot, and its backward pass frees it.
 * slot_of[micro * v + vstage] and busy[] have m * v elements. */
static void assign_slots(const struct schedule *s, struct schedule_rank *r, int *slot_of,
                         bool *busy)
{
    for (int i = 0; i < r->n_ops; i++) {
        struct schedule_op *op = &r->ops[i];
        int *slot = &slot_of[op->micro * s->v + op->vstage];

        if (op->kind == OP_FORWARD) {
            for (*slot = 0; busy[*slot];)
                ++*slot;
            busy[*slot] = true;
            if (*slot >= r->n_slots)
                r->n_slots = *slot + 1;
        } else {
            busy[*slot] = false;
        }
        op->slot = *slot;
    }
}

static void list_ops(const struct schedule *s, int rank, struct schedule_op *ops)
{
    int all = s->m * s->v, warmup = warmup_of(s, rank), n = 0;

    for (int i = 0; i < warmup; i++)
        ops[n++] = pass_number(s, rank, OP_FORWARD, i);
    for (int i = warmup; i < all; i++) {
        ops[n++] = pass_number(s, rank, OP_FORWARD, i);
        ops[n++] = pass_number(s, rank, OP_BACKWARD, i - warmup);
    }
    for (int i = all - warmup; i < all; i++)
        ops[n++] = pass_number(s, rank, OP_BACKWARD, i);
}

tp_status schedule_make(struct schedule *out, int p, int m, int v, struct arena *arena,
                        struct tp_err *err)
{
    struct schedule s = { .p = p, .m = m, .v = v };
    size_t all;

    if (v > 1 && m % p != 0)
        return tp_fail(err, TP_E_LAYOUT,
                       "interleaved pipelines (vpp %d) run microbatches in groups of pp: %d "
                       "microbatches per step are not a multiple of %d; change --batch or --micro",
                       v, m, p);
    if (p < 1 || m < 1 || v < 1 || (int64_t)m * v > INT32_MAX / 4)
        return tp_fail(err, TP_E_LAYOUT, "a schedule of pp %d, vpp %d and %d microbatches", p, v,
                       m);
    all = (size_t)m * (size_t)v;
    s.ranks = arena_array(arena, (size_t)p, sizeof *s.ranks);
    for (int r = 0; s.ranks && r < p; r++) {
        struct schedule_rank *rank = &s.ranks[r];
        int *slot_of = malloc(all * sizeof *slot_of);
        bool *busy = calloc(all, sizeof *busy);

        rank->ops = arena_array(arena, 2 * all, sizeof *rank->ops);
        if (rank->ops && slot_of && busy) {
            rank->n_ops = 2 * (int)all;
            list_ops(&s, r, rank->ops);
            assign_slots(&s, rank, slot_of, busy);
        } else {
            s.ranks = NULL;
        }
        free(slot_of);
        free(busy);
    }
    if (!s.ranks)
        return tp_fail(err, TP_E_NOMEM, "no memory for a schedule of %d microbatches", m);
    *out = s;
    return TP_OK;
}

/* ---- the virtual clock ---- */

struct clock {
    const struct schedule *s;
    int64_t ticks[2]; /* of a pass, by kind */
    int64_t *done[2]; /* [m * stages] when a pass ended, -1: not yet; by kind */
    int64_t *now;     /* [p] */
    int *next;        /* [p] the next pass */
    struct schedule_replay *replay;
};

/* The time at which the input of `op` of `rank` is ready; -1: not known yet. */
static int64_t ready_at(const struct clock *c, int rank, const struct schedule_op *op)
{
    int stages = c->s->p * c->s->v, stage = schedule_stage(c->s, rank, op->vstage);
    int64_t at = (int64_t)op->micro * stages;

    if (op->kind == OP_FORWARD)
        return stage == 0 ? 0 : c->done[OP_FORWARD][at + stage - 1];
    if (stage == stages - 1)
        return c->done[OP_FORWARD][at + stage];
    return c->done[OP_BACKWARD][at + stage + 1];
}

/* Run passes of a rank until one has to wait. Returns whether any ran. */
static bool advance(struct clock *c, int rank)
{
    const struct schedule_rank *list = &c->s->ranks[rank];
    int stages = c->s->p * c->s->v, began = c->next[rank];

    for (; c->next[rank] < list->n_ops; c->next[rank]++) {
        const struct schedule_op *op = &list->ops[c->next[rank]];
        int64_t ready = ready_at(c, rank, op);
        int64_t *done = &c->done[op->kind][(int64_t)op->micro * stages +
                                           schedule_stage(c->s, rank, op->vstage)];

        if (ready < 0)
            break;
        if (ready > c->now[rank])
            c->now[rank] = ready;
        c->replay->start[rank][c->next[rank]] = c->now[rank];
        c->now[rank] += c->ticks[op->kind];
        *done = c->now[rank];
        c->replay->messages += op->to >= 0 && op->to != rank;
    }
    return c->next[rank] > began;
}

static tp_status run_clock(struct clock *c, struct tp_err *err)
{
    const struct schedule *s = c->s;
    bool moved = true;

    while (moved) {
        moved = false;
        for (int r = 0; r < s->p; r++)
            moved |= advance(c, r);
    }
    for (int r = 0; r < s->p; r++) {
        if (c->next[r] < s->ranks[r].n_ops)
            return tp_fail(err, TP_E_INTERNAL,
                           "the schedule of pp %d, vpp %d and %d microbatches deadlocks at pass "
                           "%d of rank %d",
                           s->p, s->v, s->m, c->next[r], r);
        if (c->now[r] > c->replay->makespan)
            c->replay->makespan = c->now[r];
    }
    return TP_OK;
}

tp_status schedule_replay(struct schedule_replay *out, const struct schedule *s,
                          int64_t forward_ticks, int64_t backward_ticks, struct arena *arena,
                          struct tp_err *err)
{
    size_t n_done = (size_t)s->m * (size_t)s->p * (size_t)s->v;
    struct schedule_replay replay = { .ideal =
                                          (int64_t)s->m * s->v * (forward_ticks + backward_ticks) };
    struct clock c = { .s = s, .ticks = { forward_ticks, backward_ticks }, .replay = &replay };
    tp_status st = TP_OK;

    replay.start = arena_array(arena, (size_t)s->p, sizeof *replay.start);
    for (int r = 0; replay.start && r < s->p; r++)
        if (!(replay.start[r] =
                  arena_array(arena, (size_t)s->ranks[r].n_ops, sizeof **replay.start)))
            replay.start = NULL;
    c.done[0] = malloc(n_done * sizeof(int64_t));
    c.done[1] = malloc(n_done * sizeof(int64_t));
    c.now = calloc((size_t)s->p, sizeof *c.now);
    c.next = calloc((size_t)s->p, sizeof *c.next);
    if (!replay.start || !c.done[0] || !c.done[1] || !c.now || !c.next) {
        st = tp_fail(err, TP_E_NOMEM, "no memory to replay a schedule");
        goto done;
    }
    for (size_t i = 0; i < n_done; i++)
        c.done[0][i] = c.done[1][i] = -1;
    if ((st = run_clock(&c, err)) == TP_OK)
        *out = replay;
done:
    free(c.done[0]);
    free(c.done[1]);
    free(c.now);
    free(c.next);
    return st;
}
