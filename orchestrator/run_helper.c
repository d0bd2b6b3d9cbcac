/* orchestrator/run_helper.c - see run_state.h: a program that runs for PLAN or RESHARD, one at a
 * time. It dies with tp-run. */
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>

#include "core/clock.h"
#include "orchestrator/run_state.h"

struct run_helper {
    pid_t pid; /* 0: none */
    enum run_helper_kind kind;
    double since;
};

tp_status run_helper_open(struct run *r)
{
    r->helper = calloc(1, sizeof *r->helper);
    return r->helper ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

bool run_helper_runs(const struct run *r)
{
    return r->helper->pid != 0;
}

tp_status run_helper_start(struct run *r, enum run_helper_kind kind, char *const *argv,
                           const char *log)
{
    pid_t pid = run_spawn(r, argv, log, false);

    *r->helper =
        (struct run_helper){ .pid = pid > 0 ? pid : 0, .kind = kind, .since = clock_seconds() };
    return pid > 0 ? TP_OK : tp_fail_errno(&r->err, "cannot fork");
}

static tp_status ended(struct run *r, int exit_code)
{
    double seconds = clock_seconds() - r->helper->since;

    if (r->record.state != RUN_PLAN && r->record.state != RUN_RESHARD)
        return TP_OK;
    if (r->record.stop) {
        run_finish(r, RUN_STOPPED, TP_E_STOPPED, event_reason_name(REASON_NOT_STARTED),
                   "stopped before it was started");
        return TP_OK;
    }
    switch (r->helper->kind) {
    case HELPER_VERIFY:
        return run_plan_verified(r, exit_code == 0, seconds);
    case HELPER_CONVERT:
        return run_converted(r, exit_code, seconds);
    default:
        return run_prepared(r, exit_code);
    }
}

tp_status run_helper_reaped(struct run *r, pid_t pid, int status, bool *mine)
{
    *mine = pid == r->helper->pid;
    if (!*mine)
        return TP_OK;
    r->helper->pid = 0;
    return ended(r, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void run_helper_stop(const struct run *r)
{
    if (r->helper->pid > 0)
        kill(r->helper->pid, SIGTERM);
}
