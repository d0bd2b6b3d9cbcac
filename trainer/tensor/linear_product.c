/* trainer/tensor/linear_product.c - see trainer/tensor/linear_product.h. */
#include "trainer/tensor/linear_product.h"

#include <stddef.h>

/* One matrix of an in_out layer; of other layers, the whole [out][in] matrix. */
struct linear_part {
    const void *weight;
    float *grad;
    int64_t at, n; /* columns of y */
};

static int parts_of(const struct linear *l)
{
    return l->parts > 1 ? l->parts : 1;
}

static struct linear_part part_of(const struct linear *l, int i)
{
    int64_t n = l->out / parts_of(l), at = i * n * l->in;

    return (struct linear_part){ (const char *)l->weight + at * dtype_bytes(l->type), l->grad + at,
                                 i * n, n };
}

static const void *columns(const struct linear *l, const void *y, int64_t at)
{
    return (const char *)y + at * dtype_bytes(l->type);
}

/* Compute the product of each shard; out_axis is the axis along which shards divide the outputs. */
static void run(const struct linear *l, const struct gemm *product, const struct gemm_batch *shards,
                enum gemm_axis out_axis)
{
    struct gemm g = *product;

    g.type = l->type;
    if (l->shards) {
        g.batch = *shards;
        g.batch.count = l->shards;
        g.batch.axis = l->all_out ? out_axis : GEMM_NO_AXIS;
        g.batch.total = l->all_out;
    }
    l->k->ops->gemm(l->k->queue, &g);
}

/* One call has the products of all parts, or, as a batch has one kind of steps, of all shards. */
static int calls_of(const struct linear *l)
{
    return l->shards ? parts_of(l) : 1;
}

static struct gemm_batch all_parts(const struct linear *l, struct gemm_batch steps)
{
    if (l->shards || parts_of(l) == 1)
        return (struct gemm_batch){ 0 };
    steps.count = l->parts;
    steps.together = true;
    return steps;
}

void linear_output(const struct linear *l, const struct linear_operands *o)
{
    for (int i = 0; i < calls_of(l); i++) {
        struct linear_part w = part_of(l, i);
        const struct gemm_batch parts = { .step_b = l->in * w.n, .step_c = w.n, .step_bias = w.n };
        const struct gemm g = { .trans_b = !l->in_out,
                                .m = o->rows,
                                .n = w.n,
                                .k = l->in,
                                .alpha = l->divisor > 0 ? 1 / l->divisor : 1,
                                .a = o->x,
                                .lda = l->in,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = (char *)o->result + w.at * dtype_bytes(o->result_type),
                                .c_type = o->result_type,
                                .epilogue = o->epilogue,
                                .gelu_input = o->gelu_input,
                                .ldc = l->out,
                                .bias = o->with_bias && l->bias ? l->bias + w.at : NULL,
                                .rounded_bias = l->rounded_bias ? l->rounded_bias + w.at : NULL,
                                .batch = all_parts(l, parts) };
        const struct gemm_batch shards = { .step_a = o->x_step,
                                           .step_b = l->stride,
                                           .step_c = o->result_step,
                                           .step_bias = l->bias_stride };

        run(l, &g, &shards, GEMM_N);
    }
}

/* The products of the parts are added, so they are no batch. */
void linear_input_gradient(const struct linear *l, const struct linear_operands *o)
{
    for (int i = 0; i < parts_of(l); i++) {
        struct linear_part w = part_of(l, i);
        const struct gemm g = { .trans_b = l->in_out,
                                .m = o->rows,
                                .n = l->in,
                                .k = w.n,
                                .alpha = 1,
                                .a = columns(l, o->dy, w.at),
                                .lda = l->out,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = o->result,
                                .c_type = o->result_type,
                                .epilogue = o->epilogue,
                                .gelu_input = o->gelu_input,
                                .ldc = l->in,
                                .beta = i > 0 ? 1 : 0 };
        const struct gemm_batch shards = { .step_a = o->dy_step,
                                           .step_b = l->stride,
                                           .step_c = o->result_step };

        run(l, &g, &shards, GEMM_K);
    }
}

void linear_weight_gradient(const struct linear *l, const struct linear_operands *o)
{
    for (int i = 0; i < calls_of(l); i++) {
        struct linear_part w = part_of(l, i);
        const struct gemm_batch parts = { .step_b = w.n, .step_c = l->in * w.n };
        const void *dy = columns(l, o->dy, w.at);
        const struct gemm g = { .trans_a = true,
                                .m = l->in_out ? l->in : w.n,
                                .n = l->in_out ? w.n : l->in,
                                .k = o->rows,
                                .alpha = 1,
                                .a = l->in_out ? o->x : dy,
                                .lda = l->in_out ? l->in : l->out,
                                .b = l->in_out ? dy : o->x,
                                .ldb = l->in_out ? l->out : l->in,
                                .c = w.grad,
                                .ldc = l->in_out ? w.n : l->in,
                                .beta = o->add ? 1 : 0,
                                .batch = all_parts(l, parts) };
        const struct gemm_batch shards = { .step_a = l->in_out ? o->x_step : o->dy_step,
                                           .step_b = l->in_out ? o->dy_step : o->x_step,
                                           .step_c = l->stride };

        run(l, &g, &shards, l->in_out ? GEMM_N : GEMM_M);
    }
}

void *linear_parts_for(const struct linear *l, void *out)
{
    return l->shards > 1 ? l->sums : out;
}

void linear_add_parts(const struct linear *l, void *out, int64_t n)
{
    const struct sum_tree sum = { out, l->sums, l->shards, n, n };

    if (l->shards > 1)
        l->k->ops->sum_tree(l->k->queue, &sum);
}
