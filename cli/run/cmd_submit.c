/* cli/run/cmd_submit.c - tp-run submit JOB.yaml: run the job in a job of the scheduler. */
#include <limits.h>
#include <stdio.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/state/state_owner.h"

/* TP_E_EXISTS: a tp-run runs the job. */
static tp_status check_not_running(struct run_context *c, struct tp_err *err)
{
    struct tp_err none;
    json_t *answer = NULL;
    const char *text;
    tp_status st = run_context_ask(&answer, c, json_pack("{s:s}", "verb", "status"), &none);

    text = json_string_value(json_object_get(json_object_get(answer, "status"), "state"));
    if (st == TP_OK)
        st = tp_fail(err, TP_E_EXISTS,
                     "%s: tp-run runs this job already (state %s), so nothing is submitted; see "
                     "tp-run status",
                     c->job.path, text ? text : "unknown");
    else
        st = TP_OK;
    json_decref(answer);
    return st;
}

static tp_status submit(char *id, size_t size, struct run_context *c, struct tp_err *err)
{
    const struct backend_call call = run_context_call(c);
    struct tp_err ignored;
    json_t *last = NULL;
    char before[NAME_MAX + 1];
    tp_status st = check_not_running(c, err);

    if (st || (st = state_owner_claim(before, &c->job, err)))
        return st;
    journal_peek(&last, c->job.state, &ignored);
    st = c->backend->submit(id, size, &call, last ? journal_run_record(last) : NULL, err);
    json_decref(last);
    return st;
}

int cmd_run_submit(int argc, char **argv)
{
    struct run_context c;
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
    if (st == TP_OK && !c.backend->submit)
        st = tp_fail(&err, TP_E_USAGE, "%s: backend %s has no batch jobs", path,
                     c.job.backend->name);
    if (st == TP_OK)
        st = submit(id, sizeof id, &c, &err);
    if (st == TP_OK)
        printf(as_json ? "{\"ok\":true,\"slurm_job\":%s}\n" : "%s\n", id);
    run_context_close(&c);
    return report_json(as_json, "tp-run", st, &err);
}
