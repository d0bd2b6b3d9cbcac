/* reshard/formats/megatron/megatron_args.c - see reshard/formats/megatron/megatron_args.h. */
#include "reshard/formats/megatron/megatron_args.h"

#include <string.h>

enum {
    MEGATRON_SIZE_MAX = 1 << 16,
    MEGATRON_BUCKET = 40000000, /* elements */
    MEGATRON_BUCKET_PER_RANK = 1000000,
};

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

static tp_status check_options(const struct pickle_value *args, const char *path,
                               struct tp_err *err)
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
    return TP_OK;
}

/* A count, from 1 to `max`; `fallback` when it is None or absent. */
static bool read_count(int64_t *out, const struct pickle_value *args, const char *name,
                       int64_t fallback, int64_t max)
{
    const struct pickle_value *v = pickle_get(args, name);

    *out = fallback;
    return !v || pickle_is(v, PICKLE_NONE) || (pickle_int(out, v) && *out >= 1 && *out <= max);
}

/* Megatron's DistributedDataParallel: without overlap there is one bucket; the usual size grows
 * with the number of data-parallel ranks. */
static bool read_buckets(struct megatron_args *out, const struct pickle_value *args)
{
    int64_t dp, cp, usual;

    if (!is_true(pickle_get(args, "overlap_grad_reduce")))
        return true;
    if (!read_count(&dp, args, "data_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&cp, args, "context_parallel_size", 1, MEGATRON_SIZE_MAX))
        return false;
    usual = MEGATRON_BUCKET_PER_RANK * dp * cp;
    if (usual < MEGATRON_BUCKET)
        usual = MEGATRON_BUCKET;
    return read_count(&out->bucket_size, args, "ddp_bucket_size", usual, INT64_MAX) &&
           read_count(&out->buckets, args, "ddp_num_buckets", 0, INT64_MAX);
}

tp_status megatron_args_read(struct megatron_args *out, const struct pickle_value *args,
                             const struct model *m, const char *path, struct tp_err *err)
{
    const char *impl = pickle_text(pickle_get(args, "transformer_impl"));
    int64_t tp, pp, vpp, ep;
    tp_status st = check_options(args, path, err);

    if (st)
        return st;
    *out = (struct megatron_args){ .local_modules = impl && strcmp(impl, "local") == 0 };
    if (!read_count(&tp, args, "tensor_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&pp, args, "pipeline_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&vpp, args, "virtual_pipeline_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&ep, args, "expert_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_buckets(out, args))
        return tp_fail(err, TP_E_CORRUPT, "%s: its args have no valid parallel sizes", path);
    if (ep > 1)
        return tp_fail(err, TP_E_USAGE, "%s: expert parallelism is not supported", path);
    out->tp = (int)tp;
    out->pp = (int)pp;
    out->vpp = (int)vpp;
    return check_sizes(args, m, path, err);
}
