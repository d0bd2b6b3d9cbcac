/* orchestrator/run_ranks.c - see run_state.h: a rank's process has ended, as its pidfd shows:
 * whether that is a fault. */
#include <sys/wait.h>

#include "core/process_stat.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"

/* The exit status of a rank: before its launcher has read it from /proc, and then from the pidfd.
 * False: it is not known. */
static bool exit_status(int *status, const struct attempt_rank *k)
{
    struct process_stat stat;

    if (!process_stat_read(&stat, k->pid) || stat.state != 'Z')
        return process_exit_status(status, k->pidfd);
    *status = stat.status;
    return true;
}

/* What is known about a rank that has ended. False: it ended as planned. */
static bool fault_of_rank(struct attempt_fault *f, int rank, const struct attempt_rank *k)
{
    int status = 0;
    bool known = exit_status(&status, k);

    if (known && WIFSIGNALED(status)) {
        *f = attempt_fault(FAULT_RANK, REASON_RANK_KILLED, "rank %d was killed by signal %d", rank,
                           WTERMSIG(status));
        f->signal = WTERMSIG(status);
    } else if (known && WEXITSTATUS(status) != 0) {
        *f = attempt_fault(FAULT_RANK, REASON_RANK_FAILED, "rank %d ended with exit code %d", rank,
                           WEXITSTATUS(status));
    } else {
        *f = attempt_fault(FAULT_RANK, REASON_RANK_GONE, "rank %d is gone (pid %d)", rank,
                           (int)k->pid);
    }
    return !known || !WIFEXITED(status) ||
           (WEXITSTATUS(status) != 0 && WEXITSTATUS(status) != tp_exit_code(TP_E_STOPPED));
}

tp_status run_rank_ended(struct run *r, int rank)
{
    const struct attempt_rank *k = &r->attempt.rank[rank];
    struct attempt_fault f;
    struct heartbeat_status status;
    bool failed = fault_of_rank(&f, rank, k);

    attempt_rank_ended(&r->attempt, rank);
    if (r->record.state != RUN_INIT && r->record.state != RUN_TRAIN && r->record.state != RUN_SAVE)
        return TP_OK;
    run_watch_read(r);
    if (monitor_present(run_monitor(r), rank, &status) && status.phase == HEARTBEAT_DONE)
        return TP_OK;
    if (!failed && !r->job->is_tp_train)
        return TP_OK; /* the others end soon, or hang */
    f.rank = rank;
    f.node = k->node;
    f.step = monitor_best_step(run_monitor(r));
    return run_drain_fault(r, &f);
}
