/* trainer/model/residual.c - see trainer/model/residual.h. */
#include "trainer/model/residual.h"

#include "layout/family.h"

const float *residual_norm_weight(const struct pass *p, const struct network_norm *norm,
                                  int64_t cols)
{
    const struct network *n = p->net;
    float *sum = p->scratch->unit_weight;

    if (family_of(n->model)->norm != FAMILY_UNIT_RMS_NORM)
        return norm->weight;
    device_copy(n->k.queue, sum, norm->weight, cols * (int64_t)sizeof *sum);
    n->k.ops->scale(n->k.queue, &(struct scale){ sum, cols, 1, 1 });
    return sum;
}

/* What blocks compute is bf16. */
static bool has_bf16_blocks(const struct pass *p)
{
    return p->net->outer == DTYPE_BF16;
}

void *residual_block_place(const struct pass *p, float *x)
{
    return has_bf16_blocks(p) ? p->scratch->outer : x;
}

const uint16_t *residual_block(const struct pass *p)
{
    return has_bf16_blocks(p) ? p->scratch->outer : NULL;
}

/* Without a norm a block reads the residual, in the run's dtype. */
static void read_residual(const struct pass *p, void *y, float *x,
                          const struct residual_pending *in)
{
    const struct network *n = p->net;
    int64_t count = p->residual_rows * n->model->hidden;

    residual_finish(p, x, in);
    if (y != x)
        n->k.ops->cast(n->k.queue, &(struct cast){ y, n->dtype, x, DTYPE_F32, count });
}

void residual_norm(const struct pass *p, const struct network_norm *norm, void *y, float *stats,
                   float *x, const struct residual_pending *in)
{
    const struct kernel_queue *k = &p->net->k;
    int64_t rows = p->residual_rows, cols = p->net->model->hidden;
    float eps = p->net->residual_eps;
    const float *residual = in->residual;
    const uint16_t *block = in->block;

    if (!norm->weight) {
        read_residual(p, y, x, in);
        return;
    }
    if (!norm->bias && in->bias) { /* RMS norm adds no bias */
        residual_finish(p, x, in);
        residual = NULL;
        block = NULL;
    }
    if (norm->bias)
        k->ops->layer_norm_forward(k->queue, &(struct layer_norm_forward){ .y = y,
                                                                           .type = p->net->dtype,
                                                                           .mean = stats + rows,
                                                                           .rstd = stats,
                                                                           .x = x,
                                                                           .residual = in->residual,
                                                                           .x_bias = in->bias,
                                                                           .w = norm->weight,
                                                                           .b = norm->bias,
                                                                           .rows = rows,
                                                                           .cols = cols,
                                                                           .eps = eps,
                                                                           .block = block });
    else
        k->ops->rms_norm_forward(
            k->queue, &(struct rms_norm_forward){ .y = y,
                                                  .type = p->net->dtype,
                                                  .rstd = stats,
                                                  .x = x,
                                                  .residual = residual,
                                                  .w = residual_norm_weight(p, norm, cols),
                                                  .rows = rows,
                                                  .cols = cols,
                                                  .eps = eps,
                                                  .block = block });
}

/* ---- gradients that are sums over rows ----
 *
 * With --same-bits the rows are in blocks, which are the same at every layout. One thread sums
 * each block, and the sums are added along the tree. Otherwise `blocks` is 0 and all rows are one
 * sum. */

/* scratch.blocks has the sums of the blocks, [blocks][width]. Add them, also over ranks, into the
 * first one. */
static void add_blocks(const struct pass *p, int blocks, int64_t width)
{
    const struct network *n = p->net;
    float *sum = p->scratch->blocks;

    n->k.ops->sum_tree(n->k.queue, &(struct sum_tree){ sum, sum, blocks, width, width });
    if (n->split > 1)
        comm_all_reduce(n->tp, n->k.queue, sum, width, DTYPE_F32, COMM_SUM);
}

static void add(const struct network *n, float *y, const float *x)
{
    n->k.ops->sum_add(n->k.queue, &(struct sum_add){ y, x, 1, n->model->hidden, 0, 0 });
}

static int blocks_of(const struct network *n)
{
    return n->same_bits ? n->n_virtual / n->split : 0;
}

/* Where the gradient of the residual is also that of what a block computes, which products read:
 * there the norm that computes it rounds it. */
static uint16_t *rounded_place(const struct pass *p)
{
    bool has_post_norms = family_tensor_find(family_of(p->net->model), ROLE_MLP_POST_NORM);

    return has_bf16_blocks(p) && !has_post_norms ? p->scratch->dy : NULL;
}

static void layer_norm_backward(const struct pass *p, const struct network_norm *norm,
                                const float *x, const float *stats)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    float *sum = p->scratch->blocks;
    int blocks = blocks_of(n);
    const struct layer_norm_backward a = { .dx = p->scratch->dx,
                                           .dw = blocks ? sum : norm->grad,
                                           .db = blocks ? sum + h : norm->bias_grad,
                                           .dy = p->scratch->outer,
                                           .dy_type = n->outer,
                                           .rounded = rounded_place(p),
                                           .dx_sum = norm->row_bias_grad,
                                           .x = x,
                                           .mean = stats + p->residual_rows,
                                           .rstd = stats,
                                           .w = norm->weight,
                                           .rows = p->residual_rows,
                                           .cols = h,
                                           .blocks = blocks,
                                           .block_step = 2 * h };

    n->k.ops->layer_norm_backward(n->k.queue, &a);
    if (!blocks)
        return;
    add_blocks(p, blocks, 2 * h);
    add(n, norm->grad, sum);
    add(n, norm->bias_grad, sum + h);
}

/* of: dx, dy and x, with their types. */
static void rms_norm_backward(const struct pass *p, const struct network_norm *norm,
                              const float *stats, const struct rms_norm_backward *of)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    float *sum = p->scratch->blocks;
    int blocks = blocks_of(n);
    struct rms_norm_backward a = *of;

    a.dw = blocks ? sum : norm->grad;
    a.rstd = stats;
    a.w = residual_norm_weight(p, norm, h);
    a.rows = p->residual_rows;
    a.cols = h;
    a.blocks = blocks;
    a.block_step = h;
    n->k.ops->rms_norm_backward(n->k.queue, &a);
    if (!blocks)
        return;
    add_blocks(p, blocks, h);
    add(n, norm->grad, sum);
}

/* dx += outer */
static void add_block_gradient(const struct pass *p)
{
    const struct activations_scratch *w = p->scratch;
    bool is_bf16 = has_bf16_blocks(p);

    p->net->k.ops->bias_residual_add(
        p->net->k.queue, &(struct bias_residual_add){ .x = w->dx,
                                                      .residual = is_bf16 ? w->dx : w->outer,
                                                      .block = is_bf16 ? w->outer : NULL,
                                                      .rows = p->residual_rows,
                                                      .cols = p->net->model->hidden });
}

void residual_norm_backward(const struct pass *p, const struct network_norm *norm, const float *x,
                            const float *stats)
{
    const struct rms_norm_backward of = { .dx = p->scratch->dx,
                                          .dy = p->scratch->outer,
                                          .dy_type = p->net->outer,
                                          .x = x,
                                          .rounded = rounded_place(p) };

    if (!norm->weight)
        add_block_gradient(p);
    else if (norm->bias)
        layer_norm_backward(p, norm, x, stats);
    else
        rms_norm_backward(p, norm, stats, &of);
}

void residual_post_norm(const struct pass *p, const struct network_norm *norm, void *y,
                        float *stats, void *x, const float *bias)
{
    const struct kernel_queue *k = &p->net->k;
    int64_t cols = p->net->model->hidden;
    bool is_bf16 = has_bf16_blocks(p);

    if (bias)
        residual_finish(p, x, &(struct residual_pending){ .bias = bias });
    k->ops->rms_norm_forward(k->queue,
                             &(struct rms_norm_forward){ .y = y,
                                                         .type = p->net->outer,
                                                         .rstd = stats,
                                                         .x = is_bf16 ? NULL : x,
                                                         .block = is_bf16 ? x : NULL,
                                                         .w = residual_norm_weight(p, norm, cols),
                                                         .rows = p->residual_rows,
                                                         .cols = cols,
                                                         .eps = (float)p->net->model->norm_eps });
}

const float *residual_post_norm_backward(const struct pass *p, const struct network_norm *norm,
                                         const void *x, const float *stats)
{
    const struct activations_scratch *w = p->scratch;
    const struct rms_norm_backward of = { .dx = w->dblock,
                                          .dy = w->dx,
                                          .x = x,
                                          .x_type = p->net->outer,
                                          .rounded = has_bf16_blocks(p) ? w->dy : NULL };
    int64_t bytes = p->residual_rows * p->net->model->hidden * (int64_t)sizeof(float);

    if (!norm->weight)
        return w->dx;
    device_fill(p->net->k.queue, w->dblock, 0, bytes);
    rms_norm_backward(p, norm, stats, &of);
    return w->dblock;
}

static const void *round_bf16(const struct pass *p, const float *x)
{
    const struct network *n = p->net;

    n->k.ops->cast(n->k.queue, &(struct cast){ p->scratch->dy, DTYPE_BF16, x, DTYPE_F32,
                                               p->residual_rows * n->model->hidden });
    return p->scratch->dy;
}

void residual_begin_backward(const struct pass *p)
{
    if (rounded_place(p))
        round_bf16(p, p->scratch->dx);
}

const void *residual_block_gradient(const struct pass *p, const float *dout)
{
    if (p->net->dtype != DTYPE_BF16)
        return dout;
    return has_bf16_blocks(p) ? p->scratch->dy : round_bf16(p, dout);
}

void residual_bias_backward(const struct pass *p, const struct linear *l, const float *dx)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    int blocks = blocks_of(n);
    struct bias_gradient a = {
        .dbias = l->bias_grad, .dy = dx, .type = DTYPE_F32, .rows = p->residual_rows, .cols = h
    };

    if (!l->bias_grad || l->bias_by_norm)
        return;
    if (blocks) {
        a.dbias = p->scratch->blocks;
        a.rows = p->residual_rows / blocks;
        a.count = blocks;
        a.dbias_step = h;
        a.dy_step = a.rows * h;
        a.clear = true;
    }
    n->k.ops->bias_gradient(n->k.queue, &a);
    if (!blocks)
        return;
    add_blocks(p, blocks, h);
    add(n, l->bias_grad, p->scratch->blocks);
}

void residual_finish(const struct pass *p, float *x, const struct residual_pending *in)
{
    const struct kernel_queue *k = &p->net->k;

    if (!in->residual && !in->bias && !in->block)
        return;
    k->ops->bias_residual_add(k->queue,
                              &(struct bias_residual_add){ .x = x,
                                                           .residual = in->residual,
                                                           .bias = in->bias,
                                                           .block = in->block,
                                                           .rows = p->residual_rows,
                                                           .cols = p->net->model->hidden });
}
