/* cli/run/cmd_plan.c - tp-run plan JOB.yaml: which layouts fit which number of ranks. */
#include <stdio.h>
#include <string.h>

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

/* Whether an earlier line has the same mesh. Only the best variant (sp, ZeRO, vpp) is shown. */
static bool is_variant(const struct plan_candidate *c, int i)
{
    const struct spec *a = &c[i].config.spec;

    for (int k = 0; k < i; k++) {
        const struct spec *b = &c[k].config.spec;

        if (a->tp == b->tp && a->pp == b->pp && a->cp == b->cp && a->dp == b->dp)
            return true;
    }
    return false;
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

static void print_people(const struct plan_candidate *c, int n, int ranks, bool variants)
{
    const struct plan_candidate *best = candidates_best(c, n);
    bool on_gpus = n > 0 && c[0].on_gpu;
    int hidden = 0;

    printf("for up to %d ranks, the best first (*: what tp-run would run; m: measured)\n\n"
           "  %-26s %5s  %9s %11s\n",
           ranks, "layout", "ranks", "step", on_gpus ? "a GPU" : "a rank");
    for (int i = 0; i < n; i++) {
        if (!variants && &c[i] != best && is_variant(c, i)) {
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
    int ranks = 0;
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
    TP_TRY(read_findings(&findings, &context.job, &err));
    if (!ranks)
        ranks = job_ranks(&context.job);
    TP_TRY(candidates_find(&c, &n, &context.job, &findings, ranks, &context.arena, &err));
    if (as_json)
        print_list(c, n);
    else
        print_people(c, n, ranks, variants);
    if (!as_json && n > 0 && c[0].on_gpu)
        print_gpus(&context.job, &findings);
done:
    run_context_close(&context);
    return report_json(as_json, "tp-run", st, &err);
}
