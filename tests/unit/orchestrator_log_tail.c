/* tests/unit/orchestrator_last_words.c - whom the end of a log blames. */
#include "orchestrator/watch/log_tail.h"

#include <criterion/criterion.h>
#include <string.h>

static int rank_of(const char *log)
{
    char line[300];

    return log_tail_rank(log, line, sizeof line);
}

Test(last_words, the_first_rank_that_a_signal_killed_is_blamed)
{
    cr_expect_eq(rank_of("rank 3 was killed by signal 9\nrank 1 was killed by signal 6\n"), 3);
    cr_expect_eq(rank_of("process rank 2 with PID 17 on node n1 exited on signal 9"), 2);
    cr_expect_eq(rank_of("tp-run relay: rank 0 ended with exit code 3\n"
                         "tp-run relay: rank 2 was killed by signal 11\n"),
                 2, "the others' errors come of it");
}

Test(last_words, srun_is_asked_when_nobody_else_names_one)
{
    const char *log = "srun: error: n2: task 3: Exited with exit code 137\n"
                      "srun: launch/slurm: _step_signal: Terminating StepId=1.0\n"
                      "srun: error: n2: task 2: Exited with exit code 143\n"
                      "srun: error: n1: tasks 0-1: Exited with exit code 143\n";
    char line[300];

    cr_expect_eq(log_tail_rank(log, line, sizeof line), 3);
    cr_expect_str_eq(line, "srun: error: n2: task 3: Exited with exit code 137");
    cr_expect_eq(rank_of("srun: error: n2: task 2: Exited with exit code 143\n"), -1);
}

Test(last_words, nobody_is_blamed_for_nothing)
{
    char line[16];

    cr_expect_eq(log_tail_rank("", line, sizeof line), -1);
    cr_expect_str_eq(line, "");
    cr_expect_eq(log_tail_rank(NULL, line, sizeof line), -1);
    cr_expect_eq(log_tail_rank("rank 3 trains\nno space left on the device\n\n", line, sizeof line),
                 -1);
    cr_expect_str_eq(line, "no space left o", "the last line, cut to what there is room for");
    cr_expect_eq(rank_of("rank 99999999999999999999 was killed by signal 9"), -1);
}
