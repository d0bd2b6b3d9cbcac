/* tests/unit/orchestrator_slurm_answer.c - the output of Slurm's programs is parsed. */
#include "orchestrator/backend/slurm/slurm_answer.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

Test(slurm_answer, times_are_read_as_squeue_writes_them)
{
    cr_expect_eq(slurm_seconds("5:00"), 300);
    cr_expect_eq(slurm_seconds("0:07"), 7);
    cr_expect_eq(slurm_seconds("1:02:03"), 3723);
    cr_expect_eq(slurm_seconds("2-01:00:00"), 176400);
    cr_expect_eq(slurm_seconds("1-12"), 86400 + 12 * 3600);
    cr_expect_eq(slurm_seconds("90"), 5400);
    for (size_t i = 0; i < 9; i++) {
        const char *const none[] = { "UNLIMITED", "NOT_SET", "INVALID", "",       "5:x",
                                     "5:",        "1-",      "1--2:03", "1:2:3:4" };

        cr_expect_lt(slurm_seconds(none[i]), 0, "%s", none[i]);
    }
}

Test(slurm_answer, every_time_is_read_back)
{
    unsigned seed = (unsigned)time(NULL);

    printf("seed %u\n", seed);
    srand(seed);
    for (int i = 0; i < 2000; i++) {
        long s = rand() % (40 * 86400);
        char text[64];

        if (s >= 86400)
            snprintf(text, sizeof text, "%ld-%02ld:%02ld:%02ld", s / 86400, s / 3600 % 24,
                     s / 60 % 60, s % 60);
        else if (s >= 3600)
            snprintf(text, sizeof text, "%ld:%02ld:%02ld", s / 3600, s / 60 % 60, s % 60);
        else
            snprintf(text, sizeof text, "%ld:%02ld", s / 60, s % 60);
        cr_assert_eq((long)slurm_seconds(text), s, "%s", text);
    }
}

Test(slurm_answer, what_identifies_a_job_is_read_also_with_bars_in_its_command)
{
    char text[] = "squeue: warning\nRUNNING|2026-11-21T16:03:15|/a|b/batch.sh\nPENDING|x|y\n";
    char interactive[] = "PENDING|N/A|(null)", none[] = "slurm_load_jobs error";
    struct tm t = { .tm_year = 126,
                    .tm_mon = 10,
                    .tm_mday = 21,
                    .tm_hour = 16,
                    .tm_min = 3,
                    .tm_sec = 15,
                    .tm_isdst = -1 };
    struct slurm_identity x;

    cr_assert(slurm_identity_read(&x, text));
    cr_expect_str_eq(x.state, "RUNNING");
    cr_expect_str_eq(x.command, "/a|b/batch.sh");
    cr_expect_eq(x.submitted, mktime(&t));
    cr_assert(slurm_identity_read(&x, interactive));
    cr_expect_str_eq(x.command, "");
    cr_expect_eq(x.submitted, -1);
    cr_expect_not(slurm_identity_read(&x, none));
}

Test(slurm_answer, an_answer_of_squeue_is_read_among_warnings)
{
    char text[] = "squeue: warning: a plugin | says something\n"
                  "RUNNING|None|4:42|N/A|2|5:00|(null)|main|normal|N/A|2|n[1-2]|\nRUNNING|x\n";
    char none[] = "slurm_load_jobs error: Invalid job id specified", empty[] = "";
    struct slurm_view v;

    cr_assert(slurm_view_read(&v, text, 0));
    cr_expect_str_eq(v.state, "RUNNING");
    cr_expect_eq(v.left, 282);
    cr_expect_eq(v.nodes, 2);
    cr_expect_str_eq(v.limit, "5:00");
    cr_expect_str_eq(v.account, "");
    cr_expect_str_eq(v.partition, "main");
    cr_expect_str_eq(v.list, "n[1-2]");
    cr_expect_not(slurm_view_read(&v, none, 0));
    cr_expect_not(slurm_view_read(&v, empty, 0));
}

Test(slurm_answer, the_end_may_come_before_the_time_limit)
{
    char text[] = "RUNNING|None|4:42|2026-11-21T16:03:15|2|5:00||main||2026-11-21T15:59:00|0|n1|";
    char past[] =
        "RUNNING|None|UNLIMITED|2026-11-21T16:03:15|2|5:00||main||2026-11-21T15:59:00|0|n1|";
    struct tm t = {
        .tm_year = 126, .tm_mon = 10, .tm_mday = 21, .tm_hour = 16, .tm_min = 3, .tm_isdst = -1
    };
    time_t at_three = mktime(&t);
    struct slurm_view v;

    cr_assert(slurm_view_read(&v, text, at_three));
    cr_expect_eq(v.left, 15);
    cr_assert(slurm_view_read(&v, past, at_three + 60));
    cr_expect_eq(v.left, 0);
}

Test(slurm_answer, job_ids_are_read)
{
    bool granted;

    cr_expect_eq(
        slurm_allocated("salloc: Pending job allocation 12\nsalloc: job 12 queued\n", &granted),
        12);
    cr_expect_not(granted);
    cr_expect_eq(slurm_allocated("salloc: Pending job allocation 12\n"
                                 "salloc: Granted job allocation 12",
                                 &granted),
                 12);
    cr_expect(granted);
    cr_expect_eq(slurm_allocated("salloc: error: Invalid partition", &granted), 0);
    cr_expect_eq(slurm_submitted("17"), 17);
    cr_expect_eq(slurm_submitted("sbatch: a warning\n17;cluster"), 17);
    cr_expect_eq(slurm_submitted("sbatch: error: 5"), 0);
    cr_expect_eq(slurm_submitted(""), 0);
}

Test(slurm_answer, a_step_that_could_not_begin_is_not_a_node_that_does_not_answer)
{
    cr_expect(slurm_refused_step(
        "srun: error: Unable to confirm allocation for job 1: Socket timed out on send/recv "
        "operation\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1\n"));
    cr_expect_not(slurm_refused_step(
        "srun: error: Task launch for StepId=1.2 failed on node n2: Connection refused\n"));
    cr_expect_not(slurm_refused_step(
        "srun: error: Unable to create step for job 1: More processors requested than permitted\n"
        "socket timed out\n"));
}

Test(slurm_answer, the_rank_at_fault_is_the_one_that_srun_did_not_end)
{
    cr_expect_eq(slurm_rank_of_line("srun: error: n2: task 3: Exited with exit code 137"), 3);
    cr_expect_eq(slurm_rank_of_line("srun: error: n2: task 2: Exited with exit code 143"), -1);
    cr_expect_eq(slurm_rank_of_line("srun: error: n2: task 2: Terminated"), -1);
    cr_expect_eq(slurm_rank_of_line("srun: error: n1: tasks 0-1: Exited with exit code 1"), -1);
    cr_expect_eq(slurm_rank_of_line("a line about srun: error: n2: task 3: Exited"), -1);
    cr_expect_eq(slurm_rank_of_line("srun: error: n2: task 99999999999: Killed"), -1);
}

Test(slurm_answer, the_job_that_depends_on_ours_is_found)
{
    cr_expect_eq(slurm_dependent("7|(null)\n9|afterany:12(unfulfilled)\n", 12), 9);
    cr_expect_eq(slurm_dependent("9|afterany:123(unfulfilled)\n8|afterany:12", 12), 8,
                 "an id that starts with our id is another job's");
    cr_expect_eq(slurm_dependent("9|afterany:123(unfulfilled)\n", 12), 0);
    cr_expect_eq(slurm_dependent("", 12), 0);
    cr_expect_eq(slurm_dependent(NULL, 12), 0);
}

Test(slurm_answer, states_of_jobs_and_nodes)
{
    bool answers;

    cr_expect(slurm_state_waits("PENDING") && !slurm_state_waits("RUNNING"));
    cr_expect(slurm_state_runs("SUSPENDED") && slurm_state_is_suspended("STOPPED"));
    cr_expect(!slurm_state_runs("COMPLETED") && !slurm_state_runs("COMPLETING"));
    cr_expect(slurm_state_runs("SIGNALING") && slurm_state_runs("SOMETHING_NEW"));
    cr_expect(slurm_state_ends("STAGE_OUT") && !slurm_state_ends("SIGNALING"));
    cr_expect(slurm_node_state("allocated", &answers) == SLURM_NODE_UP && answers);
    cr_expect(slurm_node_state("mixed*", &answers) == SLURM_NODE_UP && !answers);
    cr_expect(slurm_node_state("down*", &answers) == SLURM_NODE_DOWN && !answers);
    cr_expect_eq(slurm_node_state("drained", &answers), SLURM_NODE_DRAINING);
    cr_expect_eq(slurm_node_state("DRAINING@", &answers), SLURM_NODE_DRAINING);
    cr_expect_eq(slurm_node_state("powered_down", &answers), SLURM_NODE_DOWN);
    cr_expect_eq(slurm_node_state("unknown", &answers), SLURM_NODE_UNKNOWN);
    cr_expect_eq(slurm_node_state("unknown*", &answers), SLURM_NODE_UNKNOWN);
}

Test(slurm_answer, a_log_shows_the_lost_node_and_that_nothing_was_started)
{
    static const char lost[] =
        "srun: error: Task launch for StepId=1.2 failed on node n2: Connection refused\n";

    cr_expect(slurm_lost_node(lost, "n2") && !slurm_lost_node(lost, "n1"));
    cr_expect(slurm_lost_node("srun: error: Node failure on n3\n", "n3"));
    cr_expect_not(slurm_lost_node("", "n2"));
    cr_expect(slurm_aborted_step("srun: StepId=1.0 aborted before step completely launched.\n"));
    cr_expect_not(slurm_aborted_step(lost));
}

Test(slurm_answer, a_lost_node_is_matched_by_its_whole_name)
{
    static const char lost[] = "srun: error: Node failure on n12\n"
                               "srun: error: Node failure on n3,n4\n"
                               "srun: error: Task launch for StepId=1.2 failed on node n25: a b\n"
                               "srun: error: Task launch for StepId=1.2 failed on node n26: a b\n"
                               "srun: error: Node failure on n7";

    cr_expect(slurm_lost_node(lost, "n12"));
    cr_expect_not(slurm_lost_node(lost, "n1"), "its name begins as that of n12");
    cr_expect_not(slurm_lost_node(lost, "n2"));
    cr_expect(slurm_lost_node(lost, "n3") && slurm_lost_node(lost, "n4"));
    cr_expect(slurm_lost_node(lost, "n25"));
    cr_expect(slurm_lost_node(lost, "n26") && slurm_lost_node(lost, "n7"),
              "each of several messages counts");
    cr_expect_not(slurm_lost_node(lost, "n125"));
}
