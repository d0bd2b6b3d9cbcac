/* orchestrator/run_watch.c - see run_state.h: INIT, TRAIN, SAVE: reads the reports of the ranks and
 * acts on them. */
#include <math.h>
#include <stdlib.h>

#include "core/clock.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"

enum { STATES_READ_MAX = 64 }; /* most ranks whose process state is read at a check */

static const int64_t SILENCE_NS =
    1000000000; /* the process state is read after a rank was silent for this time */
static const double LEARN_EVERY_S = 1;

struct run_watch {
    struct monitor *monitor; /* NULL: no ranks */
    double saved_at;         /* when the newest checkpoint was begun, as far as is known */
    double saving_since;     /* when the current save began, 0: none */
    double next_learn;
    bool outlived_init;
};

tp_status run_watch_open(struct run *r)
{
    r->watch = calloc(1, sizeof *r->watch);
    return r->watch ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

void run_watch_forget(struct run *r)
{
    monitor_free(r->watch->monitor);
    r->watch->monitor = NULL;
}

void run_watch_close(struct run *r)
{
    if (r->watch)
        run_watch_forget(r);
    free(r->watch);
    r->watch = NULL;
}

const struct monitor *run_monitor(const struct run *r)
{
    return r->watch ? r->watch->monitor : NULL;
}

double run_saved_at(const struct run *r)
{
    return r->watch->saved_at;
}

bool run_outlived_init(const struct run *r)
{
    return r->watch->outlived_init;
}

void run_watch_hold(struct run *r)
{
    monitor_hold(r->watch->monitor, clock_ns());
}

tp_status run_watch_begin(struct run *r)
{
    const struct job *j = r->job;
    double prior = step_times_longest(&r->record.findings.times);
    const struct monitor_limits limits = { .floor_ns = (int64_t)(j->watch.floor * 1e9),
                                           .init_ns = (int64_t)(j->watch.init * 1e9),
                                           .save_ns = (int64_t)(j->watch.save * 1e9),
                                           .saves_wait = run_root_is_in_store(r),
                                           .factor = j->watch.factor,
                                           .slow = j->watch.slow,
                                           .jump = j->watch.jump,
                                           .slow_steps = j->watch.slow_steps,
                                           .prior_ns = (int64_t)(prior * 1e9),
                                           .loss_known = r->record.loss_known };

    run_watch_forget(r);
    *r->watch = (struct run_watch){ .monitor = monitor_new(r->attempt.world, &limits, clock_ns()),
                                    .saved_at = clock_seconds(),
                                    .next_learn = r->watch->next_learn };
    if (!r->watch->monitor)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for the monitor");
    for (int i = 0; i < r->attempt.world; i++)
        monitor_set_stage(r->watch->monitor, i, mesh_coord_of(&r->record.config.spec, i).pp);
    return TP_OK;
}

/* ---- reading ---- */

/* Pass rank 0's losses of all steps since the last check to the monitor. A file without a history
 * has only the last loss, and the first one that was not finite. */
static void read_losses(struct run *r, int fd, const struct heartbeat_status *status)
{
    struct monitor *m = r->watch->monitor;
    struct heartbeat_loss e[HEARTBEAT_HISTORY];
    int n = heartbeat_losses(e, HEARTBEAT_HISTORY, fd, status, monitor_last_loss_step(m));

    if (status->bad_step > 0 && (n == 0 || e[0].step > status->bad_step))
        monitor_add_loss(m, status->bad_step, NAN); /* the history does not go back to this step */
    for (int i = 0; i < n; i++)
        monitor_add_loss(m, e[i].step, e[i].loss);
    if (n == 0)
        monitor_add_loss(m, status->step, status->loss);
}

/* After the first heartbeat of a rank on this host: watch its process. */
static void watch_process(struct run *r, int rank, const struct heartbeat_status *status)
{
    int fd = r->backend.table->has_relays ? -1 : attempt_open_rank(&r->attempt, rank, status);

    if (fd >= 0)
        run_watch_fd(r, fd);
}

static void read_heartbeat(struct run *r, int rank, int fd, int64_t now)
{
    struct monitor *m = r->watch->monitor;
    const struct attempt_rank *k = &r->attempt.rank[rank];
    struct heartbeat_status status;
    struct tp_err ignored;
    char state = 0;

    if (heartbeat_read(&status, fd, rank, &ignored))
        return;
    r->record.reports = true;
    watch_process(r, rank, &status);
    if (rank < STATES_READ_MAX && k->pid && !k->gone && monitor_silence(m, rank, now) > SILENCE_NS)
        state = process_state(k->pid);
    monitor_feed(m, rank, &status, state, now);
    if (rank == 0)
        read_losses(r, fd, &status);
}

void run_watch_read(struct run *r)
{
    struct attempt *a = &r->attempt;
    int64_t now = clock_ns();

    for (int i = 0; i < a->world; i++) {
        int fd = attempt_beats(a, i);

        if (fd < 0)
            continue;
        read_heartbeat(r, i, fd, now);
        attempt_end_beats(a, i);
    }
}

/* ---- acting ---- */

static void remember_step_time(struct run *r)
{
    double seconds = monitor_step_seconds(r->watch->monitor);

    if (seconds > 0)
        step_times_set(&r->record.findings.times, &r->record.config, seconds);
}

/* Every rank has done a step. */
static tp_status all_train(struct run *r)
{
    struct run_record *b = &r->record;
    const struct monitor *m = r->watch->monitor;
    double now = clock_seconds();
    double took = now - (b->fault_at > 0 ? b->fault_at : r->attempt.launched_at);
    json_t *more = json_pack("{s:f,s:b,s:I}", "seconds", took, "after_fault", b->fault_at > 0,
                             "resumed_at", (json_int_t)b->resumed_at);

    run_time(r, TIME_TRAINING);
    run_gpus_learn(r, true);
    run_gpus_describe(r, more);
    run_event(r, EVENT_TRAINING, REASON_NONE, NULL, more);
    if (b->fault_at > 0) {
        b->fault_seconds = took;
        b->fault_steps = b->best_at_launch - (b->resumed_at > 0 ? b->resumed_at : 0);
        b->fault_steps = b->fault_steps > 0 ? b->fault_steps : 0;
    }
    if (b->attempt > 1)
        b->restart_seconds = b->restart_seconds > 0 ? (b->restart_seconds + took) / 2 : took;
    if (run_reads_other_layout(r) && monitor_load_seconds(m) > 0)
        b->load_rate = (double)run_selected_checkpoint(r)->bytes / monitor_load_seconds(m);
    b->fault_at = 0;
    return run_transition(r, RUN_TRAIN, "every rank trains");
}

/* Report a checkpoint that was committed since the last check. */
static void see_save(struct run *r)
{
    int64_t saved = monitor_saved(r->watch->monitor);

    if (saved <= r->record.saved)
        return;
    r->record.saved = saved;
    run_event(r, EVENT_SAVE, REASON_NONE, NULL, json_pack("{s:I}", "step", (json_int_t)saved));
}

static tp_status follow_saves(struct run *r)
{
    struct run_watch *w = r->watch;
    bool saving = monitor_saving(w->monitor);
    int64_t before = r->record.saved;
    double now = clock_seconds();

    if (saving && w->saving_since <= 0)
        w->saving_since = now;
    see_save(r);
    if (r->record.saved > before) {
        w->saved_at = w->saving_since > 0 ? w->saving_since : now;
        run_time_flush(r); /* time before a save does not change any more */
    }
    if (!saving && monitor_saved(w->monitor) >= r->record.saved)
        w->saving_since = 0;
    if (saving == (r->record.state == RUN_SAVE))
        return TP_OK;
    run_time(r, saving ? TIME_SAVING : TIME_TRAINING);
    return run_transition(r, saving ? RUN_SAVE : RUN_TRAIN, saving ? "ranks save" : "saved");
}

/* Only the exit of a program is watched if it is not tp-train and has never reported. It has no
 * deadline, and counts as making progress because it has run for so long. */
static tp_status watch_by_exit(struct run *r)
{
    run_watch_hold(r);
    if (r->watch->outlived_init)
        return TP_OK;
    r->watch->outlived_init = true;
    r->record.fails_in_row = 0;
    r->record.fault_at = 0;
    run_time(r, TIME_TRAINING);
    run_event(r, EVENT_TRAINING, REASON_UNREPORTED,
              "no rank reports its progress (libtp-progress): watched by its exit only",
              json_pack("{s:f}", "seconds", clock_seconds() - r->attempt.launched_at));
    return run_transition(r, RUN_TRAIN, "watched by its exit only");
}

static struct attempt_fault fault_of(const struct run *r, const struct monitor_verdict *v)
{
    bool hang = v->kind == MONITOR_HANG;
    enum event_reason reason = !hang         ? REASON_LOSS_NOT_FINITE
                               : v->rank < 0 ? REASON_RANKS_STUCK
                               : v->started  ? REASON_RANK_STUCK
                                             : REASON_RANK_NOT_STARTED;
    struct attempt_fault f = attempt_fault(hang ? FAULT_HANG : FAULT_LOSS, reason, "%s", v->text);

    f.rank = v->rank;
    f.node = v->rank >= 0 ? r->attempt.rank[v->rank].node : NULL;
    f.step = v->step;
    f.waited = (double)v->waited_ns / 1e9;
    return f;
}

static void report_slowdown(struct run *r, const struct monitor_verdict *v)
{
    static const enum event_reason reasons[] = { [PACE_RANK] = REASON_RANK_SLOW,
                                                 [PACE_COMPUTE] = REASON_COMPUTE_SLOWER,
                                                 [PACE_PROCESSOR] = REASON_PROCESSORS_BUSY,
                                                 [PACE_COLLECTIVES] = REASON_COLLECTIVES_SLOWER };

    run_event(r, EVENT_SLOWDOWN, reasons[v->part], v->text,
              json_pack("{s:i,s:f}", "rank", v->rank, "times", v->value));
}

static tp_status act(struct run *r, const struct monitor_verdict *v)
{
    const struct attempt_fault f = fault_of(r, v);

    switch (v->kind) {
    case MONITOR_HANG:
        if (!r->job->is_tp_train && !r->record.reports)
            return watch_by_exit(r);
        return backend_explains_silence(&r->backend) ? TP_OK : run_drain_fault(r, &f);
    case MONITOR_SLOW:
        run_event(r, EVENT_SLOW, REASON_RANK_SLOW, v->text,
                  json_pack("{s:i,s:f}", "rank", v->rank, "times", v->value));
        return TP_OK;
    case MONITOR_SLOWDOWN:
        report_slowdown(r, v);
        return TP_OK;
    case MONITOR_JUMP:
        run_event(r, EVENT_LOSS_JUMP, REASON_LOSS_JUMPED, v->text,
                  json_pack("{s:f}", "loss", v->value));
        return TP_OK;
    case MONITOR_NAN:
        if (r->job->watch.on_nan != JOB_NAN_IGNORE)
            return run_drain_fault(r, &f);
        run_event(r, EVENT_NAN, REASON_LOSS_NOT_FINITE, v->text,
                  json_pack("{s:I}", "at_step", (json_int_t)v->step));
        return TP_OK;
    default:
        return TP_OK;
    }
}

static tp_status learn(struct run *r)
{
    struct run_record *b = &r->record;
    const struct monitor *m = r->watch->monitor;
    int64_t best = monitor_best_step(m);
    double now = clock_seconds();

    run_loss_point(r, best, monitor_loss(m));
    if (best > b->best_step) {
        b->best_step = best;
        b->fails_in_row = 0;
    }
    if (now < r->watch->next_learn)
        return TP_OK;
    r->watch->next_learn = now + LEARN_EVERY_S;
    remember_step_time(r);
    return b->state == RUN_TRAIN ? run_rescale_consider(r) : TP_OK;
}

tp_status run_watch_tick(struct run *r)
{
    struct monitor *m = r->watch->monitor;
    struct monitor_verdict v;
    tp_status st = TP_OK;

    run_watch_read(r);
    if (backend_is_paused(&r->backend)) {
        run_relays_hold(r);
        run_watch_hold(r);
        return TP_OK;
    }
    if (r->record.state == RUN_INIT && monitor_step(m) >= 0)
        st = all_train(r);
    if (st == TP_OK && r->record.state != RUN_INIT)
        st = follow_saves(r);
    if (st == TP_OK)
        st = run_relays_tick(r);
    if (st || r->record.state == RUN_DRAIN)
        return st;
    monitor_judge(m, &v, clock_ns());
    st = act(r, &v);
    if (st == TP_OK && r->record.state != RUN_DRAIN && r->record.state != RUN_INIT)
        st = learn(r);
    return st;
}

/* Whether this hang ends a job that was asked to save and stop. A program other than tp-train may
 * save without a word, so only a process that the kernel shows as stopped is certain. */
static bool ends_drain(const struct run *r, const struct monitor_verdict *v)
{
    if (v->kind != MONITOR_HANG || !r->record.reports)
        return false;
    return v->stopped || r->job->is_tp_train || v->phase == HEARTBEAT_SAVE ||
           v->phase == HEARTBEAT_DRAIN;
}

tp_status run_watch_drain(struct run *r)
{
    struct monitor_verdict v;
    struct attempt_fault f;

    if (!r->watch->monitor)
        return TP_OK;
    run_watch_read(r);
    if (backend_is_paused(&r->backend)) {
        run_watch_hold(r);
        return TP_OK;
    }
    see_save(r);
    monitor_judge(r->watch->monitor, &v, clock_ns());
    if (!ends_drain(r, &v) || backend_explains_silence(&r->backend))
        return TP_OK;
    f = fault_of(r, &v);
    return run_drain_fault(r, &f);
}

void run_watch_last(struct run *r)
{
    const struct monitor *m = r->watch->monitor;
    struct run_record *b = &r->record;

    if (!m)
        return;
    run_watch_read(r);
    remember_step_time(r);
    run_gpus_learn(r, false);
    if (monitor_best_step(m) > b->best_step)
        b->best_step = monitor_best_step(m);
    run_loss_point(r, monitor_best_step(m), monitor_loss(m));
    b->loss_known = b->loss_known || !isnan(monitor_loss(m));
    see_save(r);
}
