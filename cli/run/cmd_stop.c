/* cli/run/cmd_stop.c - tp-run stop JOB.yaml: save at the next step and end. */
#include <stdio.h>
#include <time.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_ask.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/web/control.h"

/* Until nobody listens any more. */
static void wait_for_end(const char *path)
{
    const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
    struct tp_err err;
    json_t *answer;

    while (run_ask(&answer, path, json_pack("{s:s}", "verb", "status"), &err) == TP_OK) {
        json_decref(answer);
        nanosleep(&pause, NULL);
    }
}

/* Nobody runs it now, but a batch job may wait to go on with it: that one is cancelled. */
static tp_status stop_next(const char *path, char *text, size_t size, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    struct job job;
    json_t *last = NULL, *book;
    long next = 0;
    tp_status st = TP_E_NOTFOUND;

    if (job_file_read(&job, path, backends_job(), &arena, &ignored) == TP_OK &&
        job.backend == &SLURM_JOB_BACKEND && journal_peek(&last, job.state, &ignored) == TP_OK) {
        book = json_object_get(last, "book");
        if (json_is_true(json_object_get(book, "chained")))
            next = (long)json_integer_value(json_object_get(book, "slurm_next"));
    }
    if (next) {
        st = slurm_cancel(&job, next, 60, err);
        snprintf(text, size, "Slurm job %ld, which would have gone on, is cancelled", next);
    }
    json_decref(last);
    arena_free(&arena);
    return st;
}

int cmd_run_stop(int argc, char **argv)
{
    const char *path = NULL;
    bool wait = false, as_json = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    char text[160] = "";
    int code;
    tp_status st;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_FLAG('w', "wait", &wait, "return when it has ended"),
                                OPT_FLAG(0, "json", &as_json, "as JSON"), OPT_END };

    if (!report_options(&code, "tp-run stop", opts, argc, argv,
                        "The job saves at its next step and ends; tp-run exits with 75.\n", NULL))
        return code;
    st = run_ask(&answer, path, json_pack("{s:s}", "verb", "stop"), &err);
    if (st == TP_E_NOTFOUND)
        st = stop_next(path, text, sizeof text, &err);
    if (st == TP_OK && !answer)
        answer = json_pack("{s:b,s:s}", "ok", 1, "text", text);
    else if (st == TP_OK && wait)
        wait_for_end(path);
    code = report("tp-run", st, &err);
    if (code == 0 && (as_json || !wait))
        run_ask_print(answer, as_json);
    json_decref(answer);
    return code;
}
