/* tests/unit/orchestrator_monitor.c - verdicts on a simulated clock.
 *
 * covers: orchestrator/watch/rank_progress */
#include "orchestrator/watch/monitor.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#define MS 1000000LL
#define S  1000000000LL

enum { WORLD = 4 };

/* A simulated synchronous job: every step has two collectives. */
struct monitor_sim {
    struct monitor *m;
    struct heartbeat_status status[WORLD];
    char state[WORLD];
    int64_t now;
};

static const struct monitor_limits LIMITS = { .floor_ns = 3 * S,
                                              .init_ns = 60 * S,
                                              .save_ns = 600 * S,
                                              .factor = 15,
                                              .slow = 3,
                                              .jump = 20,
                                              .slow_steps = 20 };

static void sim_init_with(struct monitor_sim *s, const struct monitor_limits *limits)
{
    memset(s, 0, sizeof *s);
    s->now = 1000 * S;
    s->m = monitor_new(WORLD, limits, s->now);
    for (int r = 0; r < WORLD; r++) {
        s->status[r] =
            (struct heartbeat_status){ .rank = r, .world = WORLD, .step = -1, .saved = -1 };
        s->status[r].loss = NAN;
        s->state[r] = 'S';
    }
}

static void sim_init(struct monitor_sim *s)
{
    sim_init_with(s, &LIMITS);
}

static struct monitor_verdict look(struct monitor_sim *s)
{
    struct monitor_verdict v;

    for (int r = 0; r < WORLD; r++)
        monitor_feed(s->m, r, &s->status[r], s->state[r], s->now);
    monitor_judge(s->m, &v, s->now);
    return v;
}

/* A step of len ns ends; rank r computed for compute[r] (NULL: half) and waited for the rest. */
static struct monitor_verdict end_step(struct monitor_sim *s, int64_t len, const int64_t *compute,
                                       double loss)
{
    for (int r = 0; r < WORLD; r++) {
        struct heartbeat_status *m = &s->status[r];

        m->phase = HEARTBEAT_TRAIN;
        m->step_len_ns = m->step < 0 ? 0 : len;
        m->step++;
        m->step_ns = s->now;
        m->entered += 2;
        m->left = m->entered;
        m->wait_ns += len - (compute ? compute[r] : len / 2);
        m->loss = loss;
    }
    monitor_add_loss(s->m, s->status[0].step, loss);
    return look(s);
}

/* A step as above, in which the clock advances and the watcher looks at least every second. */
static struct monitor_verdict step(struct monitor_sim *s, int64_t len, const int64_t *compute,
                                   double loss)
{
    int64_t end = s->now + len;

    while (end - s->now > S) {
        s->now += S;
        look(s);
    }
    s->now = end;
    return end_step(s, len, compute, loss);
}

/* All ranks but the stopped one reach the next collective. Then nothing happens for up to `most`
 * ns. */
static struct monitor_verdict stall(struct monitor_sim *s, int stopped, int64_t most)
{
    struct monitor_verdict v = { 0 };

    for (int r = 0; r < WORLD; r++)
        s->status[r].entered += r != stopped;
    for (int64_t t = 0; t < most; t += 100 * MS) {
        s->now += 100 * MS;
        v = look(s);
        if (v.kind == MONITOR_HANG)
            break;
    }
    return v;
}

Test(monitor, a_stopped_rank_is_named_within_its_learnt_deadline)
{
    for (int stopped = 0; stopped < WORLD; stopped++) {
        struct monitor_sim s;
        struct monitor_verdict v;

        sim_init(&s);
        for (int i = 0; i < 50; i++)
            cr_assert_eq(step(&s, 50 * MS, NULL, 2).kind, MONITOR_FINE);
        v = stall(&s, stopped, 60 * S);
        cr_assert_eq(v.kind, MONITOR_HANG);
        cr_expect_eq(v.rank, stopped, "%s", v.text);
        cr_expect_leq(v.waited_ns, 5 * S);
        cr_expect_geq(v.waited_ns, 3 * S);
        monitor_free(s.m);
    }
}

Test(monitor, a_rank_that_stops_after_the_first_step_is_found_too)
{
    struct monitor_sim s;
    struct monitor_verdict v;

    sim_init(&s);
    cr_assert_eq(step(&s, 1 * S, NULL, 2).kind, MONITOR_FINE); /* a second from launch to step 1 */
    v = stall(&s, 1, 60 * S);
    cr_assert_eq(v.kind, MONITOR_HANG);
    cr_expect_eq(v.rank, 1, "%s", v.text);
    cr_expect_leq(v.waited_ns, 16 * S);
    monitor_free(s.m);
}

Test(monitor, deadlines_grow_with_the_steps_of_the_job)
{
    struct monitor_sim s;
    struct monitor_verdict v;

    sim_init(&s);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(step(&s, 10 * S, NULL, 2).kind, MONITOR_FINE);
    v = stall(&s, 2, 400 * S);
    cr_assert_eq(v.kind, MONITOR_HANG);
    cr_expect(v.waited_ns > 150 * S && v.waited_ns <= 200 * S, "%s", v.text);
    monitor_free(s.m);
}

Test(monitor, among_ranks_at_the_same_point_the_process_state_names_the_stopped_one)
{
    for (int k = 0; k < 2; k++) {
        struct monitor_sim s;
        struct monitor_verdict v;

        sim_init(&s);
        for (int i = 0; i < 20; i++)
            step(&s, 50 * MS, NULL, 2);
        for (int r = 0; r < WORLD; r++)
            s.status[r].entered++;
        if (k)
            s.state[3] = 'T';
        s.now += 1 * S;
        look(&s);
        for (int i = 0; i < 60 && (v = look(&s)).kind == MONITOR_FINE; i++)
            s.now += 100 * MS;
        cr_assert_eq(v.kind, MONITOR_HANG);
        cr_expect_eq(v.rank, k ? 3 : -1, "%s", v.text);
        monitor_free(s.m);
    }
}

Test(monitor, time_in_which_the_watcher_did_not_run_counts_against_no_rank)
{
    struct monitor_sim s;

    sim_init(&s);
    for (int i = 0; i < 50; i++)
        step(&s, 50 * MS, NULL, 2);
    s.now += 3600 * S; /* the whole machine was suspended */
    cr_expect_eq(look(&s).kind, MONITOR_FINE);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(step(&s, 50 * MS, NULL, 2).kind, MONITOR_FINE);
    monitor_free(s.m);
}

Test(monitor, a_suspended_job_is_not_late_and_nothing_is_learnt_from_it)
{
    struct monitor_sim s;
    int64_t before;

    sim_init(&s);
    for (int i = 0; i < 40; i++)
        step(&s, 100 * MS, NULL, 3);
    before = monitor_deadline(s.m);
    for (int i = 0; i < 600; i++) {
        s.now += 100 * MS;
        monitor_hold(s.m, s.now);
    }
    cr_expect_eq(end_step(&s, 60 * S, NULL, 3).kind, MONITOR_FINE,
                 "the step during the suspension");
    for (int i = 0; i < 40; i++)
        cr_expect_eq(step(&s, 100 * MS, NULL, 3).kind, MONITOR_FINE);
    cr_expect_eq(monitor_deadline(s.m), before);
    cr_expect_eq(stall(&s, 2, 10 * S).rank, 2, "it is watched as before");
    monitor_free(s.m);
}

/* A job that has trained for a while starts its first save. */
static void sim_save(struct monitor_sim *s)
{
    sim_init(s);
    for (int i = 0; i < 50; i++)
        step(s, 50 * MS, NULL, 2);
    for (int r = 0; r < WORLD; r++) {
        s->status[r].phase = HEARTBEAT_SAVE;
        s->status[r].phase_ns = s->now;
    }
}

Test(monitor, a_factor_that_cannot_be_counted_is_no_deadline_rather_than_the_shortest)
{
    struct monitor_limits limits = LIMITS;
    struct monitor_sim s;

    limits.factor = 1e15;
    sim_init_with(&s, &limits);
    for (int i = 0; i < 50; i++)
        cr_assert_eq(step(&s, 10 * S, NULL, 2).kind, MONITOR_FINE);
    cr_expect_gt(monitor_deadline(s.m), 1000000 * S);
    cr_expect_eq(stall(&s, 2, 4000 * S).kind, MONITOR_FINE);
    monitor_free(s.m);
}

Test(monitor, saves_have_a_deadline_of_their_own)
{
    struct monitor_sim s;

    sim_save(&s);
    for (int i = 0; i < 5000; i++) {
        s.now += 100 * MS;
        cr_assert_eq(look(&s).kind, MONITOR_FINE);
    }
    for (int i = 0; i < 2000; i++) {
        s.now += 100 * MS;
        if (look(&s).kind == MONITOR_HANG)
            break;
    }
    cr_expect_eq(look(&s).kind, MONITOR_HANG);
    monitor_free(s.m);
}

/* All ranks are in another phase, 100 ms later. */
static void change_phase(struct monitor_sim *s, enum heartbeat_phase phase)
{
    s->now += 100 * MS;
    for (int r = 0; r < WORLD; r++) {
        s->status[r].phase = phase;
        s->status[r].phase_ns = s->now;
    }
    cr_assert_eq(look(s).kind, MONITOR_FINE);
}

Test(monitor, saves_to_a_store_have_the_deadline_of_the_job_whatever_was_measured)
{
    struct monitor_limits limits = LIMITS;
    struct monitor_sim s;
    int64_t waited = 0;

    limits.saves_wait = true;
    sim_init_with(&s, &limits);
    for (int i = 0; i < 50; i++)
        step(&s, 50 * MS, NULL, 2);
    change_phase(&s, HEARTBEAT_SAVE);
    change_phase(&s, HEARTBEAT_TRAIN); /* 100 ms were measured */
    change_phase(&s, HEARTBEAT_SAVE);
    while (look(&s).kind == MONITOR_FINE && waited < 1000 * S) {
        s.now += 100 * MS;
        waited += 100 * MS;
    }
    cr_expect(waited > 599 * S && waited < 601 * S, "%lld", (long long)waited);
    monitor_free(s.m);
}

Test(monitor, a_rank_that_is_stopped_while_the_job_saves_is_named_like_any_other)
{
    struct monitor_verdict v;
    struct monitor_sim s;

    sim_save(&s);
    look(&s);
    s.state[1] = 'T';
    v = stall(&s, 1, 10 * S);
    cr_assert_eq(v.kind, MONITOR_HANG);
    cr_expect_eq(v.rank, 1);
    cr_expect_eq(v.phase, HEARTBEAT_SAVE);
    cr_expect_leq(v.waited_ns, 5 * S);
    cr_expect(strstr(v.text, "stopped"), "%s", v.text);
    monitor_free(s.m);
}

Test(monitor, the_slow_rank_is_the_one_that_does_not_wait)
{
    static const int64_t compute[WORLD] = { 40 * MS, 190 * MS, 40 * MS, 42 * MS };
    struct monitor_sim s;
    struct monitor_verdict v = { 0 };
    int told = 0;

    sim_init(&s);
    for (int i = 0; i < 100; i++) {
        struct monitor_verdict now = step(&s, 200 * MS, compute, 2);

        if (now.kind == MONITOR_SLOW) {
            v = now;
            told++;
        }
    }
    cr_expect_eq(told, 1);
    cr_expect_eq(v.rank, 1, "%s", v.text);
    monitor_free(s.m);
}

Test(monitor, losses_that_are_nan_or_jump_are_reported_once)
{
    struct monitor_sim s;
    int nan = 0, jump = 0;

    sim_init(&s);
    cr_expect_eq(step(&s, 50 * MS, NULL, NAN).kind, MONITOR_FINE); /* has no loss (yet) */
    for (int i = 0; i < 60; i++) {
        double loss = i < 40 ? 3 + 0.05 * sin(i) : 9;

        jump += step(&s, 50 * MS, NULL, loss).kind == MONITOR_JUMP;
    }
    for (int i = 0; i < 5; i++)
        nan += step(&s, 50 * MS, NULL, NAN).kind == MONITOR_NAN;
    cr_expect_eq(jump, 1);
    cr_expect_eq(nan, 1);
    monitor_free(s.m);
}

/* A watcher that looks once in many steps still gets every loss, so it misses no jump. */
Test(monitor, a_jump_of_a_single_step_is_reported_however_rarely_the_watcher_looks)
{
    for (int at = 30; at < 300; at += 7) {
        struct monitor_sim s;
        struct monitor_verdict v = { 0 };

        sim_init(&s);
        for (int64_t i = 0; i < 400; i++)
            monitor_add_loss(s.m, i, i == at ? 50 : 3 + 0.05 * sin((double)i));
        cr_expect_eq(monitor_last_loss_step(s.m), 399);
        v = look(&s);
        cr_expect_eq(v.kind, MONITOR_JUMP, "step %d", at);
        cr_expect_eq(v.step, at);
        cr_expect_eq(look(&s).kind, MONITOR_FINE, "told twice");
        monitor_free(s.m);
    }
}

Test(monitor, a_rank_that_never_reports_is_named)
{
    struct monitor_sim s;
    struct monitor_verdict v;

    sim_init(&s);
    do {
        for (int r = 0; r < WORLD - 1; r++)
            monitor_feed(s.m, r, &s.status[r], 'S', s.now);
        monitor_judge(s.m, &v, s.now);
        s.now += 500 * MS;
    } while (v.kind == MONITOR_FINE && s.now < 2000 * S);
    cr_assert_eq(v.kind, MONITOR_HANG);
    cr_expect_eq(v.rank, WORLD - 1, "%s", v.text);
    monitor_free(s.m);
}
