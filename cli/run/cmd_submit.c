/* cli/run/cmd_submit.c - tp-run submit JOB.yaml: run the job in a batch job of its own. */
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "core/file.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job.h"
#include "orchestrator/job/job_file.h"

int cmd_run_submit(int argc, char **argv)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    const char *path = NULL;
    char self[PATH_MAX];
    struct job job;
    long id = 0;
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file, with backend: slurm"),
                                OPT_END };
    tp_status st;

    if (!report_options(
            &code, "tp-run submit", opts, argc, argv,
            "Submits `tp-run JOB.yaml` with sbatch and slurm.options, so that nothing "
            "has to run on a\nlogin node. The number of the Slurm job goes to stdout.\n",
            NULL))
        return code;
    self[n > 0 ? n : 0] = 0;
    st = n > 0 ? job_file_read(&job, path, backends_job(), &arena, &err)
               : tp_fail_errno(&err, "/proc/self/exe");
    if (st == TP_OK && job.backend != &SLURM_JOB_BACKEND)
        st = tp_fail(&err, TP_E_USAGE, "%s: the key \"backend\" is not slurm", path);
    if (st == TP_OK)
        st = file_make_dirs(job.state, &err);
    if (st == TP_OK)
        st = slurm_submit(&id, &job, self, 0, NULL,
                          slurm_options(&job)->nodes ? slurm_options(&job)->nodes : 1, &err);
    if (st == TP_OK)
        printf("%ld\n", id);
    arena_free(&arena);
    return report("tp-run", st, &err);
}
