/* cli/run/cmd_change.c - tp-run resize and tp-run node: change what a running job runs on. */
#include <stdio.h>
#include <string.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"

/* Send a request and print the answer. Takes over the request. Returns the exit code. */
static int send(const char *path, json_t *request, bool as_json)
{
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code = report("tp-run", run_context_ask_once(&answer, path, request, &err), &err);

    if (code == 0)
        run_context_print(answer, as_json);
    json_decref(answer);
    return code;
}

int cmd_run_resize(int argc, char **argv)
{
    const char *path = NULL, *to = NULL;
    bool as_json = false;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_ARG("SPEC|RANKS", &to,
                                        "a layout (tp2dp2), the largest number of ranks, or auto"),
                                OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END };

    if (!report_options(&code, "tp-run resize", opts, argc, argv,
                        "The job saves at its next step and continues at the layout. With auto,\n"
                        "tp-run selects the layout again.\n",
                        NULL))
        return code;
    return send(path, json_pack("{s:s,s:s}", "verb", "resize", "to", to), as_json);
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
                        "down kills the ranks on the node, as a crash of the node would.\n", NULL))
        return code;
    if (strcmp(what, "up") != 0 && strcmp(what, "down") != 0)
        return report("tp-run", tp_fail(&err, TP_E_USAGE, "\"%s\": expected up or down", what),
                      &err);
    return send(
        path,
        json_pack("{s:s,s:s,s:b}", "verb", "node", "node", node, "up", strcmp(what, "up") == 0),
        as_json);
}
