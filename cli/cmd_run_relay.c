/* cli/cmd_run_relay.c - tp-run relay DIR COMMAND...: what runs on Slurm's nodes around a rank. */
#include "cli/cmd_run.h"
#include "cli/report.h"
#include "orchestrator/relay.h"

int cmd_run_relay(int argc, char **argv)
{
    struct tp_err err = { 0 };
    int exit_code = 0;
    tp_status st;

    if (argc < 3)
        return report("tp-run relay", tp_fail(&err, TP_E_USAGE, "is started by tp-run on nodes"),
                      &err);
    st = relay_run(argv + 2, argv[1], &exit_code, &err);
    return st ? report("tp-run relay", st, &err) : exit_code;
}
