/* trainer/tensor/expert_linear.c - see trainer/tensor/expert_linear.h. */
#include "trainer/tensor/expert_linear.h"

static void run(const struct linear *l, const struct expert_linear_rows *r,
                const struct gemm *product, enum gemm_axis axis)
{
    struct grouped_gemm g = { .product = *product,
                              .axis = axis,
                              .groups = r->groups,
                              .matrices = r->experts,
                              .step = l->stride,
                              .offsets = r->offsets,
                              .host_offsets = r->host_offsets };

    g.product.alpha = 1;
    g.product.type = l->type;
    l->k->ops->grouped_gemm(l->k->queue, &g);
}

void expert_linear_forward(const struct linear *l, const struct expert_linear_rows *r, void *y,
                           enum dtype y_type, int64_t ldy, const void *x)
{
    const struct gemm g = { .trans_b = true,
                            .n = l->out,
                            .k = l->in,
                            .a = x,
                            .lda = l->in,
                            .b = l->weight,
                            .ldb = l->in,
                            .c = y,
                            .c_type = y_type,
                            .ldc = ldy };

    run(l, r, &g, GEMM_M);
}

void expert_linear_input_gradient(const struct linear *l, const struct expert_linear_rows *r,
                                  void *dx, enum dtype dx_type, const void *dy, int64_t lddy,
                                  bool add)
{
    const struct gemm g = { .n = l->in,
                            .k = l->out,
                            .a = dy,
                            .lda = lddy,
                            .b = l->weight,
                            .ldb = l->in,
                            .c = dx,
                            .c_type = dx_type,
                            .ldc = l->in,
                            .beta = add ? 1 : 0 };

    run(l, r, &g, GEMM_M);
}

void expert_linear_weight_gradient(const struct linear *l, const struct expert_linear_rows *r,
                                   const void *dy, int64_t lddy, const void *x, bool add)
{
    const struct gemm g = { .trans_a = true,
                            .m = l->out,
                            .n = l->in,
                            .a = dy,
                            .lda = lddy,
                            .b = x,
                            .ldb = l->in,
                            .c = l->grad,
                            .ldc = l->in,
                            .beta = add ? 1 : 0 };

    run(l, r, &g, GEMM_K);
}
