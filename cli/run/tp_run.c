/* cli/run/tp_run.c - tp-run: runs a job, restarts it, and changes its layout as nodes come and go.
 */
#include <stdio.h>
#include <string.h>

#include "cli/print.h"
#include "cli/remote_env.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/verb.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"

int main(int argc, char **argv)
{
    static const struct verb verbs[] = {
        { "plan", "JOB.yaml", "show which layouts fit which number of ranks, and why",
          cmd_run_plan },
        { "status", "JOB.yaml", "show the state of the job", cmd_run_status },
        { "events", "JOB.yaml", "show what happened", cmd_run_events },
        { "stop", "JOB.yaml", "save at the next step and end", cmd_run_stop },
        { "resize", "JOB.yaml SPEC|RANKS", "save and continue at another layout or size",
          cmd_run_resize },
        { "submit", "JOB.yaml", "backend slurm: run the job in a batch job of its own",
          cmd_run_submit },
        { "node", "JOB.yaml up|down NAME", "take a node away, or give it back", cmd_run_node },
        { "supervise", "", NULL, cmd_run_supervise },
        { "check", "", NULL, cmd_run_check },
        { "ask", "", NULL, cmd_run_ask },
        { "standby", "", NULL, cmd_run_standby },
        { "relay", "", NULL, cmd_run_relay },
        { 0 },
    };
    static const struct verb_program program = {
        .name = "tp-run",
        .intro =
            "usage: tp-run JOB.yaml [options]   run the job to its end, restarting it as needed\n"
            "       tp-run VERB JOB.yaml ...\n"
            "       tp-run --example            print a job file with every key explained\n\n"
            "Ctrl-C, SIGTERM or SIGHUP (a terminal that closes; ignored under nohup): the job\n"
            "saves at its next step and ends (exit 75). Run the same command again to continue.\n"
            "If tp-run itself is killed, the job keeps running, and the next tp-run takes it "
            "over.\n\nverbs:",
        .tail =
            "options with JOB.yaml:\n"
            "  -q, --quiet  print only errors\n"
            "  --json       print each event on standard output: one JSON object per line\n\n"
            "  --help     this text; `tp-run VERB --help` describes a verb\n"
            "  --version  the version\n\n"
            "exit: 0 all steps done; 2 the job file or request is wrong; 3 the job has failed;\n"
            "      75 saved and stopped before its end",
        .verbs = verbs,
        .no_verb = cmd_run_job,
    };
    struct tp_err err = { 0 };

    for (int i = 1; i < argc && argv[i][0] == '-'; i++)
        if (strcmp(argv[i], "--example") == 0) {
            report_begin();
            job_file_example(stdout, backends_job());
            return report("tp-run", print_done(&err), &err);
        }
    if (remote_env_read(&err))
        return report("tp-run", err.status, &err);
    return verb_main(&program, argc, argv);
}
