/* cli/run/cmd_change.c - tp-run resize and tp-run node: change what a running job runs on. */
#include <stdio.h>
#include <string.h>

#include "cli/print.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"

/* Send a request and print the answer. Takes over the request. Returns the exit code. */
static int send(const char *path, json_t *request, bool as_json)
{
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code =
        report_json(as_json, "tp-run", run_context_ask_once(&answer, path, request, &err), &err);

    if (code == 0)
        run_context_print(answer, as_json);
    json_decref(answer);
    return code;
}

struct wanted {
    json_int_t attempt;
    json_t *layout; /* of the ranks that train; owned */
};

/* Whether every rank trains in the wanted attempt, or a later one. */
static bool trains(void *ctx, const json_t *status)
{
    struct wanted *w = ctx;
    const char *state = json_string_value(json_object_get(status, "state"));

    if (json_integer_value(json_object_get(status, "attempt")) < w->attempt || !state ||
        (strcmp(state, "train") != 0 && strcmp(state, "save") != 0))
        return false;
    w->layout = json_incref(json_object_get(status, "layout"));
    return true;
}

/* Wait until the job trains in the attempt that the answer names, or a later one. TP_E_IO: it has
 * ended, or trains at another layout. */
static tp_status wait_for_layout(struct run_context *c, const json_t *answer, struct tp_err *err)
{
    const json_t *to = json_object_get(answer, "layout");
    struct wanted w = { .attempt = json_integer_value(json_object_get(answer, "attempt")) };
    tp_status st = run_context_wait(c, trains, &w, err);

    if (st == TP_E_NOTFOUND)
        st = tp_fail(err, TP_E_IO, "%s: the job has ended before it trained at %s", c->job.path,
                     json_string_value(to));
    else if (st == TP_OK && !json_equal(w.layout, to))
        st = tp_fail(err, TP_E_IO, "%s: the job trains at %s instead of %s", c->job.path,
                     json_string_value(w.layout), json_string_value(to));
    json_decref(w.layout);
    return st;
}

static int resize(const char *path, const char *to, bool wait, bool as_json)
{
    struct run_context c;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    tp_status st = run_context_open(&c, path, &err);

    if (st == TP_OK)
        st = run_context_ask(&answer, &c,
                             json_pack("{s:s,s:o}", "verb", "resize", "to", print_text(to)), &err);
    if (st == TP_OK && wait)
        st = wait_for_layout(&c, answer, &err);
    run_context_close(&c);
    code = report_json(as_json, "tp-run", st, &err);
    if (code == 0 && wait && !as_json)
        printf("the job trains at %s\n", json_string_value(json_object_get(answer, "layout")));
    else if (code == 0)
        run_context_print(answer, as_json);
    json_decref(answer);
    return code;
}

int cmd_run_resize(int argc, char **argv)
{
    const char *path = NULL, *to = NULL;
    bool as_json = false, wait = false;
    int code;
    const struct opt opts[] = {
        OPT_ARG("JOB.yaml", &path, "the job file"),
        OPT_ARG("SPEC|RANKS", &to, "a layout (tp2dp2), the largest number of ranks, or auto"),
        OPT_FLAG('w', "wait", &wait, "return when every rank trains at the layout"),
        OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END
    };

    if (!report_options(&code, "tp-run resize", opts, argc, argv,
                        "The job saves at its next step and continues at the layout. With auto,\n"
                        "tp-run selects the layout again.",
                        NULL))
        return code;
    return resize(path, to, wait, as_json);
}

int cmd_run_node(int argc, char **argv)
{
    const char *path = NULL, *what = NULL, *node = NULL;
    bool as_json = false;
    struct tp_err err = { 0 };
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_ARG("up|down", &what, "give the node back, or take it away"),
                                OPT_ARG("NODE", &node, "the name of a node in the job file"),
                                OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END };

    if (!report_options(&code, "tp-run node", opts, argc, argv,
                        "down kills the ranks on the node, as a crash of the node would.", NULL))
        return code;
    if (strcmp(what, "up") != 0 && strcmp(what, "down") != 0)
        return report_json(as_json, "tp-run",
                           tp_fail(&err, TP_E_USAGE, "\"%s\": expected up or down", what), &err);
    return send(path,
                json_pack("{s:s,s:o,s:b}", "verb", "node", "node", print_text(node), "up",
                          strcmp(what, "up") == 0),
                as_json);
}
