/* cli/run/cmd_node.c - tp-run node JOB.yaml up|down NAME: nodes that come and go. */
#include <stdio.h>
#include <string.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_ask.h"

int cmd_run_node(int argc, char **argv)
{
    const char *path = NULL, *what = NULL, *node = NULL;
    bool as_json = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_ARG("up|down", &what, "give it back, or take it away at once"),
                                OPT_ARG("NODE", &node, "a name of the job file's nodes"),
                                OPT_FLAG(0, "json", &as_json, "as JSON"), OPT_END };

    if (!report_options(&code, "tp-run node", opts, argc, argv,
                        "down kills the ranks on the node, as its crash would.\n", NULL))
        return code;
    if (strcmp(what, "up") != 0 && strcmp(what, "down") != 0)
        return report("tp-run", tp_fail(&err, TP_E_USAGE, "\"%s\": expected up or down", what),
                      &err);
    code = report("tp-run",
                  run_ask(&answer, path,
                          json_pack("{s:s,s:s,s:b}", "verb", "node", "node", node, "up",
                                    strcmp(what, "up") == 0),
                          &err),
                  &err);
    if (code == 0)
        run_ask_print(answer, as_json);
    json_decref(answer);
    return code;
}
