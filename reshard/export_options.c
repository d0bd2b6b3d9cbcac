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

#define OPTIMIZER_FORMATS "megatron or torch_dist"

tp_status export_options_check_format(const struct export_options *o, const struct export_format *f,
                                      struct tp_err *err)
{
    static const struct export_format none;
    const struct export_format *has = f ? f : &none;
    const char *one_form = has->distributed_optimizer ? ", which has the same names for all" : "";
    const struct {
        const char *name;
        bool given, has;
        const char *formats, *why;
    } options[] = {
        { "distributed-optimizer", o->distributed_optimizer, has->distributed_optimizer,
          OPTIMIZER_FORMATS, "" },
        { "ordinary-optimizer", o->ordinary_optimizer, has->distributed_optimizer,
          OPTIMIZER_FORMATS, "" },
        { "megatron-adam", o->megatron_adam, has->distributed_optimizer, OPTIMIZER_FORMATS, "" },
        { "megatron-core", o->megatron_core, has->megatron_core, "torch_dist", "" },
        { "transformer-impl", o->transformer_impl, has->modules, "megatron", one_form },
        { "moe-experts", o->moe_experts, has->modules, "megatron", one_form },
        { "transformers", o->transformers, has->module_names, "dcp, accelerate or deepspeed", "" },
        { "param-groups", o->param_groups, has->param_groups, "accelerate-ddp", "" },
        { "lr", o->lr, has->distributed_optimizer, OPTIMIZER_FORMATS, "" },
        { "min-lr", o->min_lr, has->distributed_optimizer, OPTIMIZER_FORMATS, "" },
    };

    for (size_t i = 0; i < sizeof options / sizeof *options; i++)
        if (options[i].given && !options[i].has)
            return tp_fail(err, TP_E_USAGE, "--%s is for --format %s%s%s%s", options[i].name,
                           options[i].formats, f ? ", not " : "", f ? f->name : "", options[i].why);
    return TP_OK;
}

/* The rates of a schedule of Megatron-LM's. */
static tp_status check_rates(const struct export_options *o, bool no_optim, struct tp_err *err)
{
    double max = 0, min = 0;

    if ((o->lr || o->min_lr) && no_optim)
        return tp_fail(err, TP_E_USAGE, "--%s and --no-optim exclude each other",
                       o->lr ? "lr" : "min-lr");
    if (o->lr && !export_options_rate(&max, o->lr))
        return tp_fail(err, TP_E_USAGE, "--lr takes a learning rate, such as 3e-4, not '%.40s'",
                       o->lr);
    if (o->min_lr && !export_options_rate(&min, o->min_lr))
        return tp_fail(err, TP_E_USAGE, "--min-lr takes a learning rate, such as 3e-5, not '%.40s'",
                       o->min_lr);
    if (o->lr && min > max)
        return tp_fail(err, TP_E_USAGE, "--min-lr %.40s is above --lr %.40s", o->min_lr, o->lr);
    return TP_OK;
}

/* Words that options take. */
static tp_status check_words(const struct export_options *o, struct tp_err *err)
{
    if (export_options_word(o->megatron_adam, "fused", "torch") < 0)
        return tp_fail(err, TP_E_USAGE, "--megatron-adam takes fused or torch, not '%.40s'",
                       o->megatron_adam);
    if (export_options_word(o->transformer_impl, "local", "transformer_engine") < 0)
        return tp_fail(err, TP_E_USAGE,
                       "--transformer-impl takes local or transformer_engine, not '%.40s'",
                       o->transformer_impl);
    if (export_options_word(o->moe_experts, "sequential", "grouped") < 0)
        return tp_fail(err, TP_E_USAGE, "--moe-experts takes grouped or sequential, not '%.40s'",
                       o->moe_experts);
    if (export_options_word(o->transformers, "4", "5") < 0)
        return tp_fail(err, TP_E_USAGE, "--transformers takes 4 or 5, not '%.40s'",
                       o->transformers);
    if (export_options_word(o->param_groups, "one", "norms") < 0 &&
        strcmp(o->param_groups, "examples") != 0)
        return tp_fail(err, TP_E_USAGE, "--param-groups takes one, norms or examples, not '%.40s'",
                       o->param_groups);
    return TP_OK;
}

tp_status export_options_check(const struct export_options *o, const struct export_format *f,
                               bool no_optim, struct tp_err *err)
{
    struct megatron_version ignored;
    tp_status st;

    TP_TRY(export_options_check_format(o, f, err));
    if (o->distributed_optimizer && (no_optim || o->ordinary_optimizer))
        TP_TRY(tp_fail(err, TP_E_USAGE, "--distributed-optimizer and --%s exclude each other",
                       no_optim ? "no-optim" : "ordinary-optimizer"));
    if (o->megatron_adam && (no_optim || o->distributed_optimizer))
        TP_TRY(tp_fail(err, TP_E_USAGE, "--megatron-adam and --%s exclude each other",
                       no_optim ? "no-optim" : "distributed-optimizer"));
    TP_TRY(check_words(o, err));
    TP_TRY(check_rates(o, no_optim, err));
    TP_TRY(megatron_version_find(&ignored, o->megatron_core, err));
done:
    return st;
}
