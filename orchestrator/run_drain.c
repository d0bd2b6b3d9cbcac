/* orchestrator/run_drain.c - DRAIN: ending an attempt, softly or because of a fault. */
#include <limits.h>
#include <signal.h>
#include <stdio.h>

#include "core/file.h"
#include "core/text.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"

/* After a rank is gone the command may end by itself, saying why, before it is killed. Another
 * program's ranks may be about to end in order without having said so. */
static const double PATIENCE_TP_TRAIN_S = 0.5, PATIENCE_OTHER_S = 5, KILL_AGAIN_S = 2;

tp_status run_drain_softly(struct run *r, const char *why)
{
    tp_status st;

    if (r->book.state == RUN_DRAIN)
        return TP_OK;
    run_event(r, "drain", json_pack("{s:s,s:f}", "reason", why, "grace", r->job->grace));
    st = run_transition(r, RUN_DRAIN, "save and stop");
    time_account_switch(r->ledger, TIME_STOPPING, run_now());
    r->drain_until = run_now() + r->job->grace;
    if (r->keeper > 0)
        kill(r->keeper, SIGUSR1);
    return st;
}

/* Where every rank stands in the kernel, for people: STATE/attempt-N.stacks. */
static void note_stacks(const struct run *r)
{
    static const char *const files[] = { "status", "wchan", "stack", "syscall" };
    char path[PATH_MAX];
    FILE *out;

    snprintf(path, sizeof path, "%.3900s/attempt-%04lld.stacks", r->job->state,
             (long long)r->book.attempt);
    out = fopen(path, "we");
    for (int i = 0; out && i < r->world; i++) {
        fprintf(out, "== rank %d, pid %d\n", i, (int)r->ranks[i].pid);
        for (size_t k = 0; r->ranks[i].pid && k < sizeof files / sizeof files[0]; k++) {
            char name[64], text[4096];
            size_t n;
            FILE *in;

            snprintf(name, sizeof name, "/proc/%d/%s", (int)r->ranks[i].pid, files[k]);
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

tp_status run_drain_fault(struct run *r, const struct run_fault *f)
{
    double now = run_now(), patience = 0;
    tp_status st;

    r->fault = *f;
    text_clean(r->fault.reason);
    f = &r->fault;
    if (f->kind == FAULT_HANG) {
        run_event(r, "hang",
                  json_pack("{s:i,s:s,s:f,s:s}", "rank", f->rank, "node",
                            f->node >= 0 ? r->job->nodes[f->node].name : "", "seconds", f->waited,
                            "reason", f->reason));
        note_stacks(r);
    } else if (f->kind == FAULT_NAN) {
        run_event(r, "nan",
                  json_pack("{s:s,s:I}", "reason", f->reason, "at_step", (json_int_t)f->step));
    } else if (f->kind == FAULT_RANK) {
        patience = r->job->is_tp_train ? PATIENCE_TP_TRAIN_S : PATIENCE_OTHER_S;
    }
    if (r->book.fault_at <= 0)
        r->book.fault_at = now - f->waited;
    time_account_fault(r->ledger, r->saved_at, now - f->waited, TIME_PLANNING, now);
    st = run_transition(r, RUN_DRAIN, "fault");
    r->drain_until = now + patience;
    return st || patience > 0 ? st : run_drain_tick(r);
}

tp_status run_drain_tick(struct run *r)
{
    char id[64];

    if (run_now() < r->drain_until)
        return TP_OK;
    run_attempt_id(r, id);
    if (r->drain_killed) /* the keeper itself does not get anywhere */
        process_sweep(PROCESS_SUPERVISOR_ENV, id, SIGKILL);
    else if (r->fault.kind == FAULT_NONE)
        run_event(r, "killed",
                  json_pack("{s:f,s:s}", "seconds", r->job->grace, "reason",
                            "the job did not save and end within its grace"));
    if (r->job->backend == &SLURM_JOB_BACKEND) { /* what srun leaves on the nodes: see relay.h */
        char stop[PATH_MAX];
        struct tp_err ignored;

        snprintf(stop, sizeof stop, "%.4000s/stop", r->slots);
        if (!file_exists(stop))
            file_write_new(stop, "", 0, &ignored);
    }
    process_sweep(PROCESS_ID_ENV, id, SIGKILL);
    r->drain_killed = true;
    r->drain_until = run_now() + KILL_AGAIN_S;
    return r->keeper_pidfd < 0 ? run_keeper_gone(r) : TP_OK;
}
