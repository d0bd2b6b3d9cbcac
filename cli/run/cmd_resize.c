/* cli/run/cmd_resize.c - tp-run resize JOB.yaml SPEC|RANKS: go on at another layout. */
#include <stdio.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_ask.h"

int cmd_run_resize(int argc, char **argv)
{
    const char *path = NULL, *to = NULL;
    bool as_json = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_ARG("SPEC|RANKS", &to,
                                        "a layout (tp2dp2), the most ranks, or auto"),
                                OPT_FLAG(0, "json", &as_json, "as JSON"), OPT_END };

    if (!report_options(&code, "tp-run resize", opts, argc, argv,
                        "The job saves at its next step and goes on at the layout; auto gives the\n"
                        "choice back to tp-run.\n",
                        NULL))
        return code;
    code = report("tp-run",
                  run_ask(&answer, path, json_pack("{s:s,s:s}", "verb", "resize", "to", to), &err),
                  &err);
    if (code == 0)
        run_ask_print(answer, as_json);
    json_decref(answer);
    return code;
}
