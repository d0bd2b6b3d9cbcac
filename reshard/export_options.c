/* reshard/export_options.c - see reshard/export_options.h. */
#include "reshard/export_options.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/formats/megatron/megatron_version.h"

int export_options_word(const char *word, const char *first, const char *second)
{
    return !word ? 0 : strcmp(word, first) == 0 ? 1 : strcmp(word, second) == 0 ? 2 : -1;
}

bool export_options_rate(double *out, const char *text)
{
    char *end;

    *out = strtod(text, &end);
    return end != text && *end == '\0' && isfinite(*out) && *out >= 0;
}

/* The rates of a schedule of Megatron-LM's. */
static tp_status check_rates(const struct export_request *q, const struct export_format *f,
                             struct tp_err *err)
{
    const char *name = q->lr ? "lr" : "min-lr";
    double max = 0, min = 0;

    if (!q->lr && !q->min_lr)
        return TP_OK;
    if (!f->distributed_optimizer)
        return tp_fail(err, TP_E_USAGE, "--%s is for --format megatron or torch_dist, not %s", name,
                       q->format);
    if (q->no_optim)
        return tp_fail(err, TP_E_USAGE, "--%s and --no-optim exclude each other", name);
    if (q->lr && !export_options_rate(&max, q->lr))
        return tp_fail(err, TP_E_USAGE, "--lr takes a learning rate, such as 3e-4, not '%.40s'",
                       q->lr);
    if (q->min_lr && !export_options_rate(&min, q->min_lr))
        return tp_fail(err, TP_E_USAGE, "--min-lr takes a learning rate, such as 3e-5, not '%.40s'",
                       q->min_lr);
    if (q->lr && min > max)
        return tp_fail(err, TP_E_USAGE, "--min-lr %.40s is above --lr %.40s", q->min_lr, q->lr);
    return TP_OK;
}

/* The options of Megatron-LM's modules. */
static tp_status check_modules(const struct export_request *q, const struct export_format *f,
                               struct tp_err *err)
{
    if ((q->transformer_impl || q->moe_experts) && !f->modules)
        return tp_fail(err, TP_E_USAGE, "--%s is for --format megatron, not %s%s",
                       q->transformer_impl ? "transformer-impl" : "moe-experts", q->format,
                       f->distributed_optimizer ? ", which has the same names for all" : "");
    if (export_options_word(q->transformer_impl, "local", "transformer_engine") < 0)
        return tp_fail(err, TP_E_USAGE,
                       "--transformer-impl takes local or transformer_engine, not '%.40s'",
                       q->transformer_impl);
    if (export_options_word(q->moe_experts, "sequential", "grouped") < 0)
        return tp_fail(err, TP_E_USAGE, "--moe-experts takes grouped or sequential, not '%.40s'",
                       q->moe_experts);
    return TP_OK;
}

tp_status export_options_check(const struct export_request *q, const struct export_format *f,
                               struct tp_err *err)
{
    struct megatron_version ignored;
    tp_status st;

    if (q->q8_0 && !f->q8_0)
        return tp_fail(err, TP_E_USAGE, "--dtype q8_0 is for --format gguf, not %s", q->format);
    if ((q->distributed_optimizer || q->ordinary_optimizer) && !f->distributed_optimizer)
        return tp_fail(err, TP_E_USAGE,
                       "--%s-optimizer is for --format megatron or torch_dist, not %s",
                       q->distributed_optimizer ? "distributed" : "ordinary", q->format);
    if (q->distributed_optimizer && (q->no_optim || q->ordinary_optimizer))
        return tp_fail(err, TP_E_USAGE, "--distributed-optimizer and --%s exclude each other",
                       q->no_optim ? "no-optim" : "ordinary-optimizer");
    if (q->megatron_adam && !f->distributed_optimizer)
        return tp_fail(err, TP_E_USAGE,
                       "--megatron-adam is for --format megatron or torch_dist, not %s", q->format);
    if (q->megatron_adam && (q->no_optim || q->distributed_optimizer))
        return tp_fail(err, TP_E_USAGE, "--megatron-adam and --%s exclude each other",
                       q->no_optim ? "no-optim" : "distributed-optimizer");
    if (q->megatron_adam && strcmp(q->megatron_adam, "fused") != 0 &&
        strcmp(q->megatron_adam, "torch") != 0)
        return tp_fail(err, TP_E_USAGE, "--megatron-adam takes fused or torch, not '%.40s'",
                       q->megatron_adam);
    if (q->megatron_core && !f->megatron_core)
        return tp_fail(err, TP_E_USAGE, "--megatron-core is for --format torch_dist, not %s",
                       q->format);
    if (q->transformers && !f->module_names)
        return tp_fail(err, TP_E_USAGE,
                       "--transformers is for --format dcp, accelerate or deepspeed, not %s",
                       q->format);
    if (export_options_word(q->transformers, "4", "5") < 0)
        return tp_fail(err, TP_E_USAGE, "--transformers takes 4 or 5, not '%.40s'",
                       q->transformers);
    if (q->param_groups && !f->param_groups)
        return tp_fail(err, TP_E_USAGE, "--param-groups is for --format accelerate-ddp, not %s",
                       q->format);
    if (export_options_word(q->param_groups, "one", "norms") < 0 &&
        strcmp(q->param_groups, "examples") != 0)
        return tp_fail(err, TP_E_USAGE, "--param-groups takes one, norms or examples, not '%.40s'",
                       q->param_groups);
    st = check_modules(q, f, err);
    if (!st)
        st = check_rates(q, f, err);
    return st ? st : megatron_version_find(&ignored, q->megatron_core, err);
}
