/* cli/run/cmd_relay.c - tp-run relay DIR COMMAND...: what runs on Slurm's nodes around a rank. */
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "orchestrator/process/relay.h"

int cmd_run_relay(int argc, char **argv)
{
    struct tp_err err = { 0 };
    struct relay_end end = { 0 };
    tp_status st;

    if (argc < 3)
        return report("tp-run relay", tp_fail(&err, TP_E_USAGE, "is started by tp-run on nodes"),
                      &err);
    st = relay_run(&end, argv + 2, argv[1], &err);
    if (st)
        return report("tp-run relay", st, &err);
    if (end.signal && !end.asked) /* srun says so too, but not of which rank it came first */
        report_note("tp-run relay", "rank %d was killed by signal %d", end.rank, end.signal);
    else if (end.exit_code != 0 && end.exit_code != tp_exit_code(TP_E_STOPPED) && !end.asked)
        report_note("tp-run relay", "rank %d ended with exit code %d", end.rank, end.exit_code);
    return end.exit_code;
}
