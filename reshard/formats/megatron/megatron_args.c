/* reshard/formats/megatron/megatron_args.c - see reshard/formats/megatron/megatron_args.h. */
#include "reshard/formats/megatron/megatron_args.h"

#include <string.h>

#include "layout/family.h"

/* Proposed for Megatron-LM: weights are saved with all of gate, then all of up, and the optimizer
 * in the order in memory. */
#define MIXED_LAYOUT "glu_checkpoint_layout"

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
        { "ffn_hidden_size", m->ffn, m->experts == 0 },
        { "num_experts", m->experts, true },
        { "moe_ffn_hidden_size", m->expert_ffn ? m->expert_ffn : m->ffn, m->experts > 0 },
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

/* Stages of a tied model have a copy of the embedding as output_layer, which is not read: a head
 * must not be taken for one. */
static tp_status check_head(const struct pickle_value *args, const struct model *m,
                            const char *path, struct tp_err *err)
{
    if (!m->tied || !is_true(pickle_get(args, "untie_embeddings_and_output_weights")))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: was saved with untie_embeddings_and_output_weights, so it has a head of "
                   "its own, but config.json says \"tie_word_embeddings\" true (or leaves it out); "
                   "with false there, the head is read",
                   path);
}

/* Norms that are centred at zero: the argument's name until 2025, and since then. Only of families
 * that multiply by 1 + weight do the files have the same weights as Hugging Face's. */
static tp_status check_norms(const struct pickle_value *args, const struct model *m,
                             const char *path, struct tp_err *err)
{
    static const char *const names[] = { "apply_layernorm_1p", "layernorm_zero_centered_gamma" };

    if (m->family < MODEL_FAMILIES && family_of(m)->norm == FAMILY_UNIT_RMS_NORM)
        return TP_OK;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (is_true(pickle_get(args, names[i])))
            return tp_fail(
                err, TP_E_USAGE,
                "%s: was saved with %s, so its norms multiply by 1 + weight, which those "
                "of config.json's model do not",
                path, names[i]);
    return TP_OK;
}

static tp_status check_options(const struct pickle_value *args, const char *path,
                               struct tp_err *err)
{
    static const char *const options[] = { "rotary_interleaved", "multi_latent_attention",
                                           "standalone_embedding_stage",
                                           "moe_shared_expert_intermediate_size" };
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
bool megatron_args_read_buckets(struct megatron_args *out, const struct pickle_value *args,
                                int64_t ranks)
{
    int64_t usual = MEGATRON_BUCKET_PER_RANK * ranks;

    if (usual < MEGATRON_BUCKET)
        usual = MEGATRON_BUCKET;
    return !is_true(pickle_get(args, "overlap_grad_reduce")) ||
           (read_count(&out->bucket_size, args, "ddp_bucket_size", usual, INT64_MAX) &&
            read_count(&out->buckets, args, "ddp_num_buckets", 0, INT64_MAX));
}

/* With as many data-parallel ranks as the program had. */
static bool read_buckets(struct megatron_args *out, const struct pickle_value *args)
{
    int64_t dp, cp;

    return read_count(&dp, args, "data_parallel_size", 1, MEGATRON_SIZE_MAX) &&
           read_count(&cp, args, "context_parallel_size", 1, MEGATRON_SIZE_MAX) &&
           megatron_args_read_buckets(out, args, dp * cp);
}

enum dtype megatron_args_gradients(const struct pickle_value *args, enum dtype weights)
{
    const struct pickle_value *v = pickle_get(args, "accumulate_allreduce_grads_in_fp32");

    return is_true(v) || (!v && weights == DTYPE_BF16) ? DTYPE_F32 : weights;
}

/* Its stages are those of all chunks. */
static tp_status read_layout(struct megatron_args *out, const struct pickle_value *args,
                             const char *path, struct arena *arena, struct tp_err *err)
{
    const struct pickle_value *v = pickle_get(args, "pipeline_model_parallel_layout");
    tp_status st;

    if (!v || pickle_is(v, PICKLE_NONE))
        return TP_OK;
    if (!pickle_text(v))
        return tp_fail(
            err, TP_E_USAGE,
            "%s: was saved with a pipeline_model_parallel_layout that is not text; write "
            "it as one, such as Et*2|t*2L, in its args",
            path);
    st = pipeline_layout_read(&out->layout, pickle_text(v), path, arena, err);
    if (!st && out->layout.n % out->pp != 0)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: was saved with pipeline_model_parallel_layout %.80s, whose %d stages are "
                     "not a multiple of the pipeline-parallel size %d",
                     path, pickle_text(v), out->layout.n, out->pp);
    if (!st)
        out->vpp = out->layout.n / out->pp;
    return st;
}

/* Transformer Engine's grouped layers, or Megatron's own, which Megatron-core has before 0.17;
 * since then its own modules are separate ones with the option too. */
static enum megatron_experts read_experts(const struct pickle_value *args, bool local_modules)
{
    const char *legacy = "moe_use_legacy_grouped_gemm";
    const bool since_017 = !pickle_get(args, legacy) && pickle_get(args, "async_strategy");

    if (!is_true(pickle_get(args, "moe_grouped_gemm")) || (local_modules && since_017))
        return MEGATRON_EXPERTS_SEQUENTIAL;
    return local_modules || is_true(pickle_get(args, legacy)) ? MEGATRON_EXPERTS_STACKED
                                                              : MEGATRON_EXPERTS_GROUPED;
}

/* Blocks of gate and up in turn. Only Transformer Engine's grouped layers have them; in other
 * modules the option means nothing. */
static tp_status read_blocks(struct megatron_args *out, const struct pickle_value *root,
                             const struct model *m, const char *path, struct tp_err *err)
{
    const struct pickle_value *args = pickle_get(root, "args");
    const int64_t ffn = m->expert_ffn ? m->expert_ffn : m->ffn, of_rank = ffn / out->expert_tp;
    int64_t block;

    if (!read_count(&block, args, MEGATRON_BLOCK_ARG, 0, INT64_MAX))
        return tp_fail(err, TP_E_CORRUPT, "%s: its " MEGATRON_BLOCK_ARG " is not a number", path);
    if (m->experts == 0 || block == 0 || out->experts == MEGATRON_EXPERTS_SEQUENTIAL)
        return TP_OK;
    if (pickle_get(root, MIXED_LAYOUT))
        return tp_fail(err, TP_E_USAGE,
                       "%s: has " MIXED_LAYOUT " and " MEGATRON_BLOCK_ARG
                       ", so weights and optimizer have gate and up in different orders, which is "
                       "not supported",
                       path);
    if (out->experts == MEGATRON_EXPERTS_STACKED)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with " MEGATRON_BLOCK_ARG
                       " %lld and GroupedMLP, which does not have this option",
                       path, (long long)block);
    if (ffn % out->expert_tp != 0 || of_rank % block != 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with " MEGATRON_BLOCK_ARG
                       " %lld, which does not divide the %lld rows of gate that each of %d ranks "
                       "has of an expert",
                       path, (long long)block, (long long)of_rank, out->expert_tp);
    out->expert_block = block;
    return TP_OK;
}

tp_status megatron_args_check(const struct pickle_value *args, const struct model *m,
                              const char *path, struct tp_err *err)
{
    tp_status st = check_options(args, path, err);

    if (!st)
        st = check_norms(args, m, path, err);
    if (!st)
        st = check_head(args, m, path, err);
    return st ? st : check_sizes(args, m, path, err);
}

tp_status megatron_args_read(struct megatron_args *out, const struct pickle_value *root,
                             const struct model *m, const char *path, struct arena *arena,
                             struct tp_err *err)
{
    const struct pickle_value *args = pickle_get(root, "args");
    const char *impl = pickle_text(pickle_get(args, "transformer_impl"));
    int64_t tp, pp, vpp, ep, expert_tp, first_layers, last_layers;
    tp_status st = megatron_args_check(args, m, path, err);

    if (st)
        return st;
    *out = (struct megatron_args){ .local_modules = impl && strcmp(impl, "local") == 0 };
    if (!read_count(&tp, args, "tensor_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&pp, args, "pipeline_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&vpp, args, "virtual_pipeline_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&ep, args, "expert_model_parallel_size", 1, MEGATRON_SIZE_MAX) ||
        !read_count(&expert_tp, args, "expert_tensor_parallel_size", tp, MEGATRON_SIZE_MAX) ||
        !read_count(&first_layers, args, "decoder_first_pipeline_num_layers", 0,
                    MEGATRON_SIZE_MAX) ||
        !read_count(&last_layers, args, "decoder_last_pipeline_num_layers", 0, MEGATRON_SIZE_MAX) ||
        !read_buckets(out, args))
        return tp_fail(err, TP_E_CORRUPT, "%s: its args have no valid parallel sizes", path);
    if (ep > 1 && m->experts % ep != 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with expert parallelism %lld, which does not divide the %d "
                       "experts of config.json",
                       path, (long long)ep, m->experts);
    out->tp = (int)tp;
    out->pp = (int)pp;
    out->vpp = (int)vpp;
    out->ep = (int)ep;
    out->first_layers = (int)first_layers;
    out->last_layers = (int)last_layers;
    out->counts_embedding = is_true(pickle_get(args, "account_for_embedding_in_pipeline_split"));
    out->counts_loss = is_true(pickle_get(args, "account_for_loss_in_pipeline_split"));
    out->expert_tp = (int)expert_tp;
    out->experts = read_experts(args, out->local_modules);
    st = read_blocks(out, root, m, path, err);
    return st ? st : read_layout(out, args, path, arena, err);
}

int megatron_args_added_tokens(const struct pickle_value *args)
{
    const char *tokenizer = pickle_text(pickle_get(args, "tokenizer_type"));

    return tokenizer && strcmp(tokenizer, "NullTokenizer") == 0;
}

int64_t megatron_args_padded_rows(int64_t rows, int64_t divisor, int64_t tp)
{
    const int64_t unit = divisor * tp;

    return (rows + unit - 1) / unit * unit;
}
