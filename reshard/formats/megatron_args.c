/* reshard/formats/megatron_args.c - see reshard/formats/megatron_args.h. */
#include "reshard/formats/megatron_args.h"

static bool is_true(const struct pickle_value *v)
{
    return pickle_is(v, PICKLE_BOOL) && v->number;
}

static tp_status check_sizes(const struct pickle_value *args, const struct model *m,
                             const char *path, struct tp_err *err)
{
    const bool grouped = is_true(pickle_get(args, "group_query_attention"));
    const struct {
        const char *name;
        int64_t model;
        bool used;
    } sizes[] = {
        { "num_layers", m->layers, true },
        { "hidden_size", m->hidden, true },
        { "ffn_hidden_size", m->ffn, true },
        { "num_attention_heads", m->heads, true },
        { "num_query_groups", m->kv_heads, grouped },
        { "kv_channels", m->head_dim, true },
    };
    int64_t n;

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (sizes[i].used && pickle_int(&n, pickle_get(args, sizes[i].name)) && n != sizes[i].model)
            return tp_fail(err, TP_E_USAGE, "%s: was saved with %s %lld, but config.json says %lld",
                           path, sizes[i].name, (long long)n, (long long)sizes[i].model);
    if (pickle_is(pickle_get(args, "group_query_attention"), PICKLE_BOOL) && !grouped &&
        m->kv_heads != m->heads)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved without group_query_attention, but config.json says %d "
                       "key-value heads for %d heads",
                       path, m->kv_heads, m->heads);
    return TP_OK;
}

tp_status megatron_args_check(const struct pickle_value *args, const struct model *m,
                              const char *path, struct tp_err *err)
{
    static const char *const options[] = { "apply_layernorm_1p", "rotary_interleaved",
                                           "multi_latent_attention", "num_experts" };
    int64_t n;

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const struct pickle_value *v = pickle_get(args, options[i]);

        if (is_true(v) || (pickle_int(&n, v) && n > 0))
            return tp_fail(err, TP_E_USAGE, "%s: was saved with %s, which is not supported", path,
                           options[i]);
    }
    return check_sizes(args, m, path, err);
}
