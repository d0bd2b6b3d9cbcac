/* orchestrator/run_watch.c - INIT, TRAIN, SAVE: what ranks tell, and what follows from it. */
#include <math.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"

enum { STATES_LOOKED_AT = 64 }; /* ranks whose process state is read at a look */

static const int64_t SILENCE_NS = 1000000000; /* it is read once a rank was silent for so long */

/* First sight of a rank: hold on to its process. */
static void meet(struct run *r, int rank, const struct heartbeat_status *slot)
{
    struct run_rank *k = &r->ranks[rank];
    int fd;

    if (k->pid || k->gone || r->job->backend == &SLURM_JOB_BACKEND)
        return;
    k->pid = (pid_t)slot->pid;
    fd = process_pidfd(k->pid);
    if (fd >= 0 && process_start(k->pid) == slot->pid_start && run_watch_fd(r, fd) == 0)
        k->pidfd = fd;
    else if (fd >= 0)
        close(fd);
}

/* Rank 0's losses since the last look, every step's. A slot without a history (a copy from another
 * node) gives the last one, and the first that was not finite. */
static void hear_losses(struct run *r, const char *path, const struct heartbeat_status *slot)
{
    struct heartbeat_loss e[HEARTBEAT_HISTORY];
    int n = heartbeat_losses(e, HEARTBEAT_HISTORY, path, slot, monitor_heard(r->monitor));

    if (slot->bad_step > 0 && (n == 0 || e[0].step > slot->bad_step))
        monitor_loss_of(r->monitor, slot->bad_step, NAN); /* the history does not reach so far */
    for (int i = 0; i < n; i++)
        monitor_loss_of(r->monitor, e[i].step, e[i].loss);
    if (n == 0)
        monitor_loss_of(r->monitor, slot->step, slot->loss);
}

static void look(struct run *r)
{
    int64_t now = clock_ns();

    for (int i = 0; i < r->world; i++) {
        struct heartbeat_status slot;
        struct tp_err ignored;
        char path[PATH_MAX];
        char state = 0;

        if (heartbeat_read(&slot, heartbeat_path(path, sizeof path, r->slots, i), i, &ignored))
            continue;
        r->book.reports = true;
        meet(r, i, &slot);
        if (r->ranks[i].pid && i < STATES_LOOKED_AT &&
            monitor_silence(r->monitor, i, now) > SILENCE_NS)
            state = process_state(r->ranks[i].pid);
        monitor_feed(r->monitor, i, &slot, state, now);
        if (i == 0)
            hear_losses(r, path, &slot);
    }
}

static void remember_time(struct run *r)
{
    struct run_record *b = &r->book;
    double seconds = monitor_step_seconds(r->monitor);
    char way[RUN_CONFIG_TEXT_MAX];
    int i = 0;

    if (seconds <= 0)
        return;
    run_config_format(way, &b->way);
    while (i < b->n_measured && strcmp(b->measured[i].way, way) != 0)
        i++;
    if (i == RUN_RECORD_MEASURED_MAX)
        return;
    b->n_measured += i == b->n_measured;
    snprintf(b->measured[i].way, RUN_CONFIG_TEXT_MAX, "%s", way);
    b->measured[i].seconds = seconds;
}

/* Every rank has done a step. */
static tp_status all_train(struct run *r)
{
    struct run_record *b = &r->book;
    double now = run_now(), from = b->fault_at > 0 ? b->fault_at : r->launched_at;

    time_account_switch(r->ledger, TIME_TRAINING, now);
    run_event(r, "training",
              json_pack("{s:f,s:b,s:I}", "seconds", now - from, "after_fault", b->fault_at > 0,
                        "resumed_at", (json_int_t)b->resumed_at));
    if (b->attempt > 1)
        b->restart_seconds =
            b->restart_seconds > 0 ? (b->restart_seconds + now - from) / 2 : now - from;
    if (r->crosses && monitor_load_seconds(r->monitor) > 0)
        b->load_rate = (double)r->choice.bytes / monitor_load_seconds(r->monitor);
    b->fault_at = 0;
    return run_transition(r, RUN_TRAIN, "every rank trains");
}

static tp_status follow_saves(struct run *r)
{
    bool saving = monitor_saving(r->monitor);
    int64_t saved = monitor_saved(r->monitor);
    double now = run_now();

    if (saving && r->saving_since <= 0)
        r->saving_since = now;
    if (saved > r->book.saved) {
        r->book.saved = saved;
        r->saved_at = r->saving_since > 0 ? r->saving_since : now;
        run_event(r, "save", json_pack("{s:I}", "step", (json_int_t)saved));
        time_account_flush(r->ledger); /* what lies before a save is not divided anew */
    }
    if (!saving)
        r->saving_since = saved >= r->book.saved ? 0 : r->saving_since;
    if (saving == (r->book.state == RUN_SAVE))
        return TP_OK;
    time_account_switch(r->ledger, saving ? TIME_SAVING : TIME_TRAINING, now);
    return run_transition(r, saving ? RUN_SAVE : RUN_TRAIN, saving ? "ranks save" : "saved");
}

/* A trainer that is not ours and has never told anything is watched by its exit alone: there is no
 * deadline, and to have lived so long counts as a start that got somewhere. */
static tp_status watch_by_exit(struct run *r)
{
    monitor_hold(r->monitor, clock_ns());
    if (r->lived)
        return TP_OK;
    r->lived = true;
    r->book.fails_in_row = 0;
    r->book.fault_at = 0;
    time_account_switch(r->ledger, TIME_TRAINING, run_now());
    run_event(
        r, "training",
        json_pack("{s:f,s:s}", "seconds", run_now() - r->launched_at, "reason",
                  "no rank reports its progress (libtp-progress): watched by its exit alone"));
    return run_transition(r, RUN_TRAIN, "watched by its exit alone");
}

static tp_status act(struct run *r, const struct monitor_verdict *v)
{
    struct run_fault f = { .kind = FAULT_HANG,
                           .rank = v->rank,
                           .node = v->rank >= 0 ? r->ranks[v->rank].node : -1,
                           .step = v->step,
                           .waited = (double)v->waited_ns / 1e9 };

    snprintf(f.reason, sizeof f.reason, "%s", v->text);
    switch (v->what) {
    case MONITOR_HANG:
        if (!r->job->is_tp_train && !r->book.reports)
            return watch_by_exit(r);
        return run_slurm_excuses(r) ? TP_OK : run_drain_fault(r, &f);
    case MONITOR_SLOW:
        run_event(
            r, "slow",
            json_pack("{s:i,s:f,s:s}", "rank", v->rank, "times", v->value, "reason", v->text));
        return TP_OK;
    case MONITOR_JUMP:
        run_event(r, "loss_jump", json_pack("{s:f,s:s}", "loss", v->value, "reason", v->text));
        return TP_OK;
    case MONITOR_NAN:
        f.kind = FAULT_NAN;
        if (r->job->watch.on_nan != JOB_NAN_IGNORE)
            return run_drain_fault(r, &f);
        run_event(r, "nan", json_pack("{s:s}", "reason", v->text));
        return TP_OK;
    default:
        return TP_OK;
    }
}

static tp_status learn(struct run *r)
{
    struct run_record *b = &r->book;
    int64_t best = monitor_best_step(r->monitor);
    double now = run_now();

    time_account_loss(r->ledger, b->attempt, best, monitor_loss(r->monitor));
    if (best > b->best_step) {
        b->best_step = best;
        b->fails_in_row = 0;
    }
    if (now < r->next_scale_look)
        return TP_OK;
    r->next_scale_look = now + 1;
    remember_time(r);
    return r->book.state == RUN_TRAIN ? run_scale_consider(r) : TP_OK;
}

tp_status run_watch_tick(struct run *r)
{
    struct monitor_verdict v;
    tp_status st = TP_OK;

    look(r);
    if (run_slurm_is_paused(r)) {
        run_beats_stand_by(r);
        return TP_OK;
    }
    if (r->book.state == RUN_INIT && monitor_step(r->monitor) >= 0)
        st = all_train(r);
    if (st == TP_OK && r->book.state != RUN_INIT)
        st = follow_saves(r);
    if (st == TP_OK)
        st = run_beats_check(r);
    if (st || r->book.state == RUN_DRAIN)
        return st;
    monitor_judge(r->monitor, &v, clock_ns());
    st = act(r, &v);
    if (st == TP_OK && r->book.state != RUN_DRAIN && r->book.state != RUN_INIT)
        st = learn(r);
    return st;
}

void run_watch_last(struct run *r)
{
    int64_t saved;

    look(r);
    remember_time(r);
    if (monitor_best_step(r->monitor) > r->book.best_step)
        r->book.best_step = monitor_best_step(r->monitor);
    time_account_loss(r->ledger, r->book.attempt, monitor_best_step(r->monitor),
                      monitor_loss(r->monitor));
    r->book.loss_known = r->book.loss_known || monitor_loss(r->monitor) == monitor_loss(r->monitor);
    if ((saved = monitor_saved(r->monitor)) > r->book.saved) {
        r->book.saved = saved;
        run_event(r, "save", json_pack("{s:I}", "step", (json_int_t)saved));
    }
}

tp_status run_rank_gone(struct run *r, int rank)
{
    struct run_rank *k = &r->ranks[rank];
    struct heartbeat_status slot;
    struct run_fault f = { .kind = FAULT_RANK, .rank = rank, .node = k->node };

    close(k->pidfd);
    k->pidfd = -1;
    k->gone = true;
    if (r->book.state != RUN_INIT && r->book.state != RUN_TRAIN && r->book.state != RUN_SAVE)
        return TP_OK;
    look(r);
    if (monitor_present(r->monitor, rank, &slot) && slot.phase == HEARTBEAT_DONE)
        return TP_OK;
    f.step = monitor_best_step(r->monitor);
    snprintf(f.reason, sizeof f.reason, "rank %d is gone (pid %d)", rank, (int)k->pid);
    return run_drain_fault(r, &f);
}
