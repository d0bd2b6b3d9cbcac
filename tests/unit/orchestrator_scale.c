/* tests/unit/orchestrator_scale.c - candidates, refusals, and the fit of the cost model. */
#include "orchestrator/scale.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

static struct arena arena;
static struct tp_err err;
static char dir[] = "/tmp/tp-scale-XXXXXX";
static struct job job;

static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":256,"
    "\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":8,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"max_position_embeddings\":256,"
    "\"rms_norm_eps\":1e-5}";

static void setup(void)
{
    char path[64], text[512];

    cr_assert_not_null(mkdtemp(dir));
    snprintf(path, sizeof path, "%s/config.json", dir);
    cr_assert_eq(file_write_new(path, CONFIG, sizeof CONFIG - 1, &err), TP_OK);
    snprintf(text, sizeof text,
             "command: tp-train --model %s --batch 12 --seq 256 --micro 1 --steps 10\nckpt: c\n"
             "nodes: 16\n",
             path);
    cr_assert_eq(job_parse(&job, text, strlen(text), "/tmp/x.yaml", &arena, &err), TP_OK, "%s",
                 err.msg);
}

static void teardown(void)
{
    file_remove_tree(dir, &err);
}

TestSuite(scale, .init = setup, .fini = teardown);

static struct candidate *find(struct candidate *c, int n, const char *spec)
{
    char text[SPEC_TEXT_MAX];

    for (int i = 0; i < n; i++)
        if (strcmp(spec_format(text, &c[i].spec), spec) == 0)
            return &c[i];
    cr_assert(0, "no candidate %s", spec);
    return NULL;
}

Test(scale, every_layout_of_at_most_the_ranks_is_there_once_the_legal_ones_first)
{
    struct candidate *c;
    int n, expected = 0;

    for (int ranks = 1; ranks <= 16; ranks++) {
        bool refused = false;

        cr_assert_eq(scale_candidates(&c, &n, &job, NULL, ranks, &arena, &err), TP_OK, "%s",
                     err.msg);
        expected = 0;
        for (int tp = 1; tp <= ranks; tp++)
            expected += ranks / tp;
        cr_assert_eq(n, expected);
        for (int i = 0; i < n; i++) {
            bool should = 8 % c[i].spec.tp == 0 && 12 % c[i].spec.dp == 0;

            cr_assert_eq(c[i].legal, should, "tp%ddp%d: %s", c[i].spec.tp, c[i].spec.dp, c[i].why);
            cr_assert(c[i].legal || c[i].why[0]);
            cr_assert(!(refused && c[i].legal), "a legal one after a refused one");
            refused = refused || !c[i].legal;
        }
    }
}

Test(scale, what_was_measured_scales_what_was_not)
{
    struct candidate *c;
    struct book book = { .n_measured = 1, .measured = { { "tp4", 0.5 } } };
    double before, after;
    int n;

    cr_assert_eq(scale_candidates(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    before = find(c, n, "tp2")->seconds / find(c, n, "tp4")->seconds;
    cr_assert_eq(scale_candidates(&c, &n, &job, &book, 8, &arena, &err), TP_OK);
    cr_expect(find(c, n, "tp4")->measured && find(c, n, "tp4")->seconds == 0.5);
    after = find(c, n, "tp2")->seconds / 0.5;
    cr_expect_float_eq(after, before, 0.1 * before, "%g, was %g", after, before);
}

/* Steps that obey the model with other weights: after three layouts the fourth is predicted. */
Test(scale, the_fit_finds_a_machine_that_computes_slowly_but_sends_fast)
{
    struct candidate *guess, *c;
    struct book book = { .n_measured = 3,
                         .measured = { { "tp1", 8.0 }, { "tp2", 4.02 }, { "tp1dp2", 4.01 } } };
    int n;

    cr_assert_eq(scale_candidates(&guess, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_assert_eq(scale_candidates(&c, &n, &job, &book, 8, &arena, &err), TP_OK);
    cr_expect_float_eq(find(c, n, "tp4")->seconds, 2.05, 0.2, "%g", find(c, n, "tp4")->seconds);
    cr_expect_eq(c[0].ranks, 8);
}

Test(scale, a_request_gets_its_layout_or_the_reason)
{
    struct candidate *c, got;
    int n;

    cr_assert_eq(scale_candidates(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_assert_eq(scale_pick(&got, c, n, "tp2dp2", &err), TP_OK);
    cr_expect(got.spec.tp == 2 && got.spec.dp == 2);
    cr_assert_eq(scale_pick(&got, c, n, "5", &err), TP_OK);
    cr_expect_eq(got.ranks, 4);
    cr_expect_eq(scale_pick(&got, c, n, "tp5", &err), TP_E_LAYOUT);
    cr_expect(strstr(err.msg, "tp5"), "%s", err.msg);
    cr_expect_eq(scale_pick(&got, c, n, "tp16", &err), TP_E_LAYOUT);
    cr_expect_eq(scale_pick(&got, c, n, "nonsense", &err), TP_E_USAGE);
}

Test(scale, a_rank_s_memory_is_a_limit)
{
    struct candidate *c;
    int n;

    cr_assert_eq(scale_candidates(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    job.layouts.memory = find(c, n, "tp2")->memory;
    cr_assert_eq(scale_candidates(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_expect(!find(c, n, "tp1")->legal && strstr(find(c, n, "tp1")->why, "layouts.memory"));
    cr_expect(find(c, n, "tp2")->legal);
}
