/* kernels/cuda/cuda.c - see kernels/cuda/cuda.h; and what the library exports. */
#include "kernels/cuda/cuda.h"

#include "device/cuda/cuda.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/run.h"

const struct kernel_ops kernels_cuda = {
    .rope_table = cuda_run_rope_table,
    .rope_apply = cuda_run_rope_apply,
    .rms_norm_forward = cuda_run_rms_norm_forward,
    .rms_norm_backward = cuda_run_rms_norm_backward,
    .layer_norm_forward = cuda_run_layer_norm_forward,
    .layer_norm_backward = cuda_run_layer_norm_backward,
    .swiglu_forward = cuda_run_swiglu_forward,
    .swiglu_backward = cuda_run_swiglu_backward,
    .gelu_forward = cuda_run_gelu_forward,
    .gelu_backward = cuda_run_gelu_backward,
    .bias_add = cuda_run_bias_add,
    .bias_residual_add = cuda_run_bias_residual_add,
    .bias_gradient = cuda_run_bias_gradient,
    .embedding_forward = cuda_run_embedding_forward,
    .embedding_backward = cuda_run_embedding_backward,
    .loss_max = cuda_run_loss_max,
    .loss_sum_exp = cuda_run_loss_sum_exp,
    .loss_backward = cuda_run_loss_backward,
    .loss_total = cuda_run_loss_total,
    .sum_add = cuda_run_sum_add,
    .sum_tree = cuda_run_sum_tree,
    .sum_levels = cuda_run_sum_levels,
    .sum_doubles = cuda_run_sum_doubles,
    .sum_halves = cuda_run_sum_halves,
    .grad_norm_squares = cuda_run_grad_norm_squares,
    .grad_norm_squares_rows = cuda_run_grad_norm_squares_rows,
    .grad_norm_clip = cuda_run_grad_norm_clip,
    .adamw_step = cuda_run_adamw_step,
    .cast = cuda_run_cast,
    .copy_box = cuda_run_copy_box,
};

extern const struct cuda_library tp_cuda_library;
__attribute__((visibility("default"))) const struct cuda_library tp_cuda_library = {
    .version = TP_VERSION,
    .device_open = cuda_device_open,
    .kernels = &kernels_cuda,
};
