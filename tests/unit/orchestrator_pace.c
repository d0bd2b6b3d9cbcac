/* tests/unit/orchestrator_pace.c - slow ranks and slow steps, on simulated ranks. */
#include "orchestrator/watch/pace.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MS 1000000LL

enum { WORLD = 4, STEPS = 20 };

/* Ranks that meet at the end of each step. */
struct pace_sim {
    struct pace *p;
    struct heartbeat_status status[WORLD];
    int64_t now;
    struct pace_finding found; /* the last one */
    int n_found;
};

static void sim_init(struct pace_sim *s, bool says_delay)
{
    memset(s, 0, sizeof *s);
    s->now = 1000 * MS;
    s->p = pace_new(WORLD, 3, STEPS);
    for (int r = 0; r < WORLD; r++)
        s->status[r] = (struct heartbeat_status){
            .rank = r, .world = WORLD, .phase = HEARTBEAT_TRAIN, .delay_ns = says_delay
        };
}

/* A step in which rank r computes for compute[r] and has no processor for delay[r]. */
static void step(struct pace_sim *s, const int64_t *compute, const int64_t *delay)
{
    int64_t len = 0;

    for (int r = 0; r < WORLD; r++) {
        int64_t own = compute[r] + (delay ? delay[r] : 0);

        len = own > len ? own : len;
    }
    s->now += len;
    for (int r = 0; r < WORLD; r++) {
        struct heartbeat_status *h = &s->status[r];
        struct pace_finding f;
        int64_t d = delay ? delay[r] : 0;

        h->step++;
        h->step_ns = s->now;
        h->wait_ns += len - compute[r] - d;
        h->delay_ns += h->delay_ns ? d : 0;
        pace_feed(s->p, r, h, false);
        pace_judge(s->p, &f);
        if (f.kind != PACE_FINE) {
            s->found = f;
            s->n_found++;
        }
    }
}

static void steps(struct pace_sim *s, int n, const int64_t *compute, const int64_t *delay)
{
    for (int i = 0; i < n; i++)
        step(s, compute, delay);
}

static const int64_t EVEN[WORLD] = { 50 * MS, 50 * MS, 50 * MS, 50 * MS };
static const int64_t SLOW_2[WORLD] = { 50 * MS, 50 * MS, 200 * MS, 50 * MS };

Test(pace, a_rank_that_computes_longer_is_named_once)
{
    for (int says = 0; says < 2; says++) {
        struct pace_sim s;

        sim_init(&s, says);
        steps(&s, says ? 2 * STEPS + 2 : 4 * STEPS + 2, SLOW_2, NULL);
        cr_expect_eq(s.n_found, 1, "%d", s.n_found);
        cr_expect(s.found.kind == PACE_SLOW_RANK && s.found.rank == 2, "%s", s.found.text);
        cr_expect_float_eq(pace_compute_seconds(s.p, 2), 0.2, 1e-6);
        steps(&s, 5 * STEPS, SLOW_2, NULL);
        cr_expect_eq(s.n_found, 1);
        pace_free(s.p);
    }
}

/* All ranks save, and rank 0 needs longer for it than all steps take. */
static void save(struct pace_sim *s)
{
    s->now += 5000 * MS;
    for (int r = 0; r < WORLD; r++)
        s->status[r].phase_ns = r ? s->now - 4000 * MS : s->now;
}

Test(pace, saves_more_often_than_windows_hide_nothing_and_count_for_nothing)
{
    static const int64_t slower[WORLD] = { 150 * MS, 150 * MS, 150 * MS, 150 * MS };
    struct pace_sim s;

    sim_init(&s, true);
    for (int i = 0; i < 20; i++) { /* a window has 20 steps */
        steps(&s, STEPS / 2, EVEN, NULL);
        save(&s);
    }
    cr_expect_eq(s.n_found, 0, "%s", s.found.text);
    cr_expect_float_eq(pace_compute_seconds(s.p, 0), 0.05, 1e-6);
    for (int i = 0; i < 10; i++) {
        steps(&s, STEPS / 2, SLOW_2, NULL);
        save(&s);
    }
    cr_expect_eq(s.found.kind, PACE_SLOWDOWN);
    cr_expect(s.n_found == 2 && s.found.rank == 2, "%d: %s", s.n_found, s.found.text);
    for (int i = 0; i < 10; i++) {
        steps(&s, STEPS / 2, EVEN, NULL);
        save(&s);
    }
    for (int i = 0; i < 10; i++) {
        steps(&s, STEPS / 2, slower, NULL);
        save(&s);
    }
    cr_expect(s.n_found == 3 && s.found.part == PACE_COMPUTE, "%d: %s", s.n_found, s.found.text);
    pace_free(s.p);
}

Test(pace, a_rank_that_has_no_processor_is_not_slow)
{
    static const int64_t delay[WORLD] = { 0, 0, 150 * MS, 0 };
    struct pace_sim s;

    sim_init(&s, true);
    steps(&s, 10 * STEPS, EVEN, delay);
    cr_expect_eq(s.n_found, 0, "%s", s.found.text);
    cr_expect_float_eq(pace_compute_seconds(s.p, 2), 0.05, 1e-3);
    pace_free(s.p);
}

/* On a busy host every rank loses processor time at random; one rank may also be slow. */
Test(pace, at_any_load_the_slow_rank_is_named_or_none)
{
    unsigned seed = (unsigned)getpid();
    int named = 0;

    fprintf(stderr, "seed %u\n", seed);
    for (int i = 0; i < 200; i++) {
        int64_t load = i % 20 * 20 * MS, compute[WORLD], delay[WORLD];
        int slow = i % 2 ? rand_r(&seed) % WORLD : -1;
        struct pace_sim s;

        sim_init(&s, true);
        for (int k = 0; k < 6 * STEPS; k++) {
            for (int r = 0; r < WORLD; r++) {
                compute[r] = 50 * MS + rand_r(&seed) % 20 * MS + (r == slow ? 400 * MS : 0);
                delay[r] = load ? (int64_t)rand_r(&seed) % load : 0;
                if (rand_r(&seed) % 10 == 0)
                    delay[r] *= 5;
            }
            step(&s, compute, delay);
        }
        if (s.n_found > 0 && s.found.kind == PACE_SLOW_RANK) {
            cr_expect_eq(s.found.rank, slow, "load %d ms: %s", (int)(load / MS), s.found.text);
            named++;
        }
        pace_free(s.p);
    }
    cr_expect_gt(named, 20, "a slow rank on a quiet host is named");
}

Test(pace, stages_are_not_compared_with_each_other)
{
    static const int64_t compute[WORLD] = { 50 * MS, 50 * MS, 200 * MS, 200 * MS };
    struct pace_sim s;

    sim_init(&s, true);
    pace_set_stage(s.p, 2, 1);
    pace_set_stage(s.p, 3, 1);
    steps(&s, 10 * STEPS, compute, NULL);
    cr_expect_eq(s.n_found, 0, "%s", s.found.text);
    pace_free(s.p);
}

struct slowdown_row {
    int64_t compute[WORLD], delay[WORLD], wait; /* wait: more time in collectives */
    enum pace_part part;
    int rank;
};

Test(pace, a_slowdown_is_reported_once_with_the_part_that_grew)
{
    static const struct slowdown_row rows[] = {
        { { 120 * MS, 130 * MS, 125 * MS, 130 * MS }, { 0 }, 0, PACE_COMPUTE, -1 },
        { { 50 * MS, 50 * MS, 50 * MS, 50 * MS },
          { 90 * MS, 80 * MS, 85 * MS, 90 * MS },
          0,
          PACE_PROCESSOR,
          -1 },
        { { 50 * MS, 50 * MS, 50 * MS, 50 * MS }, { 0 }, 100 * MS, PACE_COLLECTIVES, -1 },
        { { 50 * MS, 400 * MS, 50 * MS, 50 * MS }, { 0 }, 0, PACE_RANK, 1 },
    };

    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct slowdown_row *w = &rows[i];
        struct pace_sim s;

        sim_init(&s, true);
        steps(&s, 200, EVEN, NULL);
        cr_assert_eq(s.n_found, 0);
        for (int k = 0; k < 200; k++) {
            s.now += w->wait;
            for (int r = 0; r < WORLD; r++)
                s.status[r].wait_ns += w->wait;
            step(&s, w->compute, w->delay);
            cr_assert(k >= 40 || s.n_found == 0 || s.found.kind == PACE_SLOW_RANK,
                      "reported after %d steps", k);
        }
        cr_expect_eq(s.n_found, 1 + (w->part == PACE_RANK), "row %zu: %d", i, s.n_found);
        cr_expect_eq(s.found.kind, PACE_SLOWDOWN);
        cr_expect(s.found.part == w->part && s.found.rank == w->rank, "row %zu: %s", i,
                  s.found.text);
        steps(&s, 200, EVEN, NULL);
        cr_expect_leq(s.n_found, 2);
        steps(&s, 200, w->compute, w->delay);
        cr_expect(w->wait || s.n_found >= 2, "after fast steps it is reported again");
        pace_free(s.p);
    }
}

Test(pace, saves_and_pauses_are_not_slow_steps)
{
    struct pace_sim s;

    sim_init(&s, true);
    for (int k = 0; k < 60; k++) {
        steps(&s, 9, EVEN, NULL);
        s.now += 5000 * MS;
        for (int r = 0; r < WORLD; r++)
            s.status[r].phase_ns = s.now; /* a save ended */
        step(&s, EVEN, NULL);
    }
    cr_expect_eq(s.n_found, 0, "%s", s.found.text);
    pace_free(s.p);
}
