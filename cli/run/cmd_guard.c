/* cli/run/cmd_guard.c - tp-run guard JOB.yaml: stands by on a node of a batch job. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_standby.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/process/child.h"

enum { TRIES = 24, PAUSE_S = 5 }; /* a dead host's lock goes when its lease is over */

static void keep(const char *name, const char *value)
{
    if (value)
        setenv(name, value, 1);
}

/* tp-run in the batch job again, not in a step of it: the shape of this step is none of its ranks'.
 */
static void leave_step(void)
{
    const char *names[] = { "SLURM_JOB_ID", "SLURM_JOB_NUM_NODES", "SLURM_LAUNCH_NODE_IPADDR" };
    char *value[3] = { 0 };

    for (int i = 0; i < 3; i++) {
        const char *now = getenv(names[i]);

        value[i] = now ? strdup(now) : NULL;
    }
    child_forget_job();
    for (int i = 0; i < 3; i++) {
        keep(names[i], value[i]);
        free(value[i]);
    }
}

int cmd_run_guard(int argc, char **argv)
{
    const char *inside = getenv("SLURM_JOB_ID");
    long id = inside ? strtol(inside, NULL, 10) : 0;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    bool take_over = false;
    struct job job;
    int code;
    tp_status st = argc == 2 ? job_file_read(&job, argv[1], backends_job(), &arena, &err)
                             : tp_fail(&err, TP_E_USAGE, "is started by tp-run on other nodes");

    if (st == TP_OK)
        st = slurm_standby_wait(&take_over, &job, id, getenv("SLURMD_NODENAME"), &err);
    code = report("tp-run guard", st, &err);
    if (take_over) {
        char *command[] = { "tp-run", argv[1], NULL };

        report_note("tp-run guard", "the node of tp-run is lost; going on here");
        leave_step();
        code = cmd_run_job(2, command);
        for (int i = 1; code == tp_exit_code(TP_E_EXISTS) && i < TRIES; i++) {
            sleep(PAUSE_S);
            code = cmd_run_job(2, command);
        }
        slurm_cancel(&job, id, 300, &err); /* its batch script is gone: nothing else would end it */
    }
    arena_free(&arena);
    return code;
}
