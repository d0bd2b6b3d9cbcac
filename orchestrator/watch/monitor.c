/* orchestrator/watch/monitor.c - see orchestrator/watch/monitor.h. */
#include "orchestrator/watch/monitor.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "orchestrator/watch/loss_watch.h"
#include "orchestrator/watch/quantile.h"
#include "orchestrator/watch/rank_progress.h"

enum {
    TIMES = QUANTILE_MAX, /* step times that are kept */
    FINDINGS = 16,        /* findings about losses that wait to be reported */
    WARM_STEPS = 2,       /* the first steps are slower, so they are not measured */
    LEARNT_AFTER = 5,     /* step times that are needed for a deadline */
    SKIP_STEPS = 2,       /* steps after a pause that are not measured, because they contain it */
};

static const int64_t LOOK_MAX_NS =
    1000000000; /* after a longer time between two checks: the watcher was stopped */
static const int64_t STOPPED_NS =
    4000000000; /* after this time the ranks may have been stopped, too */

struct monitor {
    struct monitor_limits limits;
    int world, steps_seen;
    int64_t began_ns, looked_ns;
    int64_t init_took_ns; /* time until every rank had done a step, 0: not yet */
    int n_times;
    double times[TIMES];
    struct loss_watch loss;
    struct pace *pace;
    int first_finding, n_findings;
    struct monitor_verdict finding[FINDINGS];
    int64_t save_ns; /* the longest save so far */
    int64_t load_ns; /* the longest time of reading a checkpoint */
    struct rank_progress rank[];
};

struct monitor *monitor_new(int world, const struct monitor_limits *limits, int64_t now_ns)
{
    struct monitor *m = calloc(1, sizeof *m + (size_t)world * sizeof m->rank[0]);

    if (!m || !(m->pace = pace_new(world, limits->slow, limits->slow_steps))) {
        free(m);
        return NULL;
    }
    m->world = world;
    m->limits = *limits;
    m->began_ns = m->looked_ns = now_ns;
    m->loss =
        (struct loss_watch){ .jump = limits->jump, .known = limits->loss_known, .last_step = -1 };
    return m;
}

void monitor_free(struct monitor *m)
{
    if (m)
        pace_free(m->pace);
    free(m);
}

void monitor_set_stage(struct monitor *m, int rank, int stage)
{
    pace_set_stage(m->pace, rank, stage);
}

double monitor_compute_seconds(const struct monitor *m, int rank)
{
    return pace_compute_seconds(m->pace, rank);
}

/* A step ended on this rank. Keep its time, if it contains only training. */
static void learn_step(struct monitor *m, const struct rank_progress *r,
                       const struct heartbeat_status *status)
{
    if (r->skip > 0 || r->status.step < 0 || status->step_len_ns <= 0 ||
        status->phase_ns > status->step_ns - status->step_len_ns)
        return;
    if (m->steps_seen++ < WARM_STEPS * m->world)
        return;
    m->times[m->n_times++ % TIMES] = (double)status->step_len_ns;
}

void monitor_feed(struct monitor *m, int rank, const struct heartbeat_status *status,
                  char process_state, int64_t now_ns)
{
    struct rank_progress *r = rank >= 0 && rank < m->world ? &m->rank[rank] : NULL;

    if (!r)
        return;
    r->state = process_state;
    if (!r->seen || status->step != r->status.step || status->entered != r->status.entered ||
        status->left != r->status.left || status->phase != r->status.phase)
        r->changed_ns = now_ns;
    if (r->seen && r->status.phase == HEARTBEAT_SAVE && status->phase != HEARTBEAT_SAVE &&
        status->phase_ns - r->status.phase_ns > m->save_ns)
        m->save_ns = status->phase_ns - r->status.phase_ns;
    if (r->seen && r->status.phase == HEARTBEAT_LOAD && status->phase == HEARTBEAT_TRAIN &&
        status->phase_ns - r->status.phase_ns > m->load_ns)
        m->load_ns = status->phase_ns - r->status.phase_ns;
    if (status->step != r->status.step) {
        if (r->seen)
            learn_step(m, r, status);
        pace_feed(m->pace, rank, status, r->skip > 0);
        r->skip -= r->skip > 0;
    }
    r->status = *status;
    r->seen = true;
}

/* Time in which the watcher did not run does not count for any rank. */
static void skip_pause(struct monitor *m, int64_t now_ns)
{
    int64_t pause = now_ns - m->looked_ns - LOOK_MAX_NS;

    m->looked_ns = now_ns;
    if (pause <= 0)
        return;
    m->began_ns += pause;
    for (int i = 0; i < m->world; i++) {
        m->rank[i].changed_ns += pause;
        if (pause > STOPPED_NS)
            m->rank[i].skip = SKIP_STEPS;
    }
}

void monitor_hold(struct monitor *m, int64_t now_ns)
{
    m->began_ns += now_ns - m->looked_ns;
    m->looked_ns = now_ns;
    for (int i = 0; i < m->world; i++) {
        m->rank[i].changed_ns = now_ns;
        m->rank[i].skip = SKIP_STEPS;
    }
}

/* Nanoseconds that are not more than a clock can reach. */
static int64_t capped(double ns)
{
    return ns < 1e18 ? (int64_t)ns : (int64_t)1e18;
}

int64_t monitor_deadline(const struct monitor *m)
{
    int n = m->n_times < TIMES ? m->n_times : TIMES;
    double base = n >= LEARNT_AFTER    ? quantile(m->times, n, 0.99)
                  : m->limits.prior_ns ? (double)m->limits.prior_ns
                                       : (double)m->init_took_ns;
    double learnt = base > 0 ? m->limits.factor * base : (double)m->limits.init_ns;

    if (n < LEARNT_AFTER && learnt > (double)m->limits.init_ns)
        learnt = (double)m->limits.init_ns;

    return learnt > (double)m->limits.floor_ns ? capped(learnt) : m->limits.floor_ns;
}

static int64_t save_deadline(const struct monitor *m)
{
    int64_t learnt = capped(m->limits.factor * (double)m->save_ns);

    if (m->save_ns == 0 || (m->limits.saves_wait && learnt < m->limits.save_ns))
        return m->limits.save_ns;
    return learnt;
}

/* The current deadline: the longest of all ranks' phases. */
static int64_t deadline_now(const struct monitor *m)
{
    int64_t longest = 0;

    for (int i = 0; i < m->world; i++) {
        const struct heartbeat_status *s = &m->rank[i].status;
        int64_t d = monitor_deadline(m);

        if (!m->rank[i].seen || s->step < 0 || s->phase == HEARTBEAT_INIT ||
            s->phase == HEARTBEAT_LOAD)
            d = m->limits.init_ns;
        else if (s->phase == HEARTBEAT_SAVE || s->phase == HEARTBEAT_DRAIN)
            d = save_deadline(m);
        if (d > longest)
            longest = d;
    }
    return longest > m->limits.floor_ns ? longest : m->limits.floor_ns;
}

static bool judge_hang(struct monitor *m, struct monitor_verdict *v, int64_t now_ns)
{
    int64_t deadline = deadline_now(m), oldest = now_ns;
    int stopped = rank_progress_stopped(m->rank, m->world, now_ns, monitor_deadline(m));
    const struct rank_progress *r;

    for (int i = 0; i < m->world; i++) {
        int64_t at = m->rank[i].seen ? m->rank[i].changed_ns : m->began_ns;

        if (!(m->rank[i].seen && m->rank[i].status.phase == HEARTBEAT_DONE) && at < oldest)
            oldest = at;
    }
    if (stopped >= 0) {
        deadline = monitor_deadline(m);
        oldest = m->rank[stopped].changed_ns;
    } else if (now_ns - oldest <= deadline) {
        return false;
    }
    v->kind = MONITOR_HANG;
    v->rank = stopped >= 0 ? stopped : rank_progress_last(m->rank, m->world);
    v->waited_ns = now_ns - oldest;
    v->deadline_ns = deadline;
    r = v->rank >= 0 ? &m->rank[v->rank] : &m->rank[0];
    v->started = r->seen;
    v->stopped = v->rank >= 0 && (r->state == 'T' || r->state == 't');
    v->step = r->seen ? r->status.step : -1;
    v->phase = r->seen ? r->status.phase : HEARTBEAT_INIT;
    if (v->rank < 0)
        snprintf(v->text, sizeof v->text,
                 "no rank made progress for %.1f s (deadline %.1f s); all are at step %lld, so the "
                 "rank at fault is not known",
                 (double)v->waited_ns / 1e9, (double)deadline / 1e9, (long long)v->step);
    else if (!r->seen)
        snprintf(v->text, sizeof v->text, "rank %d has not reported within %.1f s of the launch",
                 v->rank, (double)v->waited_ns / 1e9);
    else
        snprintf(v->text, sizeof v->text,
                 "rank %d made no progress for %.1f s (deadline %.1f s): step %lld, collective "
                 "%lld, phase %s%s",
                 v->rank, (double)v->waited_ns / 1e9, (double)deadline / 1e9, (long long)v->step,
                 (long long)r->status.entered, heartbeat_phase_name(v->phase),
                 r->state == 'T' || r->state == 't' ? ", process stopped" : "");
    return true;
}

static void judge_pace(struct monitor *m, struct monitor_verdict *v)
{
    struct pace_finding f;

    pace_judge(m->pace, &f);
    if (f.kind == PACE_FINE)
        return;
    v->kind = f.kind == PACE_SLOW_RANK ? MONITOR_SLOW : MONITOR_SLOWDOWN;
    v->rank = f.rank;
    v->value = f.times;
    v->part = f.part;
    snprintf(v->text, sizeof v->text, "%s", f.text);
}

int64_t monitor_silence(const struct monitor *m, int rank, int64_t now_ns)
{
    return m->rank[rank].seen ? now_ns - m->rank[rank].changed_ns : 0;
}

void monitor_add_loss(struct monitor *m, int64_t step, double loss)
{
    struct monitor_verdict *v = &m->finding[(m->n_findings + m->first_finding) % FINDINGS];
    enum loss_watch_finding f;

    if (m->n_findings == FINDINGS)
        return;
    f = loss_watch_step(&m->loss, step, loss, v->text, sizeof v->text);
    if (f == LOSS_WATCH_FINE)
        return;
    v->kind = f == LOSS_WATCH_JUMP ? MONITOR_JUMP : MONITOR_NAN;
    v->rank = -1;
    v->step = step;
    v->value = loss;
    m->n_findings++;
}

int64_t monitor_last_loss_step(const struct monitor *m)
{
    return m->loss.last_step;
}

/* Report the oldest finding about a loss that was not reported yet. */
static bool judge_loss(struct monitor *m, struct monitor_verdict *v)
{
    if (m->n_findings == 0)
        return false;
    *v = m->finding[m->first_finding];
    m->first_finding = (m->first_finding + 1) % FINDINGS;
    m->n_findings--;
    return true;
}

void monitor_judge(struct monitor *m, struct monitor_verdict *v, int64_t now_ns)
{
    *v = (struct monitor_verdict){ .rank = -1, .step = monitor_step(m) };
    skip_pause(m, now_ns);
    if (!m->init_took_ns && monitor_step(m) >= 0)
        m->init_took_ns = now_ns - m->began_ns;
    if (judge_hang(m, v, now_ns))
        return;
    if (judge_loss(m, v))
        return;
    judge_pace(m, v);
}

int64_t monitor_step(const struct monitor *m)
{
    int64_t lowest = m->rank[0].seen ? m->rank[0].status.step : -1;

    for (int i = 1; i < m->world; i++) {
        int64_t step = m->rank[i].seen ? m->rank[i].status.step : -1;

        lowest = step < lowest ? step : lowest;
    }
    return lowest;
}

int64_t monitor_best_step(const struct monitor *m)
{
    int64_t best = -1;

    for (int i = 0; i < m->world; i++)
        if (m->rank[i].seen && m->rank[i].status.step > best)
            best = m->rank[i].status.step;
    return best;
}

int64_t monitor_saved(const struct monitor *m)
{
    int64_t best = -1;

    for (int i = 0; i < m->world; i++)
        if (m->rank[i].seen && m->rank[i].status.saved > best)
            best = m->rank[i].status.saved;
    return best;
}

double monitor_loss(const struct monitor *m)
{
    return m->rank[0].seen ? m->rank[0].status.loss : NAN;
}

double monitor_step_seconds(const struct monitor *m)
{
    int n = m->n_times < TIMES ? m->n_times : TIMES;

    return n ? quantile(m->times, n, 0.5) / 1e9 : 0;
}

double monitor_load_seconds(const struct monitor *m)
{
    return (double)m->load_ns / 1e9;
}

bool monitor_saving(const struct monitor *m)
{
    for (int i = 0; i < m->world; i++)
        if (m->rank[i].seen && m->rank[i].status.phase == HEARTBEAT_SAVE)
            return true;
    return false;
}

bool monitor_present(const struct monitor *m, int rank, struct heartbeat_status *status)
{
    if (rank < 0 || rank >= m->world || !m->rank[rank].seen)
        return false;
    *status = m->rank[rank].status;
    return true;
}
