/* tests/unit/orchestrator_planner.c - a layout is selected once, and again only when something that
 * it depends on has changed. */
#include "orchestrator/plan/planner.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/file.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "tests/unit/temp_dir.h"

static struct arena arena;
static struct tp_err err;
static char model[64];
static struct job job;
static struct planner *planner;

static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":256,"
    "\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":%d,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"max_position_embeddings\":256,"
    "\"rms_norm_eps\":1e-5}";

static void write_model(int layers)
{
    char text[512];

    snprintf(text, sizeof text, CONFIG, layers);
    cr_assert_eq(file_replace(model, text, strlen(text), &err), TP_OK, "%s", err.msg);
}

static void setup(void)
{
    char text[512];

    temp_dir_make();
    snprintf(model, sizeof model, "%s/config.json", temp_dir);
    write_model(8);
    snprintf(text, sizeof text,
             "command: tp-train --model %s --batch 12 --seq 256 --steps 10\nckpt: c\nnodes: 16\n",
             model);
    cr_assert_eq(
        job_file_parse(&job, text, strlen(text), "/tmp/x.yaml", backends_job(), &arena, &err),
        TP_OK, "%s", err.msg);
    planner = planner_new(&job);
    cr_assert_not_null(planner);
}

static void teardown(void)
{
    planner_free(planner);
    arena_free(&arena);
    temp_dir_remove();
}

TestSuite(planner, .init = setup, .fini = teardown);

/* Ask for a plan. Returns how often candidates were computed so far. */
static int64_t ask(int ranks, const char *wanted, const struct job_findings *findings)
{
    struct plan_candidate c;

    cr_assert_eq(planner_select(planner, &c, ranks, wanted, findings, &err), TP_OK, "%s", err.msg);
    cr_assert(c.legal && c.ranks <= ranks);
    return planner_computed(planner);
}

Test(planner, a_job_that_waits_computes_once)
{
    struct plan_candidate first, again;

    cr_assert_eq(planner_select(planner, &first, 8, "", NULL, &err), TP_OK);
    for (int tick = 0; tick < 1000; tick++) {
        cr_assert_eq(planner_select(planner, &again, 8, "", NULL, &err), TP_OK);
        cr_assert(run_config_same(&first.config, &again.config));
    }
    cr_expect_eq(planner_computed(planner), 1);
}

Test(planner, a_refusal_is_computed_once_too)
{
    struct plan_candidate c;

    job.layouts.min_ranks = 8;
    for (int tick = 0; tick < 1000; tick++) {
        err.msg[0] = '\0';
        cr_assert_eq(planner_select(planner, &c, 4, "", NULL, &err), TP_E_LAYOUT);
        cr_assert(err.msg[0], "each call returns the reason");
    }
    cr_expect_eq(planner_computed(planner), 1);
}

Test(planner, other_ranks_or_another_request_is_computed)
{
    cr_expect_eq(ask(8, "", NULL), 1);
    cr_expect_eq(ask(4, "", NULL), 2);
    cr_expect_eq(ask(4, "tp2", NULL), 3);
    cr_expect_eq(ask(8, "", NULL), 3, "the earlier result is kept");
}

Test(planner, a_changed_model_is_read_again)
{
    cr_expect_eq(ask(8, "", NULL), 1);
    write_model(4); /* a new file: another inode */
    cr_expect_eq(ask(8, "", NULL), 2);
}

Test(planner, a_step_time_counts_when_it_differs_by_more_than_2_percent)
{
    struct job_findings found = { 0 };
    struct run_config config = { .spec = spec_default() };

    step_times_set(&found.times, &config, 1.0);
    cr_expect_eq(ask(8, "", &found), 1);
    step_times_set(&found.times, &config, 1.01);
    cr_expect_eq(ask(8, "", &found), 1);
    step_times_set(&found.times, &config, 1.1);
    cr_expect_eq(ask(8, "", &found), 2);
}

Test(planner, what_is_new_about_gpus_counts)
{
    struct job_findings found = { 0 };

    cr_expect_eq(ask(8, "", &found), 1);
    found.gpus.bytes = INT64_C(80) << 30;
    cr_expect_eq(ask(8, "", &found), 2);
    found.gpus.refused = INT64_C(70) << 30;
    cr_expect_eq(ask(8, "", &found), 3);
    cr_expect_eq(ask(8, "", &found), 3);
    found.gpus.overstated = 1;
    cr_expect_eq(ask(8, "", &found), 4);
}

Test(planner, a_request_that_is_impossible_now_gets_the_best_layout)
{
    struct plan_candidate best, c;

    cr_assert_eq(planner_select(planner, &best, 4, "", NULL, &err), TP_OK);
    cr_assert_eq(planner_select(planner, &c, 4, "tp8", NULL, &err), TP_OK, "%s", err.msg);
    cr_expect(run_config_same(&best.config, &c.config));
}
