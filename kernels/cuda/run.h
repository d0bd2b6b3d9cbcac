/*
 * kernels/cuda/run.h - the operations of kernels/ops.h as functions that launch kernels on a queue
 * of the CUDA device. Inside kernels/cuda/, and for tests/gpu/.
 */
#ifndef KERNELS_CUDA_RUN_H
#define KERNELS_CUDA_RUN_H

#ifdef __cplusplus
extern "C" {
#endif

#include "device/device.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/clear.h"
#include "kernels/copy.h"
#include "kernels/copy_body.h"
#include "kernels/embedding.h"
#include "kernels/gated.h"
#include "kernels/gemm.h"
#include "kernels/grad_norm.h"
#include "kernels/grouped_gemm.h"
#include "kernels/head_norm.h"
#include "kernels/layer_norm.h"
#include "kernels/loss.h"
#include "kernels/part_sums.h"
#include "kernels/permute.h"
#include "kernels/rms_norm.h"
#include "kernels/rope.h"
#include "kernels/router.h"
#include "kernels/scale.h"
#include "kernels/soft_cap.h"
#include "kernels/sum.h"

void cuda_run_gemm(struct device_queue *q, const struct gemm *a);
void cuda_run_attention_forward(struct device_queue *q, const struct attention *a);
void cuda_run_attention_backward(struct device_queue *q, const struct attention_backward *a);
void cuda_run_rope_table(struct device_queue *q, const struct rope_table *a);
void cuda_run_rope_apply(struct device_queue *q, const struct rope_apply *a);
void cuda_run_rms_norm_forward(struct device_queue *q, const struct rms_norm_forward *a);
void cuda_run_rms_norm_backward(struct device_queue *q, const struct rms_norm_backward *a);
void cuda_run_head_norm_forward(struct device_queue *q, const struct head_norm_forward *a);
void cuda_run_head_norm_backward(struct device_queue *q, const struct head_norm_backward *a);
void cuda_run_head_norm_sums(struct device_queue *q, const struct head_norm_sums *a);
void cuda_run_layer_norm_forward(struct device_queue *q, const struct layer_norm_forward *a);
void cuda_run_layer_norm_backward(struct device_queue *q, const struct layer_norm_backward *a);
void cuda_run_gated_forward(struct device_queue *q, const struct gated_forward *a);
void cuda_run_gated_backward(struct device_queue *q, const struct gated_backward *a);
void cuda_run_activation_forward(struct device_queue *q, const struct activation_forward *a);
void cuda_run_activation_backward(struct device_queue *q, const struct activation_backward *a);
void cuda_run_bias_residual_add(struct device_queue *q, const struct bias_residual_add *a);
void cuda_run_bias_gradient(struct device_queue *q, const struct bias_gradient *a);
void cuda_run_embedding_forward(struct device_queue *q, const struct embedding_forward *a);
void cuda_run_embedding_backward(struct device_queue *q, const struct embedding_backward *a);
void cuda_run_loss_max(struct device_queue *q, const struct loss_max *a);
void cuda_run_loss_sum_exp(struct device_queue *q, const struct loss_sum_exp *a);
void cuda_run_loss_backward(struct device_queue *q, const struct loss_backward *a);
void cuda_run_loss_total(struct device_queue *q, const struct loss_total *a);
void cuda_run_sum_add(struct device_queue *q, const struct sum_add *a);
void cuda_run_sum_tree(struct device_queue *q, const struct sum_tree *a);
void cuda_run_sum_levels(struct device_queue *q, const struct sum_levels *a);
void cuda_run_sum_doubles(struct device_queue *q, const struct sum_doubles *a);
void cuda_run_sum_halves(struct device_queue *q, const struct sum_halves *a);
void cuda_run_grad_norm_squares(struct device_queue *q, const struct grad_norm_squares *a);
void cuda_run_grad_norm_squares_rows(struct device_queue *q,
                                     const struct grad_norm_squares_rows *a);
void cuda_run_grad_norm_clip(struct device_queue *q, const struct grad_norm_clip *a);
void cuda_run_adamw_step(struct device_queue *q, const struct adamw_step *a);
void cuda_run_clear(struct device_queue *q, const struct clear *a);
void cuda_run_scale(struct device_queue *q, const struct scale *a);
void cuda_run_soft_cap(struct device_queue *q, const struct soft_cap *a);
void cuda_run_cast(struct device_queue *q, const struct cast *a);
void cuda_run_copy_box(struct device_queue *q, const struct copy_box *a);
void cuda_run_copy_table(struct device_queue *q, const struct copy_table *a);
void cuda_run_part_sums(struct device_queue *q, const struct part_sums *a);
void cuda_run_router_forward(struct device_queue *q, const struct router_forward *a);
void cuda_run_router_backward(struct device_queue *q, const struct router_backward *a);
void cuda_run_router_load(struct device_queue *q, const struct router_load *a);
void cuda_run_router_balance(struct device_queue *q, const struct router_balance *a);
void cuda_run_permute_sort(struct device_queue *q, const struct permute_sort *a);
void cuda_run_permute_dispatch(struct device_queue *q, const struct permute_dispatch *a);
void cuda_run_permute_rows(struct device_queue *q, const struct permute_rows *a);
void cuda_run_permute_sum(struct device_queue *q, const struct permute_sum *a);
void cuda_run_permute_weight_backward(struct device_queue *q,
                                      const struct permute_weight_backward *a);
void cuda_run_grouped_gemm(struct device_queue *q, const struct grouped_gemm *a);

#ifdef __cplusplus
}
#endif

#endif
