/* cli/run/tp_run.c - tp-run: runs a job, restarts it, changes its layout as nodes come and go. */
#include <stdio.h>
#include <string.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "orchestrator/job.h"

static const struct {
    const char *name;
    int (*run)(int argc, char **argv);
    const char *help; /* NULL: not for people */
} VERBS[] = {
    { "plan", cmd_run_plan, "which layouts fit which number of ranks, and why others do not" },
    { "status", cmd_run_status, "where the job is" },
    { "events", cmd_run_events, "what happened" },
    { "stop", cmd_run_stop, "save at the next step and end" },
    { "resize", cmd_run_resize, "save and go on at another layout or number of ranks" },
    { "submit", cmd_run_submit, "backend slurm: run the job in a batch job of its own" },
    { "node", cmd_run_node, "take a node away, or give it back" },
    { "keep", cmd_run_keep, NULL },
    { "check", cmd_run_check, NULL },
    { "ask", cmd_run_ask, NULL },
    { "guard", cmd_run_guard, NULL },
    { "relay", cmd_run_relay, NULL },
};
enum { N_VERBS = sizeof VERBS / sizeof VERBS[0] };

static int help(void)
{
    printf(
        "usage: tp-run JOB.yaml             run the job to its end, restarting it as needed\n"
        "       tp-run VERB JOB.yaml ...\n"
        "       tp-run --example            print a job file with every key explained\n\n"
        "Ctrl-C or SIGTERM: the job saves at its next step and ends (exit 75); started again, it\n"
        "goes on. When tp-run itself is killed the job runs on, and the next tp-run takes it "
        "over.\n\nverbs:\n");
    for (int i = 0; i < N_VERBS; i++)
        if (VERBS[i].help)
            printf("  %-8s %s\n", VERBS[i].name, VERBS[i].help);
    printf("\n  --help     this text; `tp-run VERB --help` for a verb's options\n"
           "  --version  the version\n\n"
           "exit: 0 all steps done; 2 the job file or request is wrong; 3 the job has failed;\n"
           "      75 saved and stopped before its end\n");
    return 0;
}

int main(int argc, char **argv)
{
    const char *word = argc > 1 ? argv[1] : "--help";

    report_begin();
    if (strcmp(word, "--help") == 0 || strcmp(word, "-h") == 0 || strcmp(word, "help") == 0)
        return help();
    if (strcmp(word, "--version") == 0) {
        printf("tp-run %s\n", TP_VERSION);
        return 0;
    }
    if (strcmp(word, "--example") == 0) {
        job_example(stdout);
        return 0;
    }
    for (int i = 0; i < N_VERBS; i++)
        if (strcmp(word, VERBS[i].name) == 0)
            return VERBS[i].run(argc - 1, argv + 1);
    return cmd_run_job(argc, argv);
}
