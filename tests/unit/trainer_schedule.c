/* tests/unit/trainer_schedule.c - pipeline schedules: bubble, messages, memory, no deadlock. */
#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/random.h"
#include "trainer/pipeline/schedule.h"
#include "trainer/pipeline/schedule_diagram.h"

/* Random p, m and v; with v > 1, m is a multiple of p. */
static struct schedule random_schedule(struct rng *r, struct arena *arena)
{
    int p = (int)rng_int(r, 1, 9), v = (int)rng_int(r, 1, 5), m = (int)rng_int(r, 1, 40);
    struct tp_err err = { 0 };
    struct schedule s;

    if (p == 1)
        v = 1; /* vpp needs pp */
    if (v > 1)
        m = p * (int)rng_int(r, 1, 6);
    cr_assert_eq(schedule_make(&s, p, m, v, arena, &err), TP_OK, "%s", err.msg);
    return s;
}

/* The passes take random times, on the schedule's clock. m = n p for v > 1. 1F1B with fewer
 * microbatches than stages has the same bubble. */
Test(schedule, bubble_is_p_minus_1_over_v_m_exactly)
{
    struct rng r = rng_start("schedule/bubble");

    for (int i = 0; i < 300; i++) {
        struct arena arena = { 0 };
        struct schedule s = random_schedule(&r, &arena);
        int64_t forward = rng_int(&r, 1, 5), backward = forward + rng_int(&r, 0, 5);
        struct tp_err err = { 0 };
        struct schedule_replay replay;

        cr_assert_eq(schedule_replay(&replay, &s, forward, backward, &arena, &err), TP_OK, "%s",
                     err.msg);
        /* (makespan - ideal) / ideal = (p - 1) / (v m), multiplied out */
        cr_assert_eq((replay.makespan - replay.ideal) * s.v * s.m, (s.p - 1) * replay.ideal,
                     "p %d m %d v %d: makespan %lld, ideal %lld", s.p, s.m, s.v,
                     (long long)replay.makespan, (long long)replay.ideal);
        cr_assert_eq(replay.messages, s.p == 1 ? 0 : 2LL * s.m * (s.p * s.v - 1));
        arena_free(&arena);
    }
}

/* Each virtual stage runs each microbatch once forward and then once backward. */
Test(schedule, every_pass_runs_once_and_slots_are_never_shared)
{
    struct rng r = rng_start("schedule/passes");

    for (int i = 0; i < 300; i++) {
        struct arena arena = { 0 };
        struct schedule s = random_schedule(&r, &arena);
        int cells = s.m * s.v;

        for (int rank = 0; rank < s.p; rank++) {
            const struct schedule_rank *list = &s.ranks[rank];
            int *state = calloc((size_t)cells, sizeof *state); /* 0, 1 forward, 2 both */
            int *owner = calloc((size_t)cells, sizeof *owner); /* of a slot: cell + 1 */

            cr_assert_eq(list->n_ops, 2 * cells);
            for (int k = 0; k < list->n_ops; k++) {
                const struct schedule_op *op = &list->ops[k];
                int cell = op->micro * s.v + op->vstage;

                cr_assert(op->slot < list->n_slots);
                cr_assert_eq(state[cell]++, op->kind == OP_FORWARD ? 0 : 1);
                cr_assert_eq(owner[op->slot], op->kind == OP_FORWARD ? 0 : cell + 1);
                owner[op->slot] = op->kind == OP_FORWARD ? cell + 1 : 0;
            }
            for (int c = 0; c < cells; c++)
                cr_assert_eq(state[c], 2);
            free(state);
            free(owner);
        }
        arena_free(&arena);
    }
}

Test(schedule, holds_as_many_passes_as_the_formula_says)
{
    struct rng r = rng_start("schedule/held");

    for (int i = 0; i < 300; i++) {
        struct arena arena = { 0 };
        struct schedule s = random_schedule(&r, &arena);

        for (int rank = 0; rank < s.p; rank++) {
            int behind = s.p - rank, all = s.m * s.v, want;

            if (s.v == 1)
                want = s.m < behind ? s.m : behind;
            else
                want = 2 * (behind - 1) + (s.v - 1) * s.p + 1;
            if (want > all || (s.v > 1 && s.m == s.p))
                want = all;
            cr_assert_eq(s.ranks[rank].n_slots, want, "p %d m %d v %d rank %d: %d, not %d", s.p,
                         s.m, s.v, rank, s.ranks[rank].n_slots, want);
        }
        arena_free(&arena);
    }
}

/* Pass number `i`, counted from 0, among the passes of kind `kind` on `rank` that receive from
 * `peer` (or, if `to`, send to it). Returns the key micro * stages + the stage that receives, which
 * is the same on both ranks; -1 when there is no such pass. */
static int64_t message_key(const struct schedule *s, int rank, enum schedule_op_kind kind, int peer,
                           bool to, int i)
{
    for (int k = 0; k < s->ranks[rank].n_ops; k++) {
        const struct schedule_op *op = &s->ranks[rank].ops[k];
        int stage = schedule_stage(s, rank, op->vstage);

        if (op->kind != kind || (to ? op->to : op->from) != peer || i-- > 0)
            continue;
        if (to)
            stage += kind == OP_FORWARD ? 1 : -1;
        return (int64_t)op->micro * s->p * s->v + stage;
    }
    return -1;
}

Test(schedule, messages_are_sent_in_the_order_in_which_they_are_received)
{
    struct rng r = rng_start("schedule/order");

    for (int i = 0; i < 40; i++) {
        struct arena arena = { 0 };
        struct schedule s = random_schedule(&r, &arena);

        for (int kind = 0; kind < 2; kind++)
            for (int a = 0; a < s.p; a++)
                for (int b = 0; b < s.p; b++)
                    for (int k = 0; k <= s.m * s.v; k++) {
                        int64_t sent = message_key(&s, a, (enum schedule_op_kind)kind, b, true, k);

                        cr_assert_eq(sent,
                                     message_key(&s, b, (enum schedule_op_kind)kind, a, false, k));
                        if (sent < 0)
                            break;
                    }
        arena_free(&arena);
    }
}

/* A runner in which a backward pass waits until one of n_buffers buffers for sent gradients is
 * free. Whether that deadlocks does not depend on time, so one order of events is enough. */
struct runner {
    const struct schedule *s;
    int n_buffers, *next;            /* next[p]: the next pass */
    char *done;                      /* [kind][micro][stage] */
    const struct schedule_op **sent; /* [p][n_buffers] buffers in use, NULL: free */
};

static char *done_at(const struct runner *r, enum schedule_op_kind kind, int micro, int stage)
{
    return &r->done[(kind * r->s->m + micro) * r->s->p * r->s->v + stage];
}

static const struct schedule_op **free_buffer(const struct runner *r, int rank)
{
    for (int i = 0; i < r->n_buffers; i++) {
        const struct schedule_op **b = &r->sent[rank * r->n_buffers + i];

        if (*b &&
            *done_at(r, OP_BACKWARD, (*b)->micro, schedule_stage(r->s, rank, (*b)->vstage) - 1))
            *b = NULL; /* its receiver has received it */
        if (!*b)
            return b;
    }
    return NULL;
}

static bool step_rank(struct runner *r, int rank)
{
    const struct schedule_op *op;
    int stage;

    if (r->next[rank] == r->s->ranks[rank].n_ops)
        return false;
    op = &r->s->ranks[rank].ops[r->next[rank]];
    stage = schedule_stage(r->s, rank, op->vstage);
    if (op->from >= 0 &&
        !*done_at(r, op->kind, op->micro, stage + (op->kind == OP_FORWARD ? -1 : 1)))
        return false;
    if (op->kind == OP_BACKWARD && op->to >= 0) {
        const struct schedule_op **b = free_buffer(r, rank);

        if (!b)
            return false;
        *b = op;
    }
    *done_at(r, op->kind, op->micro, stage) = 1;
    r->next[rank]++;
    return true;
}

static bool runs_through(const struct schedule *s, int n_buffers)
{
    struct runner r = { s, n_buffers, calloc((size_t)s->p, sizeof(int)),
                        calloc((size_t)(2 * s->m * s->p * s->v), 1),
                        calloc((size_t)(s->p * n_buffers), sizeof(struct schedule_op *)) };
    bool moved = true, through = true;

    while (moved) {
        moved = false;
        for (int rank = 0; rank < s->p; rank++)
            moved |= step_rank(&r, rank);
    }
    for (int rank = 0; rank < s->p; rank++)
        through &= r.next[rank] == s->ranks[rank].n_ops;
    free(r.next);
    free(r.done);
    free(r.sent);
    return through;
}

Test(schedule, two_gradient_buffers_per_rank_do_not_deadlock)
{
    struct rng r = rng_start("schedule/deadlock");
    bool one_was_too_few = false;

    for (int i = 0; i < 300; i++) {
        struct arena arena = { 0 };
        struct schedule s = random_schedule(&r, &arena);

        cr_assert(runs_through(&s, SCHEDULE_BUFFERS), "p %d m %d v %d", s.p, s.m, s.v);
        one_was_too_few |= !runs_through(&s, 1);
        arena_free(&arena);
    }
    cr_assert(one_was_too_few, "the test cannot see a deadlock");
}

Test(schedule, refuses_interleaving_that_p_does_not_divide)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct schedule s;

    cr_assert_eq(schedule_make(&s, 4, 6, 2, &arena, &err), TP_E_LAYOUT);
    cr_assert(strstr(err.msg, "6 microbatches per step are not a multiple of 4"), "%s", err.msg);
    arena_free(&arena);
}

Test(schedule, text_shows_the_diagram_of_the_papers)
{
    static const char want[] = "rank 0   F0 F1 ......B0--- F2 B1--- F3 B2--- ...B3--- \n"
                               "rank 1   ...F0 B0--- F1 B1--- F2 B2--- F3 B3--- ......\n";
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct schedule s;
    char *text = NULL;
    size_t size;
    FILE *f = open_memstream(&text, &size);

    cr_assert_eq(schedule_make(&s, 2, 4, 1, &arena, &err), TP_OK);
    cr_assert_eq(schedule_print_text(f, &s, &err), TP_OK);
    fclose(f);
    cr_assert(strncmp(text, want, sizeof want - 1) == 0, "%s", text);
    cr_assert(strstr(text, "bubble 0.2500 of the ideal time (3 of 12 ticks), 8 messages"), "%s",
              text);
    free(text);
    arena_free(&arena);
}
