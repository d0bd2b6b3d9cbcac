/*
 * kernels/cpu/run.h - the operations of kernels/ops.h as functions that run at once. q gives the
 * number of threads and scratch memory. Inside kernels/cpu/.
 */
#ifndef KERNELS_CPU_RUN_H
#define KERNELS_CPU_RUN_H

#include "kernels/ops.h"

/* The CPU does not keep_bf16. */
static inline tp_status cpu_run_wants_f32(enum dtype type, const char *what, struct tp_err *err)
{
    if (type == DTYPE_F32)
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL, "%s on the CPU has f32 inputs, not %s", what,
                   dtype_name(type));
}

/* The same of an array that is bf16 where it is there. */
static inline tp_status cpu_run_wants_no_bf16(const uint16_t *array, const char *what,
                                              struct tp_err *err)
{
    return cpu_run_wants_f32(array ? DTYPE_BF16 : DTYPE_F32, what, err);
}

tp_status cpu_run_gemm(struct device_queue *q, const struct gemm *a, struct tp_err *err);
tp_status cpu_run_attention_forward(struct device_queue *q, const struct attention *a,
                                    struct tp_err *err);
tp_status cpu_run_attention_backward(struct device_queue *q, const struct attention_backward *a,
                                     struct tp_err *err);
tp_status cpu_run_rope_table(struct device_queue *q, const struct rope_table *a,
                             struct tp_err *err);
tp_status cpu_run_rope_apply(struct device_queue *q, const struct rope_apply *a,
                             struct tp_err *err);
tp_status cpu_run_rms_norm_forward(struct device_queue *q, const struct rms_norm_forward *a,
                                   struct tp_err *err);
tp_status cpu_run_rms_norm_backward(struct device_queue *q, const struct rms_norm_backward *a,
                                    struct tp_err *err);
tp_status cpu_run_head_norm_forward(struct device_queue *q, const struct head_norm_forward *a,
                                    struct tp_err *err);
tp_status cpu_run_head_norm_backward(struct device_queue *q, const struct head_norm_backward *a,
                                     struct tp_err *err);
tp_status cpu_run_head_norm_sums(struct device_queue *q, const struct head_norm_sums *a,
                                 struct tp_err *err);
tp_status cpu_run_layer_norm_forward(struct device_queue *q, const struct layer_norm_forward *a,
                                     struct tp_err *err);
tp_status cpu_run_layer_norm_backward(struct device_queue *q, const struct layer_norm_backward *a,
                                      struct tp_err *err);
tp_status cpu_run_gated_forward(struct device_queue *q, const struct gated_forward *a,
                                struct tp_err *err);
tp_status cpu_run_gated_backward(struct device_queue *q, const struct gated_backward *a,
                                 struct tp_err *err);
tp_status cpu_run_copy_table(struct device_queue *q, const struct copy_table *a,
                             struct tp_err *err);
tp_status cpu_run_part_sums(struct device_queue *q, const struct part_sums *a, struct tp_err *err);
tp_status cpu_run_scale(struct device_queue *q, const struct scale *a, struct tp_err *err);
tp_status cpu_run_soft_cap(struct device_queue *q, const struct soft_cap *a, struct tp_err *err);
tp_status cpu_run_activation_forward(struct device_queue *q, const struct activation_forward *a,
                                     struct tp_err *err);
tp_status cpu_run_activation_backward(struct device_queue *q, const struct activation_backward *a,
                                      struct tp_err *err);
tp_status cpu_run_bias_residual_add(struct device_queue *q, const struct bias_residual_add *a,
                                    struct tp_err *err);
tp_status cpu_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a,
                                struct tp_err *err);
tp_status cpu_run_embedding_forward(struct device_queue *q, const struct embedding_forward *a,
                                    struct tp_err *err);
tp_status cpu_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a,
                                     struct tp_err *err);
tp_status cpu_run_loss_max(struct device_queue *q, const struct loss_max *a, struct tp_err *err);
tp_status cpu_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a,
                               struct tp_err *err);
tp_status cpu_run_loss_backward(struct device_queue *q, const struct loss_backward *a,
                                struct tp_err *err);
tp_status cpu_run_loss_total(struct device_queue *q, const struct loss_total *a,
                             struct tp_err *err);
tp_status cpu_run_sum_add(struct device_queue *q, const struct sum_add *a, struct tp_err *err);
tp_status cpu_run_sum_tree(struct device_queue *q, const struct sum_tree *a, struct tp_err *err);
tp_status cpu_run_sum_levels(struct device_queue *q, const struct sum_levels *a,
                             struct tp_err *err);
tp_status cpu_run_sum_doubles(struct device_queue *q, const struct sum_doubles *a,
                              struct tp_err *err);
tp_status cpu_run_sum_halves(struct device_queue *q, const struct sum_halves *a,
                             struct tp_err *err);

/* One tensor of a grad_norm_squares. */
struct cpu_grad_norm_tensor {
    struct grad_norm_tensor tensor;
    double *out;
};
tp_status cpu_run_grad_norm_tensor(struct device_queue *q, const struct cpu_grad_norm_tensor *a,
                                   struct tp_err *err);
tp_status cpu_run_grad_norm_squares_rows(struct device_queue *q,
                                         const struct grad_norm_squares_rows *a,
                                         struct tp_err *err);
tp_status cpu_run_grad_norm_clip(struct device_queue *q, const struct grad_norm_clip *a,
                                 struct tp_err *err);

/* One tensor of an adamw_step. */
struct cpu_adamw_tensor {
    struct adamw_tensor tensor;
    const double *grad_scale;
    const struct adamw_rates *rates;
    struct adamw_options options;
};
tp_status cpu_run_adamw_tensor(struct device_queue *q, const struct cpu_adamw_tensor *a,
                               struct tp_err *err);
tp_status cpu_run_cast(struct device_queue *q, const struct cast *a, struct tp_err *err);
tp_status cpu_run_copy_box(struct device_queue *q, const struct copy_box *a, struct tp_err *err);
tp_status cpu_run_router_forward(struct device_queue *q, const struct router_forward *a,
                                 struct tp_err *err);
tp_status cpu_run_router_backward(struct device_queue *q, const struct router_backward *a,
                                  struct tp_err *err);
tp_status cpu_run_router_load(struct device_queue *q, const struct router_load *a,
                              struct tp_err *err);
tp_status cpu_run_router_balance(struct device_queue *q, const struct router_balance *a,
                                 struct tp_err *err);
tp_status cpu_run_permute_sort(struct device_queue *q, const struct permute_sort *a,
                               struct tp_err *err);
tp_status cpu_run_permute_dispatch(struct device_queue *q, const struct permute_dispatch *a,
                                   struct tp_err *err);
tp_status cpu_run_permute_rows(struct device_queue *q, const struct permute_rows *a,
                               struct tp_err *err);
tp_status cpu_run_permute_sum(struct device_queue *q, const struct permute_sum *a,
                              struct tp_err *err);
tp_status cpu_run_permute_weight_backward(struct device_queue *q,
                                          const struct permute_weight_backward *a,
                                          struct tp_err *err);
tp_status cpu_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a,
                               struct tp_err *err);

#endif
