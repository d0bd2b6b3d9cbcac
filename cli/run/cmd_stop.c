/* cli/run/cmd_stop.c - tp-run stop JOB.yaml: save at the next step and end. */
#include <stdio.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"
#include "orchestrator/state/journal.h"

static bool never(void *ctx, const json_t *status)
{
    (void)ctx;
    (void)status;
    return false;
}

/* Wait until no tp-run runs the job. */
static tp_status wait_for_end(struct run_context *c, struct tp_err *err)
{
    tp_status st = run_context_wait(c, never, NULL, err);

    return st == TP_E_NOTFOUND ? TP_OK : st;
}

/* No tp-run runs the job, but a job of the scheduler may wait to continue it: cancel that job.
 * TP_E_NOTFOUND: there is none; err does not change. */
static tp_status cancel_next(json_t **answer, const struct run_context *c, struct tp_err *err)
{
    const struct backend_call call = run_context_call(c);
    struct tp_err why;
    json_t *last = NULL;
    char text[160];
    tp_status st = TP_E_NOTFOUND;

    if (c->backend->cancel_next && journal_peek(&last, c->job.state, &why) == TP_OK)
        st = c->backend->cancel_next(text, sizeof text, &call, journal_run_record(last), &why);
    if (st == TP_OK)
        *answer = json_pack("{s:b,s:s}", "ok", 1, "text", text);
    else if (st != TP_E_NOTFOUND)
        *err = why;
    json_decref(last);
    return st;
}

int cmd_run_stop(int argc, char **argv)
{
    const char *path = NULL;
    bool wait = false, as_json = false, cancelled = false;
    struct run_context c;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path,
                                        "the job file, or the job's state folder"),
                                OPT_FLAG('w', "wait", &wait, "return when the job has ended"),
                                OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run stop", opts, argc, argv,
                        "The job saves at its next step and ends; its tp-run exits with 75.", NULL))
        return code;
    TP_TRY(run_context_open_state(&c, path, &err));
    st = run_context_ask(&answer, &c, json_pack("{s:s}", "verb", "stop"), &err);
    if (st == TP_E_NOTFOUND) {
        st = cancel_next(&answer, &c, &err);
        cancelled = st == TP_OK;
    }
    if (st == TP_OK && wait && !cancelled)
        st = wait_for_end(&c, &err);
done:
    run_context_close(&c);
    code = report_json(as_json, "tp-run", st, &err);
    if (code == 0 && (as_json || !wait || cancelled))
        run_context_print(answer, as_json);
    json_decref(answer);
    return code;
}
