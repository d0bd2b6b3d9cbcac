/* tests/unit/orchestrator_slurm.c - Slurm's texts are read, and its command lines put together. */
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

Test(slurm, times_are_read_as_squeue_writes_them)
{
    cr_expect_eq(slurm_seconds("5:00"), 300);
    cr_expect_eq(slurm_seconds("0:07"), 7);
    cr_expect_eq(slurm_seconds("1:02:03"), 3723);
    cr_expect_eq(slurm_seconds("2-01:00:00"), 176400);
    cr_expect_eq(slurm_seconds("1-12"), 86400 + 12 * 3600);
    cr_expect_eq(slurm_seconds("90"), 5400);
    for (size_t i = 0; i < 5; i++) {
        const char *const none[] = { "UNLIMITED", "NOT_SET", "INVALID", "", "5:x" };

        cr_expect_lt(slurm_seconds(none[i]), 0, "%s", none[i]);
    }
}

Test(slurm, every_time_is_read_back)
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

Test(slurm, an_answer_of_squeue_is_read_among_warnings)
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

Test(slurm, the_end_may_come_before_the_time_limit)
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

Test(slurm, numbers_of_jobs_are_read)
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

static bool has(const struct job_words *w, const char *word)
{
    for (int i = 0; i < w->n; i++)
        if (strcmp(w->word[i], word) == 0)
            return true;
    return false;
}

static void read_job(struct job *job, struct arena *arena, const char *options)
{
    char text[1000];
    struct tp_err err = { 0 };

    snprintf(text, sizeof text,
             "command: tp-train --model m --data d\nckpt: c\nbackend: slurm\n"
             "slurm: {nodes: 4, tasks_per_node: 8, options: %s, step_options: [--cpu-bind=none]}\n",
             options);
    cr_assert_eq(job_file_parse(job, text, strlen(text), "./x.yaml", backends_job(), arena, &err),
                 TP_OK, "%s", err.msg);
}

Test(slurm, options_go_to_the_request_and_containers_to_the_ranks)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_request q = { .nodes = 4, .exclude = "n7" };

    read_job(&job, &arena, "[--account=a, --time=5, --container=/x, --exclude=n1]");
    cr_expect_eq(job_backend_ranks(&job), 32);
    cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
    cr_expect(has(&w, "--account=a") && has(&w, "--time=5") && has(&w, "--nodes=4"));
    cr_expect(has(&w, "--container=/x") && has(&w, "--no-kill") && has(&w, "--no-shell"));
    cr_expect_str_eq(w.word[w.n - 1], "--exclude=n1,n7", "neither excludes the other");
    cr_expect_null(w.word[w.n]);
    cr_assert_eq(slurm_step(&w, &job, 12, "n1,n2", 2, 16, &arena, &err), TP_OK);
    cr_expect(has(&w, "--jobid=12") && has(&w, "--container=/x") && has(&w, "--cpu-bind=none"));
    cr_expect_not(has(&w, "--account=a"));
    arena_free(&arena);
}

Test(slurm, what_joins_an_allocation_is_wanted_for_the_time_that_it_has_left)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct job_words w;
    struct job job;
    const struct slurm_request q = { .nodes = 1, .exclude = "", .expand = 12, .seconds = 250 };

    read_job(&job, &arena, "[--time=60, --nodes=4]");
    cr_assert_eq(slurm_salloc(&w, &job, &q, &arena, &err), TP_OK);
    cr_expect_str_eq(w.word[w.n - 1], "--time=5", "the last one counts");
    cr_expect_str_eq(w.word[w.n - 2], "--nodes=1");
    cr_expect_str_eq(w.word[w.n - 3], "--dependency=expand:12");
    arena_free(&arena);
}

Test(slurm, a_step_that_could_not_begin_is_told_from_a_node_that_does_not_answer)
{
    cr_expect(slurm_kept_step(
        "srun: error: Unable to confirm allocation for job 1: Socket timed out on send/recv "
        "operation\n"
        "srun: Check SLURM_JOB_ID environment variable. Expired or invalid job 1\n"));
    cr_expect_not(slurm_kept_step(
        "srun: error: Task launch for StepId=1.2 failed on node n2: Connection refused\n"));
    cr_expect_not(slurm_kept_step(
        "srun: error: Unable to create step for job 1: More processors requested than permitted\n"
        "socket timed out\n"));
}
