/* cli/cmd_run_stop.c - tp-run stop JOB.yaml: save at the next step and end. */
#include <stdio.h>
#include <time.h>

#include "cli/cmd_run.h"
#include "cli/report.h"
#include "cli/run_ask.h"
#include "orchestrator/control.h"

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

int cmd_run_stop(int argc, char **argv)
{
    const char *path = NULL;
    bool wait = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_FLAG('w', "wait", &wait, "return when it has ended"), OPT_END };

    if (!report_options(&code, "tp-run stop", opts, argc, argv,
                        "The job saves at its next step and ends; tp-run exits with 75.\n", NULL))
        return code;
    code = report("tp-run", run_ask(&answer, path, json_pack("{s:s}", "verb", "stop"), &err), &err);
    if (code == 0 && wait)
        wait_for_end(path);
    else if (code == 0)
        puts(json_string_value(json_object_get(answer, "text")));
    json_decref(answer);
    return code;
}
