/* cli/run/cmd_plan.c - tp-run plan JOB.yaml: which layouts fit which number of ranks. */
#include <stdio.h>
#include <stdlib.h>

#include "cli/print.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_context.h"
#include "core/size.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/plan/candidates.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/state/run_record.h"

static void print_candidate(const struct plan_candidate *c, bool best)
{
    char config[RUN_CONFIG_TEXT_MAX], memory[SIZE_TEXT_MAX];

    printf("%c %-26s %5d  ", best ? '*' : ' ', run_config_format(config, &c->config), c->ranks);
    if (!c->legal) {
        printf("%9s %11s  no: %s\n", "", c->memory ? size_format(memory, c->memory) : "", c->why);
        return;
    }
    if (c->seconds > 0)
        printf("%6.1f ms%c", 1e3 * c->seconds, c->measured ? 'm' : ' ');
    else
        printf("%9s ", "?");
    printf("%11s%s\n", c->memory ? size_format(memory, c->memory) : "?",
           c->is_tight ? "  may not fit its GPU" : "");
}

static json_t *candidate_json(const struct plan_candidate *c)
{
    char spec[SPEC_TEXT_MAX];
    json_t *o =
        json_pack("{s:s,s:I,s:s,s:i,s:b,s:f,s:b,s:I,s:s}", "layout",
                  spec_format(spec, &c->config.spec), "micro", (json_int_t)c->config.micro,
                  "recompute", c->config.recompute ? recompute_name(c->config.recompute) : "",
                  "ranks", c->ranks, "legal", c->legal, "step_seconds", c->seconds, "measured",
                  c->measured, "memory_bytes", (json_int_t)c->memory, "why", c->why);

    if (c->on_gpu)
        json_object_update_new(
            o, json_pack("{s:b,s:I,s:I,s:I,s:I,s:I}", "may_not_fit", c->is_tight, "tensor_bytes",
                         (json_int_t)c->gpu.tensors, "scratch_bytes", (json_int_t)c->gpu.scratch,
                         "cuda_bytes", (json_int_t)c->gpu.cuda, "nccl_bytes",
                         (json_int_t)c->gpu.collectives, "host_bytes", (json_int_t)c->gpu.host));
    return o;
}

static int compare_meshes(const struct spec *a, const struct spec *b)
{
    const int x[] = { a->tp, a->pp, a->cp, a->dp }, y[] = { b->tp, b->pp, b->cp, b->dp };
    int i = 0;

    while (i < 3 && x[i] == y[i])
        i++;
    return (x[i] > y[i]) - (x[i] < y[i]);
}

/* By mesh, those of a mesh in the order of the list. */
static int by_mesh(const void *a, const void *b)
{
    const struct plan_candidate *x = *(const struct plan_candidate *const *)a,
                                *y = *(const struct plan_candidate *const *)b;
    const int order = compare_meshes(&x->config.spec, &y->config.spec);

    return order ? order : (x > y) - (x < y);
}

/* Which candidates have the mesh of an earlier one. Only the best variant (sp, ZeRO, vpp) is shown.
 */
static bool *find_variants(const struct plan_candidate *c, int n, struct arena *arena)
{
    const struct plan_candidate **sorted = arena_array(arena, (size_t)n + 1, sizeof *sorted);
    bool *is_variant = arena_array(arena, (size_t)n + 1, sizeof *is_variant);

    if (!sorted || !is_variant)
        return NULL;
    for (int i = 0; i < n; i++)
        sorted[i] = &c[i];
    qsort(sorted, (size_t)n, sizeof *sorted, by_mesh);
    for (int i = 1; i < n; i++)
        is_variant[sorted[i] - c] =
            compare_meshes(&sorted[i - 1]->config.spec, &sorted[i]->config.spec) == 0;
    return is_variant;
}

/* What the column of memory means. */
static void print_gpus(const struct job *job, const struct job_findings *findings)
{
    char limit[SIZE_TEXT_MAX];

    printf("\na GPU: memory for tensors, and an estimate of what kernels, CUDA and NCCL take");
    if (job->layouts.memory)
        printf("; layouts.memory is %s", size_format(limit, job->layouts.memory));
    else if (findings->gpus.bytes)
        printf("; the smallest GPU has %s", size_format(limit, findings->gpus.bytes));
    printf("\n");
}

/* variants: those that are not shown; NULL: all are. */
static void print_people(const struct plan_candidate *c, int n, int ranks, const bool *variants)
{
    const struct plan_candidate *best = candidates_best(c, n);
    bool on_gpus = n > 0 && c[0].on_gpu;
    int hidden = 0;

    printf("for up to %d rank%s, the best first (*: what tp-run would run; m: measured)\n\n"
           "  %-26s %5s  %9s %11s\n",
           ranks, ranks == 1 ? "" : "s", "layout", "ranks", "step",
           on_gpus ? "memory/GPU" : "memory/rank");
    for (int i = 0; i < n; i++) {
        if (variants && variants[i] && &c[i] != best) {
            hidden++;
            continue;
        }
        print_candidate(&c[i], &c[i] == best);
    }
    if (!best)
        printf("none fits\n");
    if (hidden)
        printf("\n%d more differ from these only in sp, ZeRO or vpp: --all shows them\n", hidden);
}

static void print_list(const struct plan_candidate *c, int n)
{
    json_t *all = json_array();

    for (int i = 0; i < n; i++)
        json_array_append_new(all, candidate_json(&c[i]));
    print_json_line(all);
    json_decref(all);
}

/* Read what the attempts of this job have shown, if it was run. */
static tp_status read_findings(struct job_findings *out, const struct job *job, struct tp_err *err)
{
    struct run_record record;
    json_t *last = NULL;
    tp_status st = TP_OK;

    *out = (struct job_findings){ 0 };
    if (journal_peek(&last, job->state, err) == TP_OK)
        st = run_record_read(&record, journal_run_record(last), job->state, 0, err);
    if (last && st == TP_OK)
        *out = record.findings;
    json_decref(last);
    return st;
}

int cmd_run_plan(int argc, char **argv)
{
    const char *path = NULL;
    int ranks = -1;
    bool as_json = false, variants = false;
    struct run_context context;
    struct tp_err err = { 0 };
    struct job_findings findings;
    struct plan_candidate *c = NULL;
    int code, n = 0;
    const struct opt opts[] = {
        OPT_ARG("JOB.yaml", &path, "the job file"),
        OPT_INT('n', "ranks", "N", &ranks, "number of ranks to plan for (default: all nodes)"),
        OPT_FLAG('a', "all", &variants, "also show layouts that differ only in sp, ZeRO or vpp"),
        OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END
    };
    tp_status st;

    if (!report_options(
            &code, "tp-run plan", opts, argc, argv,
            "Shows which layouts fit which number of ranks, and why others do not. Runs\n"
            "nothing. Step times are predicted from those measured in this job.",
            NULL))
        return code;
    TP_TRY(run_context_open(&context, path, &err));
    if (ranks == 0 || ranks > JOB_RANKS_MAX)
        TP_TRY(tp_fail(&err, TP_E_USAGE, "--ranks is a number from 1 to %d, not %d", JOB_RANKS_MAX,
                       ranks));
    TP_TRY(read_findings(&findings, &context.job, &err));
    if (ranks < 0)
        ranks = job_ranks(&context.job);
    TP_TRY(candidates_find(&c, &n, &context.job, &findings, ranks, &context.arena, &err));
    if (as_json)
        print_list(c, n);
    else
        print_people(c, n, ranks, variants ? NULL : find_variants(c, n, &context.arena));
    if (!as_json && n > 0 && c[0].on_gpu)
        print_gpus(&context.job, &findings);
done:
    run_context_close(&context);
    return report_json(as_json, "tp-run", st, &err);
}
