/* reshard/formats/megatron/megatron_args_write.c - writes the arguments of a program and the
 * options of its optimizer; see reshard/formats/megatron/megatron_args.h. */
#include "reshard/formats/megatron/megatron_args.h"

#include <math.h>

#include "layout/family.h"
#include "reshard/formats/megatron/megatron_extras.h"
#include "reshard/formats/megatron/megatron_impl.h"
#include "reshard/formats/megatron/megatron_map.h"
#include "reshard/formats/megatron/megatron_rope.h"
#include "reshard/formats/torch/torch_target.h"

#define SCHEDULE "opt_param_scheduler"

#define DIVISOR "make_vocab_size_divisible_by"

/* Each row of padding is a place for the bytes of the last one: 128 * 1024 ranks need no more. */
enum { DIVISOR_DEFAULT = 128, DIVISOR_MAX = 1 << 30, PADDING_MAX = 1 << 17 };

/* The vocabulary of m at tp, by the source's arguments. */
static tp_status find_vocab(struct megatron_args_vocab *out, const struct pickle_value *args,
                            const struct model *m, int64_t tp, struct tp_err *err)
{
    const struct pickle_value *divisor = pickle_get(args, DIVISOR);
    const int64_t rows = m->vocab - m->vocab_padding;

    *out = (struct megatron_args_vocab){ .size = rows - megatron_args_added_tokens(args),
                                         .divisor = DIVISOR_DEFAULT };
    if (divisor && !pickle_is(divisor, PICKLE_NONE) &&
        (!pickle_int(&out->divisor, divisor) || out->divisor < 1 || out->divisor > DIVISOR_MAX))
        return tp_fail(err, TP_E_CORRUPT, "the arguments in the checkpoint have no valid " DIVISOR);
    out->padded = megatron_args_padded_rows(rows, out->divisor, tp);
    if (out->padded - rows > PADDING_MAX)
        return tp_fail(err, TP_E_USAGE,
                       DIVISOR " %lld at tp%lld would pad the vocabulary of %lld rows by %lld, and "
                               "at most %d are written",
                       (long long)out->divisor, (long long)tp, (long long)rows,
                       (long long)(out->padded - rows), PADDING_MAX);
    return TP_OK;
}

tp_status megatron_args_padding(int64_t *rows, const struct model *m,
                                const struct piece_source *extras, const struct spec *spec,
                                struct arena *arena, struct tp_err *err)
{
    const struct pickle_value *args;
    struct megatron_args_vocab vocab;
    const int64_t found = piece_source_vocab_rows(extras);
    tp_status st;

    *rows = 0;
    TP_TRY(megatron_extras_args(&args, extras, arena, err));
    TP_TRY(find_vocab(&vocab, args, m, spec->tp, err));
    if (found > m->vocab)
        *rows = (found < vocab.padded ? found : vocab.padded) - m->vocab;
done:
    return st;
}

tp_status megatron_args_pad_vocab(struct megatron_map *map, struct megatron_args_vocab *out,
                                  const struct export_contents *q, struct tp_err *err)
{
    const struct pickle_value *args;
    tp_status st;

    TP_TRY(megatron_extras_args(&args, q->extras, map->arena, err));
    TP_TRY(find_vocab(out, args, map->model, map->tp, err));
    map->padded_vocab = out->padded;
    map->repeats_last_row = true;
done:
    return st ? tp_fail_in(err, "%s", q->source) : TP_OK;
}

static void push_model_args(struct pickle_writer *w, const struct model *m)
{
    const struct family_tensor *down_bias = family_tensor_find(family_of(m), ROLE_DOWN_BIAS);

    pickle_write_key_int(w, "num_layers", m->layers);
    pickle_write_key_int(w, "hidden_size", m->hidden);
    pickle_write_key_int(w, "ffn_hidden_size", m->ffn);
    pickle_write_key_int(w, "num_attention_heads", m->heads);
    pickle_write_key_bool(w, "group_query_attention", m->kv_heads != m->heads);
    pickle_write_key_int(w, "num_query_groups", m->kv_heads);
    pickle_write_key_int(w, "kv_channels", m->head_dim);
    pickle_write_key_int(w, "max_position_embeddings", m->max_positions);
    pickle_write_key_float(w, "norm_epsilon", m->norm_eps);
    pickle_write_key_float(w, "layernorm_epsilon", m->norm_eps); /* since January 2026 */
    pickle_write_key_float(w, "rotary_base", m->rope_theta);
    pickle_write_key_bool(w, "add_qkv_bias", m->qkv_bias);
    pickle_write_key_bool(w, "add_bias_linear",
                          m->out_bias || (down_bias && family_tensor_is_in(down_bias, m)));
    pickle_write_key_bool(w, "qk_layernorm", m->head_norms);
    pickle_write_key_bool(w, "untie_embeddings_and_output_weights", !m->tied);
}

/* A token's weights of its experts are a softmax of the chosen scores, unless that is taken before
 * the choice. */
static void push_experts_args(struct pickle_writer *w, const struct model *m,
                              const struct megatron_args_sizes *sizes)
{
    pickle_write_key_int(w, "num_experts", m->experts);
    pickle_write_key_int(w, "moe_router_topk", m->experts_per_token);
    pickle_write_key_int(w, "moe_ffn_hidden_size", m->expert_ffn ? m->expert_ffn : m->ffn);
    pickle_write_key_bool(w, "moe_router_pre_softmax", !m->normalized_experts);
    pickle_write_key_int(w, "expert_model_parallel_size", sizes->ep);
    pickle_write_key_int(w, "expert_tensor_parallel_size", sizes->tp);
}

static void push_text(struct pickle_writer *w, const char *key, const char *text)
{
    pickle_write_text(w, key);
    pickle_write_text(w, text);
}

/* The rotary embedding. What Megatron-LM has no options for is not said at all, so that no config
 * is made from half of it (megatron_config.h). */
static void push_rope_args(struct pickle_writer *w, const struct model *m)
{
    const struct rope_scaling *s = &m->rope_scaling;

    if (s->type == ROPE_SCALING_LINEAR) {
        pickle_write_key_float(w, "rotary_seq_len_interpolation_factor", s->factor);
    } else if (s->type == ROPE_SCALING_LLAMA3 && s->low_freq_factor == MEGATRON_ROPE_LOW_FREQ &&
               s->high_freq_factor == MEGATRON_ROPE_HIGH_FREQ &&
               s->original_positions == MEGATRON_ROPE_POSITIONS) {
        pickle_write_key_bool(w, "use_rope_scaling", true);
        pickle_write_key_float(w, "rope_scaling_factor", s->factor);
    } else if (s->type != ROPE_SCALING_NONE) {
        return;
    }
    push_text(w, "position_embedding_type", "rope");
    pickle_write_key_float(w, "rotary_percent", 1);
}

/* What the layers compute. */
static void push_family_args(struct pickle_writer *w, const struct model *m)
{
    const struct family *f = family_of(m);
    const int64_t window[2] = { m->sliding_window - 1, 0 };

    if (f->position == FAMILY_ROTARY)
        push_rope_args(w, m);
    else
        push_text(w, "position_embedding_type", "learned_absolute");
    push_text(w, "normalization", f->norm == FAMILY_LAYER_NORM ? "LayerNorm" : "RMSNorm");
    pickle_write_key_bool(w, "apply_layernorm_1p", f->norm == FAMILY_UNIT_RMS_NORM);
    pickle_write_key_bool(w, "layernorm_zero_centered_gamma", f->norm == FAMILY_UNIT_RMS_NORM);
    pickle_write_key_bool(w, "swiglu", f->mlp == FAMILY_SWIGLU);
    if (m->sliding_window > 0) {
        pickle_write_text(w, "window_size");
        pickle_write_ints(w, window, 2);
    }
}

/* What programs ask for when they load: no random state, whose parts are those of ranks. */
static void push_saved_args(struct pickle_writer *w, const struct megatron_args_sizes *sizes)
{
    pickle_write_key_bool(w, "no_save_rng", true);
    pickle_write_key_bool(w, "no_save_optim", !sizes->has_optimizer);
}

/* The state of a schedule, which programs ask for with the optimizer, where the source has none:
 * the learning rate stays as it is. A program that has a schedule of its own overrides it. */
static void push_schedule(struct pickle_writer *w, const struct export_contents *q)
{
    const struct export_adamw *a = &q->adamw;

    pickle_write_text(w, SCHEDULE);
    pickle_write_dict(w);
    pickle_write_key_float(w, "max_lr", a->max_lr >= 0 ? a->max_lr : a->lr);
    pickle_write_key_float(w, "min_lr", a->min_lr >= 0 ? a->min_lr : a->lr);
    pickle_write_key_int(w, "lr_warmup_steps", 0);
    pickle_write_key_int(w, "num_steps", 0);
    push_text(w, "lr_decay_style", "constant");
    pickle_write_key_int(w, "lr_decay_steps", 1);
    pickle_write_key_float(w, "start_wd", a->weight_decay);
    pickle_write_key_float(w, "end_wd", a->weight_decay);
    push_text(w, "wd_incr_style", "constant");
    pickle_write_key_int(w, "wd_incr_steps", 1);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}

void megatron_args_note_rate(const struct export_contents *q, bool has_optimizer)
{
    if (has_optimizer && q->adamw.max_lr < 0)
        progress_note(
            q->progress,
            "%s: has no learning rate schedule, so its rate %g is written as max_lr and min_lr, "
            "which Megatron-LM uses in place of its own --lr and --min-lr; if that program has a "
            "schedule, give its --lr and --min-lr here too",
            q->source, q->adamw.lr);
}

void megatron_args_write(struct pickle_writer *w, const struct export_contents *q,
                         const struct megatron_args_sizes *sizes)
{
    pickle_write_text(w, "args");
    pickle_write_global(w, "argparse", "Namespace");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_NEWOBJ);
    pickle_write_dict(w);
    pickle_write_key_int(w, "consumed_train_samples", 0);
    pickle_write_key_int(w, "consumed_valid_samples", 0);
    megatron_extras_write_args(w, q->extras); /* of a key that is repeated, the last one holds */
    push_model_args(w, q->model);
    push_family_args(w, q->model);
    pickle_write_key_int(w, "vocab_size", sizes->vocab.size);
    pickle_write_key_int(w, "padded_vocab_size", sizes->vocab.padded);
    pickle_write_key_int(w, DIVISOR, sizes->vocab.divisor);
    pickle_write_key_int(w, "tensor_model_parallel_size", sizes->tp);
    pickle_write_key_int(w, "pipeline_model_parallel_size", sizes->pp);
    if (sizes->vpp > 1)
        pickle_write_key_int(w, "virtual_pipeline_model_parallel_size", sizes->vpp);
    else
        pickle_write_key_none(w, "virtual_pipeline_model_parallel_size");
    if (q->model->experts > 0)
        push_experts_args(w, q->model, sizes);
    megatron_impl_write(w, &sizes->modules);
    if (sizes->dp > 0) {
        pickle_write_key_int(w, "data_parallel_size", sizes->dp);
        pickle_write_key_int(w, "context_parallel_size", sizes->cp);
    }
    pickle_write_key_bool(w, "use_distributed_optimizer", sizes->distributed_optimizer);
    if (sizes->model_space) /* by which Megatron-LM before 0.13 knows it */
        pickle_write_key_bool(w, "ckpt_fully_parallel_save", true);
    pickle_write_key_bool(w, "bf16", q->tensors[0].dtype == DTYPE_BF16);
    pickle_write_key_bool(w, "fp16", q->tensors[0].dtype == DTYPE_F16);
    push_saved_args(w, sizes);
    pickle_write_key_int(w, "iteration", q->step);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_BUILD);
    pickle_write_key_float(w, "checkpoint_version", 3.0);
    pickle_write_key_int(w, "iteration", q->step);
    pickle_write_key_float(w, "num_floating_point_operations_so_far", 0);
    if (sizes->has_optimizer && !megatron_extras_has(q->extras, SCHEDULE))
        push_schedule(w, q);
    megatron_extras_write_others(w, q->extras);
}

/* By these rates, too, Megatron-core since 0.19 finds a group; none is there as None is. */
static void push_rate(struct pickle_writer *w, const char *key, double rate,
                      const struct export_adamw *adamw)
{
    if (!isnan(rate))
        pickle_write_key_float(w, key, rate >= 0 ? rate : adamw->lr);
}

void megatron_args_begin_group(struct pickle_writer *w, const struct export_adamw *adamw,
                               bool weight_decay, bool experts)
{
    pickle_write_dict(w);
    pickle_write_key_float(w, "wd_mult", weight_decay ? 1 : 0);
    pickle_write_key_float(w, "lr_mult", 1);
    pickle_write_key_bool(w, "is_expert_parallel", experts);
    pickle_write_key_bool(w, "is_decoupled_lr", false);
    pickle_write_key_bool(w, "default_config", true);
    push_rate(w, "max_lr", adamw->max_lr, adamw);
    push_rate(w, "min_lr", adamw->min_lr, adamw);
    torch_target_push_adamw(w, adamw, adamw->lr, weight_decay ? adamw->weight_decay : 0);
    pickle_write_key_bool(w, "bias_correction", true);
}

void megatron_args_end_group(struct pickle_writer *w)
{
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}
