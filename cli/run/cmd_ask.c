/* cli/run/cmd_ask.c - tp-run ask STATE REQUEST: a request to the tp-run of this host, for one of
 * another host that cannot reach it (cli/run/run_ask.h). The answer goes to stdout as it is. */
#include <stdio.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "orchestrator/web/control.h"

int cmd_run_ask(int argc, char **argv)
{
    struct tp_err err = { 0 };
    json_t *request = argc == 3 ? json_loads(argv[2], JSON_REJECT_DUPLICATES, NULL) : NULL;
    json_t *answer = NULL;
    tp_status st = request ? control_ask(&answer, argv[1], request, &err)
                           : tp_fail(&err, TP_E_USAGE, "is started by tp-run on other hosts");

    if (st == TP_OK && (json_dumpf(answer, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF))
        st = tp_fail_errno(&err, "stdout");
    json_decref(answer);
    json_decref(request);
    return report("tp-run ask", st, &err);
}
