/* cli/run/cmd_keep.c - tp-run keep ID FILE COMMAND...: what tp-run starts for each attempt. */
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "orchestrator/process/supervisor.h"

int cmd_run_keep(int argc, char **argv)
{
    struct tp_err err = { 0 };

    if (argc < 4)
        return report("tp-run keep",
                      tp_fail(&err, TP_E_USAGE, "is started by tp-run for each attempt"), &err);
    return report("tp-run keep", supervisor_run(argv + 3, argv[1], argv[2], &err), &err);
}
