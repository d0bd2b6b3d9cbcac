/* kernels/cpu/cpu.c - see kernels/cpu/cpu.h. */
#include "kernels/cpu/cpu.h"

#include "kernels/cpu/run.h"
#include "kernels/cpu/unit.h"

/* An operation that queues its function of kernels/cpu/run.h. */
#define CPU_KERNEL(name, run, arg)                                                         \
    static tp_status name##_fn(struct device_queue *q, const void *a, struct tp_err *err)  \
    {                                                                                      \
        return run(q, a, err);                                                             \
    }                                                                                      \
    static void name(struct device_queue *q, const struct arg *a)                          \
    {                                                                                      \
        const struct device_operation o = { name##_fn, a, sizeof *a, 0 };                  \
        _Static_assert(sizeof *a <= DEVICE_ARGS_MAX, "an argument that a queue can copy"); \
        device_submit(q, &o);                                                              \
    }

CPU_KERNEL(queue_gemm, cpu_run_gemm, gemm)
CPU_KERNEL(queue_attention_forward, cpu_run_attention_forward, attention)
CPU_KERNEL(queue_attention_backward, cpu_run_attention_backward, attention_backward)
CPU_KERNEL(queue_rope_table, cpu_run_rope_table, rope_table)
CPU_KERNEL(queue_rope_apply, cpu_run_rope_apply, rope_apply)
CPU_KERNEL(queue_rms_norm_forward, cpu_run_rms_norm_forward, rms_norm_forward)
CPU_KERNEL(queue_rms_norm_backward, cpu_run_rms_norm_backward, rms_norm_backward)
CPU_KERNEL(queue_head_norm_forward, cpu_run_head_norm_forward, head_norm_forward)
CPU_KERNEL(queue_head_norm_backward, cpu_run_head_norm_backward, head_norm_backward)
CPU_KERNEL(queue_head_norm_sums, cpu_run_head_norm_sums, head_norm_sums)
CPU_KERNEL(queue_layer_norm_forward, cpu_run_layer_norm_forward, layer_norm_forward)
CPU_KERNEL(queue_layer_norm_backward, cpu_run_layer_norm_backward, layer_norm_backward)
CPU_KERNEL(queue_gated_forward, cpu_run_gated_forward, gated_forward)
CPU_KERNEL(queue_gated_backward, cpu_run_gated_backward, gated_backward)
CPU_KERNEL(queue_activation_forward, cpu_run_activation_forward, activation_forward)
CPU_KERNEL(queue_activation_backward, cpu_run_activation_backward, activation_backward)
CPU_KERNEL(queue_bias_residual_add, cpu_run_bias_residual_add, bias_residual_add)
CPU_KERNEL(queue_bias_gradient, cpu_run_bias_gradient, bias_gradient)
CPU_KERNEL(queue_embedding_forward, cpu_run_embedding_forward, embedding_forward)
CPU_KERNEL(queue_embedding_backward, cpu_run_embedding_backward, embedding_backward)
CPU_KERNEL(queue_loss_max, cpu_run_loss_max, loss_max)
CPU_KERNEL(queue_loss_sum_exp, cpu_run_loss_sum_exp, loss_sum_exp)
CPU_KERNEL(queue_loss_backward, cpu_run_loss_backward, loss_backward)
CPU_KERNEL(queue_loss_total, cpu_run_loss_total, loss_total)
CPU_KERNEL(queue_sum_add, cpu_run_sum_add, sum_add)
CPU_KERNEL(queue_sum_tree, cpu_run_sum_tree, sum_tree)
CPU_KERNEL(queue_sum_levels, cpu_run_sum_levels, sum_levels)
CPU_KERNEL(queue_sum_doubles, cpu_run_sum_doubles, sum_doubles)
CPU_KERNEL(queue_sum_halves, cpu_run_sum_halves, sum_halves)
CPU_KERNEL(queue_grad_norm_tensor, cpu_run_grad_norm_tensor, cpu_grad_norm_tensor)
CPU_KERNEL(queue_grad_norm_squares_rows, cpu_run_grad_norm_squares_rows, grad_norm_squares_rows)
CPU_KERNEL(queue_grad_norm_clip, cpu_run_grad_norm_clip, grad_norm_clip)
CPU_KERNEL(queue_adamw_tensor, cpu_run_adamw_tensor, cpu_adamw_tensor)
CPU_KERNEL(queue_cast, cpu_run_cast, cast)
CPU_KERNEL(queue_copy_box, cpu_run_copy_box, copy_box)
CPU_KERNEL(queue_copy_table, cpu_run_copy_table, copy_table)
CPU_KERNEL(queue_part_sums, cpu_run_part_sums, part_sums)
CPU_KERNEL(queue_scale, cpu_run_scale, scale)
CPU_KERNEL(queue_soft_cap, cpu_run_soft_cap, soft_cap)
CPU_KERNEL(queue_router_forward, cpu_run_router_forward, router_forward)
CPU_KERNEL(queue_router_backward, cpu_run_router_backward, router_backward)
CPU_KERNEL(queue_router_load, cpu_run_router_load, router_load)
CPU_KERNEL(queue_router_balance, cpu_run_router_balance, router_balance)
CPU_KERNEL(queue_permute_sort, cpu_run_permute_sort, permute_sort)
CPU_KERNEL(queue_permute_dispatch, cpu_run_permute_dispatch, permute_dispatch)
CPU_KERNEL(queue_permute_rows, cpu_run_permute_rows, permute_rows)
CPU_KERNEL(queue_permute_sum, cpu_run_permute_sum, permute_sum)
CPU_KERNEL(queue_permute_weight_backward, cpu_run_permute_weight_backward, permute_weight_backward)
CPU_KERNEL(queue_grouped_gemm, cpu_run_grouped_gemm, grouped_gemm)

const char *kernels_cpu_description(void)
{
    return unit_description();
}

/* A list of tensors is the caller's, who may change it before the work is done. So each tensor is
 * an operation of its own. */
static void queue_grad_norm_squares(struct device_queue *q, const struct grad_norm_squares *a)
{
    for (int i = 0; i < a->n_tensors; i++)
        queue_grad_norm_tensor(q, &(struct cpu_grad_norm_tensor){ a->tensors[i], a->out + i });
}

static void queue_adamw_step(struct device_queue *q, const struct adamw_step *a)
{
    for (int i = 0; i < a->n_tensors; i++)
        queue_adamw_tensor(
            q, &(struct cpu_adamw_tensor){ a->tensors[i], a->grad_scale, a->rates, a->options });
}

static void queue_clear(struct device_queue *q, const struct clear *a)
{
    for (int i = 0; i < a->n_arrays; i++)
        device_fill(q, a->arrays[i].x, 0, a->arrays[i].n * (int64_t)sizeof(float));
}

const struct kernel_ops kernels_cpu = {
    .gemm = queue_gemm,
    .attention_forward = queue_attention_forward,
    .attention_backward = queue_attention_backward,
    .rope_table = queue_rope_table,
    .rope_apply = queue_rope_apply,
    .rms_norm_forward = queue_rms_norm_forward,
    .rms_norm_backward = queue_rms_norm_backward,
    .head_norm_forward = queue_head_norm_forward,
    .head_norm_backward = queue_head_norm_backward,
    .head_norm_sums = queue_head_norm_sums,
    .layer_norm_forward = queue_layer_norm_forward,
    .layer_norm_backward = queue_layer_norm_backward,
    .gated_forward = queue_gated_forward,
    .gated_backward = queue_gated_backward,
    .activation_forward = queue_activation_forward,
    .activation_backward = queue_activation_backward,
    .bias_residual_add = queue_bias_residual_add,
    .bias_gradient = queue_bias_gradient,
    .embedding_forward = queue_embedding_forward,
    .embedding_backward = queue_embedding_backward,
    .loss_max = queue_loss_max,
    .loss_sum_exp = queue_loss_sum_exp,
    .loss_backward = queue_loss_backward,
    .loss_total = queue_loss_total,
    .sum_add = queue_sum_add,
    .sum_tree = queue_sum_tree,
    .sum_levels = queue_sum_levels,
    .sum_doubles = queue_sum_doubles,
    .sum_halves = queue_sum_halves,
    .grad_norm_squares = queue_grad_norm_squares,
    .grad_norm_squares_rows = queue_grad_norm_squares_rows,
    .grad_norm_clip = queue_grad_norm_clip,
    .adamw_step = queue_adamw_step,
    .cast = queue_cast,
    .copy_box = queue_copy_box,
    .copy_table = queue_copy_table,
    .part_sums = queue_part_sums,
    .clear = queue_clear,
    .scale = queue_scale,
    .soft_cap = queue_soft_cap,
    .router_forward = queue_router_forward,
    .router_backward = queue_router_backward,
    .router_load = queue_router_load,
    .router_balance = queue_router_balance,
    .permute_sort = queue_permute_sort,
    .permute_dispatch = queue_permute_dispatch,
    .permute_rows = queue_permute_rows,
    .permute_sum = queue_permute_sum,
    .permute_weight_backward = queue_permute_weight_backward,
    .grouped_gemm = queue_grouped_gemm,
};
