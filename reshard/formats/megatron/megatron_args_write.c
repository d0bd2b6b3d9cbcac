/* reshard/formats/megatron/megatron_args_write.c - writes the arguments of a program and the
 * options of its optimizer; see reshard/formats/megatron/megatron_args.h. */
#include "reshard/formats/megatron/megatron_args.h"

enum { VOCAB_DIVISOR = 128 };

int64_t megatron_args_padded_vocab(const struct model *m, int tp)
{
    const int64_t unit = (int64_t)VOCAB_DIVISOR * tp;

    return (m->vocab + unit - 1) / unit * unit;
}

static void push_model_args(struct pickle_writer *w, const struct model *m)
{
    pickle_write_key_int(w, "num_layers", m->layers);
    pickle_write_key_int(w, "hidden_size", m->hidden);
    pickle_write_key_int(w, "ffn_hidden_size", m->ffn);
    pickle_write_key_int(w, "num_attention_heads", m->heads);
    pickle_write_key_bool(w, "group_query_attention", m->kv_heads != m->heads);
    pickle_write_key_int(w, "num_query_groups", m->kv_heads);
    pickle_write_key_int(w, "kv_channels", m->head_dim);
    pickle_write_key_int(w, "vocab_size", m->vocab);
    pickle_write_key_int(w, "max_position_embeddings", m->max_positions);
    pickle_write_key_float(w, "norm_epsilon", m->norm_eps);
    pickle_write_key_float(w, "rotary_base", m->rope_theta);
    pickle_write_key_bool(w, "add_qkv_bias", m->qkv_bias);
    pickle_write_key_bool(w, "add_bias_linear", m->out_bias || m->mlp_bias);
    pickle_write_key_bool(w, "qk_layernorm", m->head_norms);
    pickle_write_key_bool(w, "untie_embeddings_and_output_weights", !m->tied);
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
    pickle_write_key_int(w, "padded_vocab_size", sizes->padded_vocab);
    pickle_write_key_int(w, "make_vocab_size_divisible_by", VOCAB_DIVISOR);
    pickle_write_key_int(w, "tensor_model_parallel_size", sizes->tp);
    pickle_write_key_int(w, "pipeline_model_parallel_size", sizes->pp);
    if (sizes->vpp > 1)
        pickle_write_key_int(w, "virtual_pipeline_model_parallel_size", sizes->vpp);
    else
        pickle_write_key_none(w, "virtual_pipeline_model_parallel_size");
    pickle_write_key_bool(w, "use_distributed_optimizer", false);
    pickle_write_key_bool(w, "bf16", q->tensors[0].dtype == DTYPE_BF16);
    pickle_write_key_bool(w, "fp16", q->tensors[0].dtype == DTYPE_F16);
    pickle_write_key_int(w, "iteration", q->step);
    pickle_write_key_int(w, "consumed_train_samples", 0);
    pickle_write_key_int(w, "consumed_valid_samples", 0);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    pickle_write_op(w, PICKLE_OP_BUILD);
    pickle_write_key_float(w, "checkpoint_version", 3.0);
    pickle_write_key_int(w, "iteration", q->step);
    pickle_write_key_float(w, "num_floating_point_operations_so_far", 0);
}

void megatron_args_begin_group(struct pickle_writer *w, const struct export_adamw *adamw,
                               bool weight_decay)
{
    pickle_write_op(w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(w, PICKLE_OP_MARK);
    pickle_write_key_float(w, "wd_mult", weight_decay ? 1 : 0);
    pickle_write_key_float(w, "lr_mult", 1);
    pickle_write_key_bool(w, "is_expert_parallel", false);
    pickle_write_key_bool(w, "is_decoupled_lr", false);
    pickle_write_key_bool(w, "default_config", true);
    pickle_write_key_float(w, "max_lr", adamw->lr);
    pickle_write_key_float(w, "min_lr", adamw->lr);
    pickle_write_key_float(w, "lr", adamw->lr);
    pickle_write_key_floats(w, "betas", adamw->beta1, adamw->beta2);
    pickle_write_key_float(w, "eps", adamw->eps);
    pickle_write_key_float(w, "weight_decay", weight_decay ? adamw->weight_decay : 0);
    pickle_write_key_bool(w, "amsgrad", false);
    pickle_write_key_bool(w, "maximize", false);
    pickle_write_key_none(w, "foreach");
    pickle_write_key_bool(w, "capturable", false);
    pickle_write_key_bool(w, "differentiable", false);
    pickle_write_key_none(w, "fused");
    pickle_write_key_bool(w, "decoupled_weight_decay", true);
}

void megatron_args_end_group(struct pickle_writer *w)
{
    pickle_write_op(w, PICKLE_OP_SETITEMS);
}
