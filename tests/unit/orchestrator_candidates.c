/* tests/unit/orchestrator_candidates.c - candidates, refusals, and the fit of the cost model.
 *
 * covers: orchestrator/plan/cost */
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/plan/candidates.h"

#include <criterion/criterion.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/file_tree.h"
#include "orchestrator/plan/cost.h"
#include "tests/unit/temp_dir.h"

static struct arena arena;
static struct tp_err err;
static struct job job;

static const char CONFIG[] =
    "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\",\"vocab_size\":256,"
    "\"hidden_size\":512,\"intermediate_size\":1408,\"num_hidden_layers\":8,"
    "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"max_position_embeddings\":256,"
    "\"rms_norm_eps\":1e-5}";

/* The job with more options of tp-train. */
static void read_job(const char *options)
{
    char text[512];

    snprintf(text, sizeof text,
             "command: tp-train --model %s/config.json --batch 12 --seq 256 --micro 1 --steps 10 "
             "%s\nckpt: c\nnodes: 16\n",
             temp_dir, options);
    cr_assert_eq(
        job_file_parse(&job, text, strlen(text), "/tmp/x.yaml", backends_job(), &arena, &err),
        TP_OK, "%s", err.msg);
}

static void setup(void)
{
    char path[64];

    temp_dir_make();
    snprintf(path, sizeof path, "%s/config.json", temp_dir);
    cr_assert_eq(file_write_new(path, CONFIG, sizeof CONFIG - 1, &err), TP_OK);
    read_job("");
}

TestSuite(candidates, .init = setup, .fini = temp_dir_remove);

static struct plan_candidate *find(struct plan_candidate *c, int n, const char *spec)
{
    char text[SPEC_TEXT_MAX];

    for (int i = 0; i < n; i++)
        if (strcmp(spec_format(text, &c[i].config.spec), spec) == 0)
            return &c[i];
    cr_assert(0, "no candidate %s", spec);
    return NULL;
}

static void has_mesh(struct plan_candidate *c, int n, int tp, int pp, int dp)
{
    for (int i = 0; i < n; i++)
        if (c[i].legal && c[i].config.spec.tp == tp && c[i].config.spec.pp == pp &&
            c[i].config.spec.dp == dp)
            return;
    cr_assert(0, "no tp%dpp%ddp%d", tp, pp, dp);
}

/* The list has each mesh that the model (8 heads, 8 layers) and the batch of 12 allow, in at least
 * one legal variant. It has each impossible mesh once, with a reason. */
Test(candidates, every_mesh_of_at_most_these_ranks_is_listed_legal_ones_first)
{
    struct plan_candidate *c;
    int n;

    for (int ranks = 1; ranks <= 16; ranks++) {
        bool refused = false;

        cr_assert_eq(candidates_find(&c, &n, &job, NULL, ranks, &arena, &err), TP_OK, "%s",
                     err.msg);
        for (int i = 0; i < n; i++) {
            const struct spec *s = &c[i].config.spec;
            bool should = 8 % s->tp == 0 && s->pp <= 8 && 256 % (2 * s->cp) == 0 &&
                          12 % s->dp == 0 && (s->vpp == 1 || 12 / s->dp % s->pp == 0);

            cr_assert_eq(c[i].legal, should, "tp%dpp%ddp%d: %s", s->tp, s->pp, s->dp, c[i].why);
            cr_assert(c[i].legal || c[i].why[0]);
            cr_assert(c[i].ranks <= ranks && (c[i].legal || s->tp * s->dp * s->pp * s->cp > 1));
            cr_assert(!(refused && c[i].legal), "a legal one after a refused one");
            refused = refused || !c[i].legal;
            for (int k = 0; k < i; k++)
                cr_assert(!run_config_same(&c[i].config, &c[k].config), "a config is listed twice");
        }
        for (int tp = 1; tp <= 8; tp *= 2)
            for (int pp = 1; pp <= 4; pp *= 2)
                for (int dp = 1; tp * pp * dp <= ranks; dp++)
                    if (12 % dp == 0)
                        has_mesh(c, n, tp, pp, dp);
    }
}

/* A mixture of 4 experts: ep is a power of two that divides the ranks of dp x cp. */
Test(candidates, experts_are_shared_by_ranks_of_dp_and_cp)
{
    static const char mixture[] =
        "{\"architectures\":[\"MixtralForCausalLM\"],\"model_type\":\"mixtral\",\"vocab_size\":256,"
        "\"hidden_size\":64,\"intermediate_size\":96,\"num_hidden_layers\":2,"
        "\"num_attention_heads\":8,\"num_key_value_heads\":8,\"num_local_experts\":4}";
    struct plan_candidate *c;
    char path[64];
    int n, found = 0;

    snprintf(path, sizeof path, "%s/config.json", temp_dir);
    cr_assert_eq(file_tree_remove(path, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(file_write_new(path, mixture, sizeof mixture - 1, &err), TP_OK);
    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 8, &arena, &err), TP_OK, "%s", err.msg);
    for (int i = 0; i < n; i++) {
        const struct spec *s = &c[i].config.spec;

        cr_assert(s->ep == 1 || (c[i].legal && s->dp * s->cp % s->ep == 0), "%s", c[i].why);
        found += s->ep > 1;
    }
    cr_assert(found > 0 && find(c, n, "tp2ep4dp4")->legal && find(c, n, "tp1cp2ep2")->legal &&
              find(c, n, "tp2ep2dp4zero3")->legal);
}

Test(candidates, only_the_axes_of_the_job_are_used)
{
    struct plan_candidate *c;
    int n;

    job.layouts.axes = (struct job_words){ .n = 2, .word = (char *[]){ "dp", "zero", NULL } };
    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 4, &arena, &err), TP_OK);
    for (int i = 0; i < n; i++)
        cr_assert(c[i].config.spec.tp == 1 && c[i].config.spec.pp == 1 && !c[i].config.spec.sp);
    cr_expect(find(c, n, "tp1dp4zero3")->legal && find(c, n, "tp1dp4zero1")->legal);
}

Test(candidates, pipelines_get_microbatches_and_only_little_memory_leads_to_recomputation)
{
    struct plan_candidate *c;
    int64_t need;
    int n;

    job.layouts.micro = 0;
    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 4, &arena, &err), TP_OK);
    cr_expect(find(c, n, "tp1pp4")->config.micro > 0 && find(c, n, "tp1pp4")->config.micro < 12);
    cr_expect_eq(find(c, n, "tp4")->config.micro, 0);
    for (int i = 0; i < n; i++)
        cr_expect(!c[i].config.recompute);
    need = find(c, n, "tp1")->memory;
    do { /* with less memory: first smaller microbatches, then recomputation, then none fits */
        job.layouts.memory = need - 1;
        cr_assert_eq(candidates_find(&c, &n, &job, NULL, 1, &arena, &err), TP_OK);
        cr_assert(!c[0].legal || c[0].memory < need);
        need = c[0].memory;
        cr_assert(!c[0].legal || c[0].config.recompute || c[0].config.micro);
    } while (c[0].legal);
    cr_expect(strstr(c[0].why, "at the least"), "%s", c[0].why);
}

/* The bubble is (p - 1) / (v m) of the ideal time: with one microbatch, p stages take p times as
 * long as with very many. vpp and more microbatches make the bubble smaller. */
Test(candidates, the_bubble_is_that_of_1f1b)
{
    struct cost_work work = {
        .asked = { .dtype = DTYPE_F32, .global_batch_size = 12, .seq_length = 256 }
    };
    struct model m = { .vocab = 256,
                       .hidden = 512,
                       .ffn = 1408,
                       .layers = 8,
                       .heads = 8,
                       .kv_heads = 8,
                       .head_dim = 64 };
    double one[COST_TERMS], x[COST_TERMS];
    struct run_config w = { .spec = spec_default() };

    work.model = &m;
    cost_terms(one, &work, &w);
    for (int v = 1; v <= 2; v++)
        for (int64_t micro = 1; micro <= 12; micro++) {
            if (12 % micro)
                continue;
            w.spec.pp = 4;
            w.spec.vpp = v;
            w.micro = micro;
            cost_terms(x, &work, &w);
            cr_expect_float_eq(x[0], one[0] / 4 * (1 + 3.0 * (double)micro / (v * 12)),
                               1e-9 * one[0]);
        }
}

/* A token's copies go to 2 experts, of which 3 of 4 are on other ranks: bf16 there, floats back; in
 * backward floats there, bf16 back, and the copies again. */
Test(candidates, what_ep_sends_counts)
{
    const struct model m = { .vocab = 256,
                             .hidden = 512,
                             .ffn = 1408,
                             .layers = 8,
                             .heads = 8,
                             .kv_heads = 8,
                             .head_dim = 64,
                             .experts = 4,
                             .experts_per_token = 2 };
    const struct cost_work work = {
        .model = &m, .asked = { .dtype = DTYPE_BF16, .global_batch_size = 16, .seq_length = 256 }
    };
    const double copies = 4 * 256 * 2, layers = 8, microbatches = 2;
    struct run_config w = { .spec = spec_default(), .micro = 2 };
    double alone[COST_TERMS], x[COST_TERMS];

    w.spec.dp = 4;
    cost_terms(alone, &work, &w);
    w.spec.ep = 4;
    cost_terms(x, &work, &w);
    cr_expect_float_eq(x[1] - alone[1], layers * copies * 512 * (2 + 4 + 4 + 2 + 2) * 3 / 4, 1);
    cr_expect_float_eq(x[3] - alone[3], microbatches * layers * 8, 1e-9);
    cr_expect_eq(x[0], alone[0]);
}

Test(candidates, measured_times_scale_the_predicted_ones)
{
    struct plan_candidate *c;
    const struct job_findings found = { .times = { .n = 1, .entry = { { "tp4", 0.5 } } } };
    double before, after;
    int n;

    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    before = find(c, n, "tp2")->seconds / find(c, n, "tp4")->seconds;
    cr_assert_eq(candidates_find(&c, &n, &job, &found, 8, &arena, &err), TP_OK);
    cr_expect(find(c, n, "tp4")->measured && find(c, n, "tp4")->seconds == 0.5);
    after = find(c, n, "tp2")->seconds / 0.5;
    cr_expect_float_eq(after, before, 0.1 * before, "%g, was %g", after, before);
}

/* Measured times of a machine with other costs: from three layouts the fourth is predicted. */
Test(candidates, the_fit_learns_that_a_machine_computes_slowly_but_sends_fast)
{
    struct plan_candidate *guess, *c;
    const struct job_findings found = {
        .times = { .n = 3, .entry = { { "tp1", 8.0 }, { "tp2", 4.02 }, { "tp1dp2", 4.01 } } }
    };
    int n;

    cr_assert_eq(candidates_find(&guess, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_assert_eq(candidates_find(&c, &n, &job, &found, 8, &arena, &err), TP_OK);
    cr_expect_float_eq(find(c, n, "tp4")->seconds, 2.05, 0.2, "%g", find(c, n, "tp4")->seconds);
    cr_expect_eq(c[0].ranks, 8);
}

Test(candidates, a_request_gets_its_layout_or_the_reason)
{
    struct plan_candidate *c, got;
    int n;

    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_assert_eq(candidates_pick(&got, c, n, "tp2dp2", &err), TP_OK);
    cr_expect(got.config.spec.tp == 2 && got.config.spec.dp == 2);
    cr_assert_eq(candidates_pick(&got, c, n, "5", &err), TP_OK);
    cr_expect_eq(got.ranks, 4);
    cr_expect_eq(candidates_pick(&got, c, n, "tp5", &err), TP_E_LAYOUT);
    cr_expect(strstr(err.msg, "tp5"), "%s", err.msg);
    cr_expect_eq(candidates_pick(&got, c, n, "tp16", &err), TP_E_LAYOUT);
    cr_expect_str_eq(err.msg, "tp16 is not among the layouts that are allowed for the ranks there "
                              "are (tp-run plan shows them)");
    cr_expect_eq(candidates_pick(&got, c, n, "0", &err), TP_E_LAYOUT);
    cr_expect(strstr(err.msg, "none of the layouts that are allowed fits 0 ranks"), "%s", err.msg);
    cr_expect_eq(candidates_pick(&got, c, n, "nonsense", &err), TP_E_USAGE);
}

Test(candidates, layouts_that_all_need_more_ranks_are_refused_with_that_reason)
{
    struct spec allow[2];
    struct plan_candidate *c, got;
    int n;

    cr_assert_eq(spec_parse(&allow[0], "tp8", &err), TP_OK);
    cr_assert_eq(spec_parse(&allow[1], "tp4", &err), TP_OK);
    job.layouts.allow = allow;
    job.layouts.n_allow = 2;
    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 2, &arena, &err), TP_OK);
    cr_expect_eq(candidates_pick(&got, c, n, "", &err), TP_E_LAYOUT);
    cr_expect_str_eq(err.msg, "none of the layouts that are allowed fits the ranks there are (tp8: "
                              "needs 8 ranks, there are 2)");
    job.layouts.allow = NULL;
    job.layouts.n_allow = 0;
}

Test(candidates, the_memory_of_a_rank_is_a_limit)
{
    struct plan_candidate *c;
    int n;

    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    job.layouts.memory = find(c, n, "tp2")->memory;
    cr_assert_eq(candidates_find(&c, &n, &job, NULL, 8, &arena, &err), TP_OK);
    cr_expect(!find(c, n, "tp1")->legal && strstr(find(c, n, "tp1")->why, "layouts.memory"));
    cr_expect(find(c, n, "tp2")->legal);
}

/* ---- GPUs ---- */

static struct plan_candidate *candidate(const char *spec, const struct job_findings *found)
{
    struct plan_candidate *c;
    int n;

    cr_assert_eq(candidates_find(&c, &n, &job, found, 8, &arena, &err), TP_OK, "%s", err.msg);
    return find(c, n, spec);
}

/* CUDA's context and NCCL need memory, and no copy of the state does. */
Test(candidates, a_gpu_job_is_planned_with_gpu_memory)
{
    struct plan_candidate *cpu = candidate("tp2", NULL), *gpu;

    cr_expect(!cpu->on_gpu && cpu->memory < INT64_C(1) << 30);
    read_job("--device cuda");
    gpu = candidate("tp2", NULL);
    cr_expect(gpu->on_gpu && gpu->memory > INT64_C(2) << 30, "%lld", (long long)gpu->memory);
    cr_expect(gpu->gpu.tensors > 0 && gpu->gpu.tensors < cpu->memory && gpu->gpu.host > 0);
    cr_expect_gt(gpu->gpu.tensors, candidate("tp4", NULL)->gpu.tensors);
}

/* What its ranks report decides, because they may have got CPUs. */
Test(candidates, device_auto_is_planned_for_gpus_when_ranks_have_reported_some)
{
    struct job_findings found = { 0 };

    read_job("--device auto");
    cr_expect(!candidate("tp2", &found)->on_gpu);
    found.gpus.bytes = INT64_C(80) << 30;
    cr_expect(candidate("tp2", &found)->on_gpu);
    read_job("--device auto --mem 100G");
    cr_expect(!candidate("tp2", &found)->on_gpu, "tp-train compares --mem with the memory of CPUs");
    read_job("");
    cr_expect(!candidate("tp2", &found)->on_gpu);
}

Test(candidates, the_gpus_that_ranks_have_reported_are_a_limit)
{
    struct job_findings found = { 0 };
    struct plan_candidate *c;

    read_job("--device cuda --recompute none");
    c = candidate("tp1", &found);
    found.gpus.bytes = c->memory;
    cr_expect(!candidate("tp1", &found)->is_tight && candidate("tp2", &found)->is_tight);
    found.gpus.overstated = candidate("tp2", &found)->memory - found.gpus.bytes;
    cr_expect(!candidate("tp2", &found)->is_tight, "it has trained");
    cr_expect(candidate("tp2pp2", &found)->is_tight, "it needs more");
    found.gpus.bytes = candidate("tp2", &found)->gpu.tensors - 1;
    cr_expect(!candidate("tp2", &found)->legal, "its tensors alone do not fit");
    cr_expect(strstr(candidate("tp2", &found)->why, " of GPU memory, its GPU has "), "%s",
              candidate("tp2", &found)->why);
    job.layouts.memory = INT64_C(80) << 30;
    cr_expect(candidate("tp1", &found)->legal, "the job file says it better");
}

/* What is only estimated does not keep a job from the layouts that it has. */
Test(candidates, a_layout_that_may_not_fit_is_the_last_choice)
{
    struct job_findings found = { 0 };
    struct plan_candidate *c, picked;
    int n;

    read_job("--device cuda --recompute none");
    found.gpus.bytes = candidate("tp1", &found)->memory;
    cr_assert_eq(candidates_find(&c, &n, &job, &found, 8, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(candidates_pick(&picked, c, n, "", &err), TP_OK, "%s", err.msg);
    cr_expect(picked.ranks == 1 && !picked.is_tight);
    cr_assert_eq(candidates_pick(&picked, c, n, "tp2", &err), TP_OK, "it was asked for");
    cr_expect(picked.is_tight);
    found.gpus.bytes =
        candidate("tp1", &found)->gpu.tensors + candidate("tp1", &found)->gpu.scratch;
    cr_assert_eq(candidates_find(&c, &n, &job, &found, 8, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(candidates_pick(&picked, c, n, "", &err), TP_OK, "%s", err.msg);
    cr_expect(picked.is_tight && picked.memory == candidate("tp1", &found)->memory,
              "the one that needs least");
}

Test(candidates, what_needs_no_less_than_a_layout_that_did_not_fit_is_refused)
{
    struct job_findings found = { 0 };

    read_job("--device cuda --recompute none");
    found.gpus.refused = candidate("tp4", &found)->memory;
    cr_expect(!candidate("tp4", &found)->legal && !candidate("tp2", &found)->legal);
    cr_expect(candidate("tp8", &found)->legal);
    cr_expect(strstr(candidate("tp2", &found)->why, " did not fit its GPU"), "%s",
              candidate("tp2", &found)->why);
    step_times_set(&found.times, &candidate("tp4", &found)->config, 1);
    cr_expect(candidate("tp4", &found)->legal, "it has trained; something else had the memory");
}

/* In f32 products use no tensor cores. Ranks of dp on several machines share a network. */
Test(candidates, the_first_guess_for_gpus_is_that_of_gpus)
{
    struct model m = { .vocab = 32000,
                       .hidden = 4096,
                       .ffn = 11008,
                       .layers = 32,
                       .heads = 32,
                       .kv_heads = 32,
                       .head_dim = 128 };
    struct cost_work work = {
        .model = &m, .asked = { .dtype = DTYPE_BF16, .global_batch_size = 64, .seq_length = 2048 }
    };
    struct cost_model cpus, gpus, machines, f32;
    struct run_config tp = { .spec = spec_default() }, dp = { .spec = spec_default() };
    double seconds;

    tp.spec.tp = dp.spec.dp = 8;
    cost_fit(&cpus, &work, NULL, 0);
    work.machine = COST_GPU_MACHINES;
    cost_fit(&machines, &work, NULL, 0);
    work.machine = COST_GPUS;
    cost_fit(&gpus, &work, NULL, 0);
    seconds = cost_predict(&gpus, &work, &tp);
    cr_expect(seconds > 1 && seconds < 4, "%g", seconds); /* 5.6e15 flop at 4e14 a second and GPU */
    cr_expect_gt(cost_predict(&cpus, &work, &tp), 1000 * seconds);
    cr_expect_gt(cost_predict(&machines, &work, &dp), cost_predict(&gpus, &work, &dp));
    cr_expect_eq(cost_predict(&machines, &work, &tp), seconds);
    work.asked.dtype = DTYPE_F32;
    cost_fit(&f32, &work, NULL, 0);
    cr_expect_gt(cost_predict(&f32, &work, &tp), 5 * seconds);
}
