/* orchestrator/run_diagnose.c - DIAGNOSE: what ended an attempt, and what comes next. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/epoch.h"
#include "core/file.h"
#include "core/text.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"
#include "orchestrator/watch/log_tail.h"

static const double STUCK_S = 5; /* who is alive so long after SIGKILL will not go soon */

enum { TAIL_BYTES = 16384 };

void run_forget_attempt(struct run *r)
{
    struct tp_err ignored;

    for (int i = 0; r->ranks && i < r->world; i++)
        if (r->ranks[i].pidfd >= 0)
            close(r->ranks[i].pidfd);
    free(r->ranks);
    r->ranks = NULL;
    r->world = 0;
    monitor_free(r->monitor);
    r->monitor = NULL;
    if (r->keeper_pidfd >= 0)
        close(r->keeper_pidfd);
    r->keeper_pidfd = -1;
    r->keeper = 0;
    if (r->slots[0] && !r->book.open && r->job->backend != &SLURM_JOB_BACKEND)
        file_remove_tree(r->slots, &ignored);
}

/* The end of the attempt's log, 0-terminated; malloc'ed, NULL when there is none. */
static char *log_tail(const struct run *r)
{
    char *text = calloc(1, TAIL_BYTES + 1);
    int fd = open(r->log, O_RDONLY | O_CLOEXEC);
    struct stat sb;
    off_t from =
        fd >= 0 && fstat(fd, &sb) == 0 && sb.st_size > TAIL_BYTES ? sb.st_size - TAIL_BYTES : 0;

    if (!text || fd < 0 || pread(fd, text, TAIL_BYTES, from) < 0) {
        free(text);
        text = NULL;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

/* Slurm's own words about a node that it cannot reach: that node is lost. */
static void look_for_lost_node(struct run *r, const char *tail)
{
    static const char *const words[] = { "failed on node ", "Node failure on " };

    for (size_t k = 0; tail && k < sizeof words / sizeof words[0]; k++)
        for (int i = 0; i < r->job->n_nodes; i++) {
            const char *name = r->job->nodes[i].name, *at = strstr(tail, words[k]);

            if (!at || r->book.nodes[i].down ||
                strncmp(at + strlen(words[k]), name, strlen(name)) != 0)
                continue;
            r->book.nodes[i].down = true;
            run_event(
                r, "node_lost",
                json_pack("{s:s,s:s}", "node", name, "reason", "Slurm cannot start ranks on it"));
        }
}

/* srun did not get to start anything because Slurm does not answer: nobody's fault, and nothing
 * that the budgets are for. What it said last is often misleading ("invalid job"). */
static bool is_slurm_away(struct run *r)
{
    char *tail =
        r->book.best_step <= r->book.best_at_launch && r->job->backend == &SLURM_JOB_BACKEND
            ? log_tail(r)
            : NULL;
    bool away = tail && slurm_kept_step(tail);

    free(tail);
    return away;
}

/* What ended the attempt, in r->fault, if nothing else did. */
static void explain_exit(struct run *r)
{
    struct run_fault *f = &r->fault;
    char line[300], how[64];
    char *tail = log_tail(r);
    int rank = log_tail_rank(tail, line, sizeof line);

    text_clean(line);
    if (r->job->backend == &SLURM_JOB_BACKEND)
        look_for_lost_node(r, tail);
    free(tail);
    if (r->outcome.signal)
        snprintf(how, sizeof how, "signal %d", r->outcome.signal);
    else
        snprintf(how, sizeof how, "exit code %d", r->outcome.exit_code);
    if (f->kind == FAULT_NONE) {
        *f = (struct run_fault){ .kind = FAULT_EXIT, .rank = -1, .node = -1 };
        snprintf(f->reason, sizeof f->reason, "the command ended with %s", how);
    }
    if (f->kind != FAULT_RANK && f->kind != FAULT_EXIT)
        return;
    if (rank >= 0 && rank < r->world) {
        f->rank = rank;
        f->node = r->ranks[rank].node;
    }
    if (line[0])
        snprintf(f->reason, sizeof f->reason, "%s: %.250s", how, line);
    text_clean(f->reason);
    f->step = r->monitor ? monitor_best_step(r->monitor) : -1;
    run_event(r, "rank_exit",
              json_pack("{s:i,s:s,s:s,s:i,s:i}", "rank", f->rank, "node",
                        f->node >= 0 ? r->job->nodes[f->node].name : "", "reason", f->reason,
                        "exit_code", r->outcome.exit_code, "signal", r->outcome.signal));
}

/* Faults are held against the node; after some it is left out for a while. */
static void blame_node(struct run *r)
{
    const struct run_fault *f = &r->fault;
    struct run_node *n = f->node >= 0 ? &r->book.nodes[f->node] : NULL;

    if (!n || n->down || (f->kind != FAULT_RANK && f->kind != FAULT_HANG && f->kind != FAULT_EXIT))
        return;
    if (++n->blame < r->job->restart.blame)
        return;
    n->blame = 0;
    n->excluded_to = run_now() + r->job->restart.exclude_for;
    n->back_since = n->excluded_to;
    if (r->job->backend == &SLURM_JOB_BACKEND && slurm_options(r->job)->drain)
        run_slurm_drain(r, f->node, f->reason);
    run_event(r, "node_lost",
              json_pack("{s:s,s:s,s:f}", "node", r->job->nodes[f->node].name, "reason",
                        "excluded after repeated faults", "seconds", r->job->restart.exclude_for));
}

static tp_status give_up(struct run *r, const char *why)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%.160s; the last: %.400s (log: %.300s)", why, r->fault.reason,
             r->log);
    run_finish(r, RUN_FAILED, TP_E_COMM, text);
    return TP_OK;
}

/* Whether the budgets allow one more start; if not, it is over. */
static bool may_restart(struct run *r)
{
    struct run_record *b = &r->book;
    double now = run_now();
    char text[160];
    int kept = 0;

    for (int i = 0; i < b->n_restarts; i++)
        if (now - b->restarts[i] < r->job->restart.within)
            b->restarts[kept++] = b->restarts[i];
    b->n_restarts = kept;
    if (b->fails_in_row >= r->job->restart.no_progress) {
        snprintf(text, sizeof text, "%lld starts in a row without a step",
                 (long long)b->fails_in_row);
        if (b->best_step >= 0)
            snprintf(text, sizeof text, "%lld starts in a row without a step beyond %lld",
                     (long long)b->fails_in_row, (long long)b->best_step);
        give_up(r, text);
        return false;
    }
    if (kept >= r->job->restart.max || kept == RUN_RECORD_RESTARTS_MAX) {
        snprintf(text, sizeof text, "%d restarts within %.0f s", kept, r->job->restart.within);
        give_up(r, text);
        return false;
    }
    b->restarts[b->n_restarts++] = now;
    return true;
}

/* A loss that is not finite: what was saved after the last good step is of no use. */
static tp_status after_nan(struct run *r)
{
    struct checkpoint_selection c;
    int64_t at = r->fault.step;

    if (r->job->watch.on_nan == JOB_NAN_STOP)
        return give_up(r, "the loss is not finite and watch.nan is stop");
    if (r->book.nan_step == at)
        return give_up(r, "the loss is not finite at the same step again");
    r->book.nan_step = at;
    while (r->job->checkpoints == JOB_CKPT_TP &&
           checkpoint_find(&c, r->job->ckpt, &r->err) == TP_OK && c.step >= at) {
        char to[PATH_MAX];

        if (checkpoint_quarantine(to, &c, r->job->ckpt, &r->err))
            return r->err.status;
        run_event(r, "quarantine",
                  json_pack("{s:I,s:s,s:s}", "step", (json_int_t)c.step, "reason",
                            "saved after the loss was not finite", "to", text_clean(to)));
    }
    return TP_OK;
}

/* Another job has claimed the checkpoint root: this one must not go on. */
static bool is_fenced(struct run *r)
{
    struct tp_err ignored;
    int64_t newest = 0;
    char text[200];

    if (r->job->checkpoints != JOB_CKPT_TP || ckpt_epoch(&newest, r->job->ckpt, &ignored) ||
        newest <= r->book.epoch)
        return false;
    snprintf(text, sizeof text, "a newer job (epoch %lld, ours was %lld) owns the checkpoint root",
             (long long)newest, (long long)r->book.epoch);
    give_up(r, text);
    return true;
}

/* Once more, if the budgets allow, at once or after a back-off. */
static tp_status start_again(struct run *r)
{
    struct run_record *b = &r->book;

    if (!may_restart(r))
        return TP_OK;
    if (b->fails_in_row > 1) {
        double wait = r->job->restart.backoff;

        for (int64_t i = 2; i < b->fails_in_row && wait < r->job->restart.backoff_max; i++)
            wait *= 2;
        r->wait_until =
            run_now() + (wait < r->job->restart.backoff_max ? wait : r->job->restart.backoff_max);
    }
    run_event(r, "restart",
              json_pack("{s:s,s:I,s:f}", "reason", r->fault.reason, "fails_in_row",
                        (json_int_t)b->fails_in_row, "backoff",
                        r->wait_until > 0 ? r->wait_until - run_now() : 0.0));
    return run_plan_begin(r);
}

static tp_status restart_after_fault(struct run *r)
{
    struct run_record *b = &r->book;
    bool trained = r->lived || b->best_step > b->best_at_launch;
    tp_status st = TP_OK;

    if (!trained && r->choice.step >= 0 && r->fault.kind == FAULT_EXIT &&
        r->outcome.exit_code == tp_exit_code(TP_E_CORRUPT))
        st = run_bad_checkpoint(r, &r->choice, "an attempt could not load it");
    if (st == TP_OK && r->fault.kind == FAULT_NAN)
        st = after_nan(r);
    if (st || r->over)
        return st;
    b->fails_in_row = trained ? 0 : b->fails_in_row + 1;
    blame_node(r);
    return start_again(r);
}

tp_status run_retry(struct run *r)
{
    r->book.fails_in_row++;
    return start_again(r);
}

/* srun ends with 0 also when it could not start its step (22.05: "aborted before step completely
 * launched"): then nothing is done. */
static bool never_ran(struct run *r)
{
    char *tail = r->job->backend == &SLURM_JOB_BACKEND ? log_tail(r) : NULL;
    bool aborted = tail && strstr(tail, "aborted before step completely launched");

    free(tail);
    return aborted;
}

static tp_status decide(struct run *r)
{
    struct run_record *b = &r->book;
    const struct supervisor_outcome *o = &r->outcome;
    bool soft = r->fault.kind == FAULT_NONE || r->fault.kind == FAULT_RANK;

    if (soft && o->started && o->exit_code == 0 && !o->signal && !never_ran(r)) {
        run_finish(r, RUN_DONE, TP_OK, "all steps are done");
        return TP_OK;
    }
    if (is_fenced(r))
        return TP_OK;
    if (run_slurm_is_ending(r) && !b->stop)
        return run_slurm_hand_over(r, r->slurm->why);
    if (soft && o->exit_code == 75 && b->new_layout && !b->stop)
        return run_plan_begin(r);
    if (soft && o->exit_code == 75 && !b->stop && r->slurm) { /* who asked it to? */
        enum slurm_fate fate = run_slurm_fate(r);

        b->fault_at = 0;
        if (fate == SLURM_TAKEN)
            return run_slurm_hand_over(r, r->slurm->why);
        r->slurm->must_look = fate == SLURM_GONE;
        if (fate == SLURM_GONE) /* the plan finds out in which way */
            return run_plan_begin(r);
    }
    if ((soft && o->exit_code == 75) || b->stop) {
        run_finish(r, RUN_STOPPED, TP_E_STOPPED,
                   o->exit_code == 75 ? "saved and stopped" : "stopped; it had not saved");
        return TP_OK;
    }
    if (!o->started) {
        char text[TP_ERR_MAX];

        snprintf(text, sizeof text, "%.400s: cannot be executed: %s", r->job->command.word[0],
                 strerror(o->exit_code));
        run_finish(r, RUN_FAILED, TP_E_USAGE, text);
        return TP_OK;
    }
    if (r->fault.kind == FAULT_NODE && b->new_layout)
        b->new_layout = false;
    if (r->fault.kind == FAULT_NONE && is_slurm_away(r)) {
        run_slurm_tell_away(r, "srun could not start the ranks");
        return run_plan_begin(r); /* which waits until it answers */
    }
    explain_exit(r);
    if (soft && o->exit_code == 2 && !r->lived &&
        b->best_step <= b->best_at_launch) /* rank or launcher first */
        return give_up(r, "the command line is refused");
    return restart_after_fault(r);
}

/* Processes of the attempt are left though all were sent SIGKILL (their keeper may have been
 * killed, and they go now). Those that stay wait in the kernel, uninterruptibly: their node is of
 * no use, and the job goes on without it. When they do come back they die, and the epoch keeps them
 * from committing anything before. */
static bool are_stuck(struct run *r, double now)
{
    char text[120];

    if (r->stuck_since <= 0)
        r->stuck_since = now;
    if (now - r->stuck_since < STUCK_S)
        return false;
    for (int i = 0; r->ranks && i < r->world; i++) {
        int node = r->ranks[i].node;

        if (r->ranks[i].pid == 0 || process_start(r->ranks[i].pid) == 0 ||
            process_state(r->ranks[i].pid) == 'Z' || r->book.nodes[node].down)
            continue;
        r->book.nodes[node].down = true;
        snprintf(text, sizeof text, "rank %d (pid %d) cannot be killed: its state is %c", i,
                 (int)r->ranks[i].pid, process_state(r->ranks[i].pid));
        run_event(r, "node_lost",
                  json_pack("{s:s,s:s}", "node", r->job->nodes[node].name, "reason", text));
    }
    return true;
}

tp_status run_keeper_gone(struct run *r)
{
    char id[64];
    double now = run_now();
    bool planned = r->book.state == RUN_DRAIN && r->fault.kind == FAULT_NONE;
    tp_status st;

    run_attempt_id(r, id);
    if (r->keeper_pidfd >= 0)
        close(r->keeper_pidfd); /* leaves epoll too */
    r->keeper_pidfd = -1;
    if (process_sweep(PROCESS_ID_ENV, id, SIGKILL) > 0 && !are_stuck(r, now)) {
        r->drain_until = now + 0.05;
        r->drain_killed = true;
        return r->book.state == RUN_DRAIN ? TP_OK
                                          : run_transition(r, RUN_DRAIN, "the keeper is gone");
    }
    if (r->monitor)
        run_watch_last(r);
    if (supervisor_read(&r->outcome, r->exit_path, &r->err)) {
        r->outcome = (struct supervisor_outcome){ .exit_code = -1, .started = 1 };
        if (r->fault.kind == FAULT_NONE) {
            r->fault = (struct run_fault){ .kind = FAULT_LOST, .rank = -1, .node = -1 };
            snprintf(r->fault.reason, sizeof r->fault.reason,
                     "the attempt ended without a word (its keeper was killed)");
        }
    }
    if (!planned && r->fault.kind == FAULT_NONE && r->book.fault_at <= 0 &&
        !(r->outcome.started && r->outcome.exit_code == 0))
        r->book.fault_at = now;
    if (r->book.state != RUN_DRAIN)
        time_account_fault(
            r->ledger, r->outcome.exit_code == 0 || r->outcome.exit_code == 75 ? now : r->saved_at,
            now, TIME_PLANNING, now);
    r->book.open = false;
    st = run_transition(r, RUN_DIAGNOSE, "ended");
    if (st == TP_OK)
        st = decide(r);
    if (r->over || r->book.state == RUN_PLAN)
        time_account_flush(r->ledger);
    return st;
}
