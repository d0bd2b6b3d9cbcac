/* reshard/formats/megatron/megatron_impl.c - see reshard/formats/megatron/megatron_impl.h. */
#include "reshard/formats/megatron/megatron_impl.h"

#include <string.h>

#include "reshard/formats/megatron/megatron_map.h"

#define IMPL_ARG    "transformer_impl"
#define GROUPED_ARG "moe_grouped_gemm"

/* The values of the argument. */
static const char *const impls[] = {
    [EXPORT_IMPL_LOCAL] = "local", [EXPORT_IMPL_ENGINE] = "transformer_engine"
};

static bool is_true(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_BOOL) && v->number;
}

struct export_modules megatron_impl_read(const struct pickle_value *args)
{
    const char *impl = pickle_text(pickle_get(args, IMPL_ARG));
    const struct pickle_value *grouped = pickle_get(args, GROUPED_ARG);
    struct export_modules found = { .impl = EXPORT_IMPL_UNKNOWN };

    for (int i = EXPORT_IMPL_LOCAL; impl && i <= EXPORT_IMPL_ENGINE; i++)
        if (strcmp(impl, impls[i]) == 0)
            found.impl = (enum export_impl)i;
    if (!pickle_is(grouped, PICKLE_BOOL))
        return found;
    if (!grouped->number)
        found.experts = EXPORT_EXPERTS_SEQUENTIAL;
    else if (found.impl == EXPORT_IMPL_ENGINE &&
             !is_true(pickle_get(args, "moe_use_legacy_grouped_gemm")))
        found.experts = EXPORT_EXPERTS_GROUPED;
    return found;
}

static bool has(const char *name, const char *part)
{
    return strstr(name, part) != NULL;
}

void megatron_impl_prove(struct export_modules *out, const char *name)
{
    if (has(name, ".linear_qkv.layer_norm_weight"))
        out->impl = EXPORT_IMPL_ENGINE;
    else if (has(name, ".input_layernorm.weight"))
        out->impl = EXPORT_IMPL_LOCAL;
    else if (has(name, MEGATRON_EXPERTS "local_experts."))
        out->experts = EXPORT_EXPERTS_SEQUENTIAL;
    else if (has(name, MEGATRON_EXPERTS "linear_fc1.weight"))
        out->experts = EXPORT_EXPERTS_GROUPED;
}

tp_status megatron_impl_choose(struct export_modules *out, const struct export_contents *q,
                               struct tp_err *err)
{
    *out = q->modules;
    if (out->impl == EXPORT_IMPL_UNKNOWN)
        out->impl = EXPORT_IMPL_ENGINE;
    if (out->impl == EXPORT_IMPL_LOCAL && out->experts == EXPORT_EXPERTS_GROUPED)
        return tp_fail(err, TP_E_USAGE,
                       "--moe-experts grouped: with --transformer-impl local these are GroupedMLP, "
                       "which is not written; choose --moe-experts sequential, or "
                       "--transformer-impl transformer_engine");
    if (out->experts == EXPORT_EXPERTS_UNKNOWN)
        out->experts =
            out->impl == EXPORT_IMPL_ENGINE ? EXPORT_EXPERTS_GROUPED : EXPORT_EXPERTS_SEQUENTIAL;
    if (q->model->experts == 0)
        out->experts = EXPORT_EXPERTS_UNKNOWN;
    return TP_OK;
}

void megatron_impl_note(const struct export_modules *modules, const struct export_contents *q)
{
    static const char *const experts[] = {
        [EXPORT_EXPERTS_UNKNOWN] = "",
        [EXPORT_EXPERTS_SEQUENTIAL] = " without --moe-grouped-gemm",
        [EXPORT_EXPERTS_GROUPED] = " with --moe-grouped-gemm",
    };

    progress_note(q->progress,
                  "parameters have the names of Megatron-LM's --transformer-impl %s%s: load them "
                  "with these options, because Megatron-LM skips parameters of other names; "
                  "--transformer-impl %s writes the other names",
                  impls[modules->impl], experts[modules->experts],
                  impls[EXPORT_IMPL_LOCAL + EXPORT_IMPL_ENGINE - modules->impl]);
}

void megatron_impl_write(struct pickle_writer *w, const struct export_modules *modules)
{
    if (modules->impl != EXPORT_IMPL_UNKNOWN) {
        pickle_write_text(w, IMPL_ARG);
        pickle_write_text(w, impls[modules->impl]);
    }
    if (modules->experts != EXPORT_EXPERTS_UNKNOWN)
        pickle_write_key_bool(w, GROUPED_ARG, modules->experts == EXPORT_EXPERTS_GROUPED);
}
