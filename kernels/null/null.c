/* kernels/null/null.c - see kernels/null/null.h. */
#include "kernels/null/null.h"

#define NOTHING(name, arg)                                                  \
    static void nothing_##name(struct device_queue *q, const struct arg *a) \
    {                                                                       \
        (void)q;                                                            \
        (void)a;                                                            \
    }

NOTHING(gemm, gemm)
NOTHING(attention_forward, attention)
NOTHING(attention_backward, attention_backward)
NOTHING(rope_table, rope_table)
NOTHING(rope_apply, rope_apply)
NOTHING(rms_norm_forward, rms_norm_forward)
NOTHING(rms_norm_backward, rms_norm_backward)
NOTHING(head_norm_forward, head_norm_forward)
NOTHING(head_norm_backward, head_norm_backward)
NOTHING(head_norm_sums, head_norm_sums)
NOTHING(layer_norm_forward, layer_norm_forward)
NOTHING(layer_norm_backward, layer_norm_backward)
NOTHING(gated_forward, gated_forward)
NOTHING(gated_backward, gated_backward)
NOTHING(activation_forward, activation_forward)
NOTHING(activation_backward, activation_backward)
NOTHING(bias_residual_add, bias_residual_add)
NOTHING(bias_gradient, bias_gradient)
NOTHING(embedding_forward, embedding_forward)
NOTHING(embedding_backward, embedding_backward)
NOTHING(loss_max, loss_max)
NOTHING(loss_sum_exp, loss_sum_exp)
NOTHING(loss_backward, loss_backward)
NOTHING(loss_total, loss_total)
NOTHING(sum_add, sum_add)
NOTHING(sum_tree, sum_tree)
NOTHING(sum_levels, sum_levels)
NOTHING(sum_doubles, sum_doubles)
NOTHING(sum_halves, sum_halves)
NOTHING(grad_norm_squares, grad_norm_squares)
NOTHING(grad_norm_squares_rows, grad_norm_squares_rows)
NOTHING(grad_norm_clip, grad_norm_clip)
NOTHING(adamw_step, adamw_step)
NOTHING(cast, cast)
NOTHING(copy_box, copy_box)
NOTHING(copy_table, copy_table)
NOTHING(part_sums, part_sums)
NOTHING(clear, clear)
NOTHING(scale, scale)
NOTHING(soft_cap, soft_cap)
NOTHING(router_forward, router_forward)
NOTHING(router_backward, router_backward)
NOTHING(router_load, router_load)
NOTHING(router_balance, router_balance)
NOTHING(permute_sort, permute_sort)
NOTHING(permute_dispatch, permute_dispatch)
NOTHING(permute_rows, permute_rows)
NOTHING(permute_sum, permute_sum)
NOTHING(permute_weight_backward, permute_weight_backward)
NOTHING(grouped_gemm, grouped_gemm)

const struct kernel_ops kernels_null = {
    .gemm = nothing_gemm,
    .attention_forward = nothing_attention_forward,
    .attention_backward = nothing_attention_backward,
    .rope_table = nothing_rope_table,
    .rope_apply = nothing_rope_apply,
    .rms_norm_forward = nothing_rms_norm_forward,
    .rms_norm_backward = nothing_rms_norm_backward,
    .head_norm_forward = nothing_head_norm_forward,
    .head_norm_backward = nothing_head_norm_backward,
    .head_norm_sums = nothing_head_norm_sums,
    .layer_norm_forward = nothing_layer_norm_forward,
    .layer_norm_backward = nothing_layer_norm_backward,
    .gated_forward = nothing_gated_forward,
    .gated_backward = nothing_gated_backward,
    .activation_forward = nothing_activation_forward,
    .activation_backward = nothing_activation_backward,
    .bias_residual_add = nothing_bias_residual_add,
    .bias_gradient = nothing_bias_gradient,
    .embedding_forward = nothing_embedding_forward,
    .embedding_backward = nothing_embedding_backward,
    .loss_max = nothing_loss_max,
    .loss_sum_exp = nothing_loss_sum_exp,
    .loss_backward = nothing_loss_backward,
    .loss_total = nothing_loss_total,
    .sum_add = nothing_sum_add,
    .sum_tree = nothing_sum_tree,
    .sum_levels = nothing_sum_levels,
    .sum_doubles = nothing_sum_doubles,
    .sum_halves = nothing_sum_halves,
    .grad_norm_squares = nothing_grad_norm_squares,
    .grad_norm_squares_rows = nothing_grad_norm_squares_rows,
    .grad_norm_clip = nothing_grad_norm_clip,
    .adamw_step = nothing_adamw_step,
    .cast = nothing_cast,
    .copy_box = nothing_copy_box,
    .copy_table = nothing_copy_table,
    .part_sums = nothing_part_sums,
    .clear = nothing_clear,
    .scale = nothing_scale,
    .soft_cap = nothing_soft_cap,
    .router_forward = nothing_router_forward,
    .router_backward = nothing_router_backward,
    .router_load = nothing_router_load,
    .router_balance = nothing_router_balance,
    .permute_sort = nothing_permute_sort,
    .permute_dispatch = nothing_permute_dispatch,
    .permute_rows = nothing_permute_rows,
    .permute_sum = nothing_permute_sum,
    .permute_weight_backward = nothing_permute_weight_backward,
    .grouped_gemm = nothing_grouped_gemm,
};
