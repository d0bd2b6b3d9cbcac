/* orchestrator/run_drain.c - see run_state.h: DRAIN ends an attempt, softly or because of a fault.
 */
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"
#include "orchestrator/watch/log_tail.h"

/* After a rank has ended, the command gets time to end by itself and report why. When it is not
 * known how the rank has ended, programs other than tp-train may be ending as planned: they get
 * more time, until their launcher has named a rank at fault. */
static const double PATIENCE_TOLD_S = 0.5, PATIENCE_OTHER_S = 5;
static const double KILL_AGAIN_S = 2, LOOK_AGAIN_S = 0.05;
static const double STUCK_S =
    5; /* a process that lives this long after SIGKILL waits in the kernel */

struct run_drain {
    double until;       /* time of SIGKILL; 0: no attempt is being ended */
    bool asked;         /* the ranks were asked to save and stop */
    bool killed;        /* SIGKILL was sent */
    double stuck_since; /* since when processes remain; 0: none */
};

/* Relays get SIGUSR1 through the launcher, and translate it. */
int run_drain_signal(const struct run *r)
{
    return r->backend.table->has_relays ? SIGUSR1 : job_signal(r->job);
}

/* Ask the ranks to save and stop. */
static void ask(const struct run *r)
{
    r->drain->asked = true;
    supervisor_ask_to_stop(&r->attempt.supervisor, run_drain_signal(r));
}

tp_status run_drain_open(struct run *r)
{
    r->drain = calloc(1, sizeof *r->drain);
    return r->drain ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

void run_drain_reset(struct run *r)
{
    *r->drain = (struct run_drain){ 0 };
}

bool run_drain_obeyed(const struct run *r)
{
    return r->drain->asked && !r->drain->killed;
}

bool run_drain_hurry(struct run *r)
{
    if (r->record.state != RUN_DRAIN)
        return false;
    r->drain->until = clock_seconds();
    return true;
}

void run_drain_extend(struct run *r, double seconds)
{
    if (r->drain->until > clock_seconds() - seconds)
        r->drain->until += seconds;
}

void run_drain_ask_again(struct run *r)
{
    if (r->record.state == RUN_DRAIN && r->attempt.fault.kind == FAULT_NONE && !r->drain->killed)
        ask(r);
}

tp_status run_drain_softly(struct run *r, const char *reason, const char *message)
{
    tp_status st;

    if (r->record.state == RUN_DRAIN)
        return TP_OK;
    run_event_of_backend(r, event_name(EVENT_DRAIN), reason, message,
                         json_pack("{s:f}", "grace", r->job->grace));
    st = run_transition(r, RUN_DRAIN, "save and stop");
    run_time(r, TIME_STOPPING);
    r->drain->until = clock_seconds() + r->job->grace;
    ask(r);
    return st;
}

/* Whether an earlier tp-run has asked the ranks to save and stop. */
static bool was_asked(const struct run *r)
{
    return r->record.stop || r->record.relaunch;
}

void run_drain_recall(struct run *r)
{
    r->drain->asked =
        (r->record.state == RUN_DRAIN || r->record.state == RUN_DIAGNOSE) && was_asked(r);
}

tp_status run_drain_resume(struct run *r)
{
    bool softly = was_asked(r);

    r->drain->until = clock_seconds() + (softly ? r->job->grace : 0);
    if (softly)
        ask(r);
    return run_transition(r, RUN_DRAIN, "taken over");
}

/* Write STATE/attempt-N.stacks for people: where each rank is in the kernel. */
static void write_stacks(const struct run *r)
{
    static const char *const files[] = { "status", "wchan", "stack", "syscall" };
    const struct attempt *a = &r->attempt;
    char path[PATH_MAX];
    FILE *out;

    snprintf(path, sizeof path, "%.3900s/attempt-%04lld.stacks", r->job->state,
             (long long)r->record.attempt);
    out = fopen(path, "we");
    for (int i = 0; out && i < a->world; i++) {
        fprintf(out, "== rank %d, pid %d\n", i, (int)a->rank[i].pid);
        for (size_t k = 0; a->rank[i].pid && k < sizeof files / sizeof files[0]; k++) {
            char name[64], text[4096];
            size_t n;
            FILE *in;

            snprintf(name, sizeof name, "/proc/%d/%s", (int)a->rank[i].pid, files[k]);
            in = fopen(name, "re");
            n = in ? fread(text, 1, sizeof text, in) : 0;
            if (in)
                fclose(in);
            fprintf(out, "-- %s\n%.*s\n", files[k], (int)n, text);
        }
    }
    if (out)
        fclose(out);
}

static void report_fault(struct run *r, const struct attempt_fault *f)
{
    if (f->kind == FAULT_HANG) {
        run_event(r, EVENT_HANG, f->reason, f->message,
                  json_pack("{s:i,s:s,s:f}", "rank", f->rank, "node", f->node ? f->node->name : "",
                            "seconds", f->waited));
        write_stacks(r);
    } else if (f->kind == FAULT_LOSS) {
        run_event(r, EVENT_NAN, f->reason, f->message,
                  json_pack("{s:I}", "at_step", (json_int_t)f->step));
    }
}

tp_status run_drain_fault(struct run *r, const struct attempt_fault *f)
{
    double now = clock_seconds(), patience = 0;
    tp_status st;

    attempt_set_fault(&r->attempt, f);
    report_fault(r, f);
    if (f->kind == FAULT_RANK)
        patience = r->job->is_tp_train || f->reason != REASON_RANK_GONE ? PATIENCE_TOLD_S
                                                                        : PATIENCE_OTHER_S;
    if (r->record.fault_at <= 0)
        r->record.fault_at = now - f->waited;
    run_time_fault(r, run_saved_at(r), now - f->waited);
    st = run_transition(r, RUN_DRAIN, "fault");
    r->drain->until = now + patience;
    return st || patience > 0 ? st : run_drain_tick(r);
}

static bool launcher_has_told(const struct run *r)
{
    char *text = log_tail_read(r->attempt.log);
    struct log_tail tail;

    log_tail_parse(&tail, text, r->backend.table->rank_of_line);
    free(text);
    return tail.end != LOG_TAIL_UNKNOWN;
}

tp_status run_drain_tick(struct run *r)
{
    struct run_drain *d = r->drain;
    const char *id = r->attempt.id;
    double now = clock_seconds();

    if (now < d->until && !d->killed && r->attempt.fault.kind == FAULT_RANK &&
        d->until - now > PATIENCE_TOLD_S && launcher_has_told(r))
        d->until = now + PATIENCE_TOLD_S;
    if (now < d->until)
        return r->attempt.fault.kind == FAULT_NONE && !d->killed ? run_watch_drain(r) : TP_OK;
    if (d->killed) /* the supervisor has not ended either */
        process_sweep(PROCESS_SUPERVISOR_ENV, id, SIGKILL);
    else if (r->attempt.fault.kind == FAULT_NONE)
        run_event(r, EVENT_KILLED, REASON_GRACE_OVER,
                  "the job did not save and end within its grace",
                  json_pack("{s:f}", "seconds", r->job->grace));
    run_relays_stop(r); /* relays kill the ranks on other hosts, which the launcher may not reach */
    process_sweep(PROCESS_ID_ENV, id, SIGKILL);
    d->killed = true;
    d->until = clock_seconds() + KILL_AGAIN_S;
    return r->attempt.supervisor.pidfd < 0 ? run_supervisor_ended(r) : TP_OK;
}

/* Treat the nodes of ranks that cannot be killed as lost. */
static void lose_nodes(struct run *r)
{
    const struct attempt *a = &r->attempt;
    char text[120];

    for (int i = 0; i < a->world; i++) {
        pid_t pid = a->rank[i].pid;
        struct node *node = a->rank[i].node;

        if (pid == 0 || !node || node->down || process_start(pid) == 0 || process_state(pid) == 'Z')
            continue;
        node->down = true;
        snprintf(text, sizeof text, "rank %d (pid %d) cannot be killed: its state is %c", i,
                 (int)pid, process_state(pid));
        run_event(r, EVENT_NODE_LOST, REASON_RANK_UNKILLABLE, text,
                  json_pack("{s:s}", "node", node->name));
    }
}

/* The supervisor may have been killed before it could end the ranks, so they are killed now. Ranks
 * that remain are in an uninterruptible wait in the kernel. Their nodes cannot be used, and the job
 * continues without them. They die when the kernel ends the wait; until then the epoch prevents
 * that they commit a checkpoint. */
bool run_drain_waits_for_rest(struct run *r)
{
    struct run_drain *d = r->drain;
    double now = clock_seconds();

    if (process_sweep(PROCESS_ID_ENV, r->attempt.id, SIGKILL) == 0)
        return false;
    if (d->stuck_since <= 0)
        d->stuck_since = now;
    if (now - d->stuck_since >= STUCK_S) {
        lose_nodes(r);
        return false;
    }
    d->until = now + LOOK_AGAIN_S;
    d->killed = true;
    return true;
}
