/* cli/run/cmd_submit.c - tp-run submit JOB.yaml: run the job in a job of the scheduler. */
#include <stdio.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"

int cmd_run_submit(int argc, char **argv)
{
    struct run_context c;
    struct backend_call call;
    struct tp_err err = { 0 };
    const char *path = NULL;
    bool as_json = false;
    char id[32];
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file, with backend: slurm"),
                                OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run submit", opts, argc, argv,
                        "Submits `tp-run JOB.yaml` with sbatch and slurm.options, so that nothing\n"
                        "has to run on a login node. Prints the number of the Slurm job.",
                        NULL))
        return code;
    st = run_context_open(&c, path, &err);
    call = run_context_call(&c);
    if (st == TP_OK && !c.backend->submit)
        st = tp_fail(&err, TP_E_USAGE, "%s: backend %s has no batch jobs", path,
                     c.job.backend->name);
    if (st == TP_OK)
        st = c.backend->submit(id, sizeof id, &call, &err);
    if (st == TP_OK)
        printf(as_json ? "{\"ok\":true,\"slurm_job\":%s}\n" : "%s\n", id);
    run_context_close(&c);
    return report_json(as_json, "tp-run", st, &err);
}
