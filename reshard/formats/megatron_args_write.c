/* reshard/formats/megatron_args_write.c - writes the arguments of a program and the options of its
 * optimizer; see reshard/formats/megatron_args.h. */
#include "reshard/formats/megatron_args.h"

enum { VOCAB_DIVISOR = 128 };

int64_t megatron_args_padded_vocab(const struct model *m, int tp)
{
    const int64_t unit = (int64_t)VOCAB_DIVISOR * tp;

    return (m->vocab + unit - 1) / unit * unit;
}

static void push_int(struct pickle_writer *w, const char *key, int64_t v)
{
    pickle_write_text(w, key);
    pickle_write_int(w, v);
}

static void push_float(struct pickle_writer *w, const char *key, double v)
{
    pickle_write_text(w, key);
    pickle_write_float(w, v);
}

static void push_bool(struct pickle_writer *w, const char *key, bool v)
{
    pickle_write_text(w, key);
    pickle_write_op(w, v ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
}

static void push_none(struct pickle_writer *w, const char *key)
{
    pickle_write_text(w, key);
    pickle_write_op(w, PICKLE_OP_NONE);
}

static void push_model_args(struct pickle_writer *w, const struct model *m)
{
    push_int(w, "num_layers", m->layers);
    push_int(w, "hidden_size", m->hidden);
    push_int(w, "ffn_hidden_size", m->ffn);
    push_int(w, "num_attention_heads", m->heads);
    push_bool(w, "group_query_attention", m->kv_heads != m->heads);
    push_int(w, "num_query_groups", m->kv_heads);
    push_int(w, "kv_channels", m->head_dim);
    push_int(w, "vocab_size", m->vocab);
    push_int(w, "max_position_embeddings", m->max_positions);
    push_float(w, "norm_epsilon", m->norm_eps);
    push_float(w, "rotary_base", m->rope_theta);
    push_bool(w, "add_qkv_bias", m->qkv_bias);
    push_bool(w, "add_bias_linear", m->out_bias || m->mlp_bias);
    push_bool(w, "qk_layernorm", m->head_norms);
    push_bool(w, "untie_embeddings_and_output_weights", !m->tied);
}

void megatron_args_write(struct pickle_writer *w, const struct export_contents *q,
                         const struct megatron_args_sizes *sizes)
{
    pickle_write_text(w, "args");
    pickle_write_global(w, "argparse", "Namespace");
    pickle_write_op(w, PICKLE_OP_EMPTY_TUPLE);
    pickle_write_op(w, PICKLE_OP_NEWOBJ);
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    push_model_args(w, q->model);
    push_int(w, "padded_vocab_size", sizes->padded_vocab);
    push_int(w, "make_vocab_size_divisible_by", VOCAB_DIVISOR);
    push_int(w, "tensor_model_parallel_size", sizes->tp);
    push_int(w, "pipeline_model_parallel_size", sizes->pp);
    if (sizes->vpp > 1)
        push_int(w, "virtual_pipeline_model_parallel_size", sizes->vpp);
    else
        push_none(w, "virtual_pipeline_model_parallel_size");
    push_bool(w, "use_distributed_optimizer", false);
    push_bool(w, "bf16", q->tensors[0].dtype == DTYPE_BF16);
    push_bool(w, "fp16", q->tensors[0].dtype == DTYPE_F16);
    push_int(w, "iteration", q->step);
    push_int(w, "consumed_train_samples", 0);
    push_int(w, "consumed_valid_samples", 0);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_BUILD);
    push_float(w, "checkpoint_version", 3.0);
    push_int(w, "iteration", q->step);
    push_float(w, "num_floating_point_operations_so_far", 0);
}

void megatron_args_begin_group(struct pickle_writer *w, const struct export_adamw *adamw,
                               bool weight_decay)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    push_float(w, "wd_mult", weight_decay ? 1 : 0);
    push_float(w, "lr_mult", 1);
    push_bool(w, "is_expert_parallel", false);
    push_bool(w, "is_decoupled_lr", false);
    push_bool(w, "default_config", true);
    push_float(w, "max_lr", adamw->lr);
    push_float(w, "min_lr", adamw->lr);
    push_float(w, "lr", adamw->lr);
    pickle_write_text(w, "betas");
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_float(w, adamw->beta1);
    pickle_write_float(w, adamw->beta2);
    pickle_write_op(w, PICKLE_OP_TUPLE);
    push_float(w, "eps", adamw->eps);
    push_float(w, "weight_decay", weight_decay ? adamw->weight_decay : 0);
    push_bool(w, "amsgrad", false);
    push_bool(w, "maximize", false);
    push_none(w, "foreach");
    push_bool(w, "capturable", false);
    push_bool(w, "differentiable", false);
    push_none(w, "fused");
    push_bool(w, "decoupled_weight_decay", true);
}

void megatron_args_end_group(struct pickle_writer *w)
{
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}
