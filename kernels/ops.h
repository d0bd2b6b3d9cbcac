/*
 * kernels/ops.h - the operations that a device computes, as one table. A device that trains has
 * one: kernels/cpu/cpu.h; a GPU adds another.
 *
 * An operation is ordered on the queue that it is given, as device/device.h says of all operations:
 * it returns at once, works on device memory, and its failure is kept by the queue's device. Its
 * one argument, a struct, is read before it returns. The header of each struct says what is
 * computed.
 */
#ifndef KERNELS_OPS_H
#define KERNELS_OPS_H

#include <stdbool.h>

#include "device/device.h"
#include "kernels/activation.h"
#include "kernels/adamw.h"
#include "kernels/attention.h"
#include "kernels/bias.h"
#include "kernels/cast.h"
#include "kernels/clear.h"
#include "kernels/copy.h"
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

struct kernel_ops {
    void (*gemm)(struct device_queue *q, const struct gemm *a);
    void (*attention_forward)(struct device_queue *q, const struct attention *a);
    void (*attention_backward)(struct device_queue *q, const struct attention_backward *a);
    void (*rope_table)(struct device_queue *q, const struct rope_table *a);
    void (*rope_apply)(struct device_queue *q, const struct rope_apply *a);
    void (*rms_norm_forward)(struct device_queue *q, const struct rms_norm_forward *a);
    void (*rms_norm_backward)(struct device_queue *q, const struct rms_norm_backward *a);
    void (*head_norm_forward)(struct device_queue *q, const struct head_norm_forward *a);
    void (*head_norm_backward)(struct device_queue *q, const struct head_norm_backward *a);
    void (*head_norm_sums)(struct device_queue *q, const struct head_norm_sums *a);
    void (*layer_norm_forward)(struct device_queue *q, const struct layer_norm_forward *a);
    void (*layer_norm_backward)(struct device_queue *q, const struct layer_norm_backward *a);
    void (*gated_forward)(struct device_queue *q, const struct gated_forward *a);
    void (*gated_backward)(struct device_queue *q, const struct gated_backward *a);
    void (*activation_forward)(struct device_queue *q, const struct activation_forward *a);
    void (*activation_backward)(struct device_queue *q, const struct activation_backward *a);
    void (*bias_residual_add)(struct device_queue *q, const struct bias_residual_add *a);
    void (*bias_gradient)(struct device_queue *q, const struct bias_gradient *a);
    void (*embedding_forward)(struct device_queue *q, const struct embedding_forward *a);
    void (*embedding_backward)(struct device_queue *q, const struct embedding_backward *a);
    void (*loss_max)(struct device_queue *q, const struct loss_max *a);
    void (*loss_sum_exp)(struct device_queue *q, const struct loss_sum_exp *a);
    void (*loss_backward)(struct device_queue *q, const struct loss_backward *a);
    void (*loss_total)(struct device_queue *q, const struct loss_total *a);
    void (*sum_add)(struct device_queue *q, const struct sum_add *a);
    void (*sum_tree)(struct device_queue *q, const struct sum_tree *a);
    void (*sum_levels)(struct device_queue *q, const struct sum_levels *a);
    void (*sum_doubles)(struct device_queue *q, const struct sum_doubles *a);
    void (*sum_halves)(struct device_queue *q, const struct sum_halves *a);
    void (*grad_norm_squares)(struct device_queue *q, const struct grad_norm_squares *a);
    void (*grad_norm_squares_rows)(struct device_queue *q, const struct grad_norm_squares_rows *a);
    void (*grad_norm_clip)(struct device_queue *q, const struct grad_norm_clip *a);
    void (*adamw_step)(struct device_queue *q, const struct adamw_step *a);
    void (*cast)(struct device_queue *q, const struct cast *a);
    void (*copy_box)(struct device_queue *q, const struct copy_box *a);
    void (*copy_table)(struct device_queue *q, const struct copy_table *a);
    void (*part_sums)(struct device_queue *q, const struct part_sums *a);
    void (*clear)(struct device_queue *q, const struct clear *a);
    void (*scale)(struct device_queue *q, const struct scale *a);
    void (*soft_cap)(struct device_queue *q, const struct soft_cap *a);

    /* Of mixtures of experts; a device has all of these or none. */
    void (*router_forward)(struct device_queue *q, const struct router_forward *a);
    void (*router_backward)(struct device_queue *q, const struct router_backward *a);
    void (*router_load)(struct device_queue *q, const struct router_load *a);
    void (*router_balance)(struct device_queue *q, const struct router_balance *a);
    void (*permute_sort)(struct device_queue *q, const struct permute_sort *a);
    void (*permute_dispatch)(struct device_queue *q, const struct permute_dispatch *a);
    void (*permute_rows)(struct device_queue *q, const struct permute_rows *a);
    void (*permute_sum)(struct device_queue *q, const struct permute_sum *a);
    void (*permute_weight_backward)(struct device_queue *q,
                                    const struct permute_weight_backward *a);
    void (*grouped_gemm)(struct device_queue *q, const struct grouped_gemm *a);
    /* grouped_gemm, and the device's collectives, read numbers of rows from host memory while they
     * are queued (host_offsets; comm/collective.h). */
    bool reads_rows_on_host;

    /* Activations of a bf16 run are bf16 wherever a product reads or writes them: C of gemm and
     * grouped_gemm, inputs of activation and gated, x of rope_apply and soft_cap, heads of
     * head_norm, gradients of attention, logits of the loss, dhidden of permute_weight_backward, x
     * and y of permute_sum, and what the norms say may be bf16. Other devices refuse that. Their
     * runs keep in f32 what products write. */
    bool keeps_bf16;
    /* The widest heads that attention computes; 0: all. */
    int64_t head_dim_max;
};

/* A queue, and the operations of its device. */
struct kernel_queue {
    const struct kernel_ops *ops;
    struct device_queue *queue;
};

#endif
