/* trainer/tensor/linear_product.c - see trainer/tensor/linear_product.h. */
#include "trainer/tensor/linear_product.h"

#include <stdatomic.h>
#include <stddef.h>

#include "kernels/cpu/thread.h"
#include "kernels/gemm.h"
#include "trainer/same_bits/emulated_shards.h"

/* Matrices of in_out layers, as the products see them; one [out][in] matrix otherwise. */
struct part {
    const void *weight;
    float *grad;
    int64_t at, n; /* columns of y */
};

static int parts_of(const struct linear *l)
{
    return l->parts > 1 ? l->parts : 1;
}

static struct part part_of(const struct linear *l, int i)
{
    int64_t n = l->out / parts_of(l), at = i * n * l->in;

    return (struct part){ (const char *)l->weight + at * dtype_bytes(l->type), l->grad + at, i * n,
                          n };
}

tp_status linear_output(const struct linear *l, const struct linear_operands *o, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = !l->in_out,
                                .m = o->rows,
                                .n = w.n,
                                .k = l->in,
                                .a = o->x,
                                .lda = l->in,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = o->to + w.at,
                                .ldc = l->out,
                                .alpha = 1,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

tp_status linear_input_gradient(const struct linear *l, const struct linear_operands *o,
                                struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const struct gemm g = { .trans_b = l->in_out,
                                .m = o->rows,
                                .n = l->in,
                                .k = w.n,
                                .a = o->dy + w.at * dtype_bytes(l->type),
                                .lda = l->out,
                                .b = w.weight,
                                .ldb = l->in_out ? w.n : l->in,
                                .c = o->to,
                                .ldc = l->in,
                                .alpha = 1,
                                .beta = i > 0 ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

tp_status linear_weight_gradient(const struct linear *l, const struct linear_operands *o,
                                 struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < parts_of(l) && !st; i++) {
        struct part w = part_of(l, i);
        const char *dy_part = o->dy + w.at * dtype_bytes(l->type);
        const struct gemm g = { .trans_a = true,
                                .m = l->in_out ? l->in : w.n,
                                .n = l->in_out ? w.n : l->in,
                                .k = o->rows,
                                .a = l->in_out ? o->x : dy_part,
                                .lda = l->in_out ? l->in : l->out,
                                .b = l->in_out ? dy_part : o->x,
                                .ldb = l->in_out ? l->out : l->in,
                                .c = w.grad,
                                .ldc = l->in_out ? w.n : l->in,
                                .alpha = 1,
                                .beta = o->add ? 1 : 0,
                                .type = l->type };

        st = gemm(&g, err);
    }
    return st;
}

/* ---- shards ---- */

/* Outputs of a shard of a column layer. */
static int64_t shard_out(const struct linear *l, int shard)
{
    int64_t left = l->all_out - shard * l->out;

    if (!l->all_out || left > l->out)
        return l->out;
    return left > 0 ? left : 0;
}

/* Shard s as a layer of its own. */
static struct linear shard_of(const struct linear *l, int s)
{
    struct linear one = *l;

    one.weight = (const char *)l->weight + s * l->stride * dtype_bytes(l->type);
    one.grad += s * l->stride;
    one.out = shard_out(l, s);
    return one;
}

struct work {
    const struct linear *l;
    const struct linear_operands *o;
    linear_product_fn fn;
    struct tp_err *err;
    atomic_int failed; /* the first failure's message is kept */
};

static void shard_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct work *w = ctx;

    (void)thread;
    for (int64_t s = lo; s < hi; s++) {
        struct linear one = shard_of(w->l, (int)s);
        struct linear_operands o = *w->o;
        struct tp_err err = { 0 };

        o.to = o.to ? o.to + s * o.to_step : NULL;
        o.dy = o.dy ? o.dy + s * o.dy_step : NULL;
        o.x = o.x ? o.x + s * o.x_step : NULL;
        if (w->fn(&one, &o, &err) && !atomic_exchange(&w->failed, 1))
            *w->err = err;
    }
}

tp_status linear_each(linear_product_fn fn, const struct linear *l, const struct linear_operands *o,
                      struct tp_err *err)
{
    struct work w = { .l = l, .o = o, .fn = fn, .err = err };

    if (!l->shards)
        return fn(l, o, err);
    kernels_each(l->shards, shard_range, &w);
    return atomic_load(&w.failed) ? err->status : TP_OK;
}

float *linear_parts_for(const struct linear *l, float *out)
{
    return l->shards > 1 ? l->sums : out;
}

void linear_add_parts(const struct linear *l, float *out, int64_t n)
{
    if (l->shards > 1)
        shards_sum(out, l->sums, l->shards, n, n);
}
