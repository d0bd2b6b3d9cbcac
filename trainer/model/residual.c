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

void residual_norm(const struct pass *p, const struct network_norm *norm, void *y, float *stats,
                   float *x, const struct residual_pending *in)
{
    const struct kernel_queue *k = &p->net->k;
    int64_t rows = p->residual_rows, cols = p->net->model->hidden;
    float eps = (float)p->net->model->norm_eps;
    const float *residual = in->residual;

    if (!norm->bias && in->bias) { /* RMS norm adds no bias */
        residual_finish(p, x, in);
        residual = NULL;
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
                                                                           .eps = eps });
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
                                                  .eps = eps });
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

static void layer_norm_backward(const struct pass *p, const struct network_norm *norm, float *dx,
                                const float *dy, float *x, float *stats)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    float *sum = p->scratch->blocks;
    int blocks = blocks_of(n);
    const struct layer_norm_backward a = { .dx = dx,
                                           .dw = blocks ? sum : norm->grad,
                                           .db = blocks ? sum + h : norm->bias_grad,
                                           .dy = dy,
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

static void rms_norm_backward(const struct pass *p, const struct network_norm *norm, float *dx,
                              const float *dy, float *x, float *stats)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    float *sum = p->scratch->blocks;
    int blocks = blocks_of(n);
    const struct rms_norm_backward a = { .dx = dx,
                                         .dw = blocks ? sum : norm->grad,
                                         .dy = dy,
                                         .x = x,
                                         .rstd = stats,
                                         .w = residual_norm_weight(p, norm, h),
                                         .rows = p->residual_rows,
                                         .cols = h,
                                         .blocks = blocks,
                                         .block_step = h };

    n->k.ops->rms_norm_backward(n->k.queue, &a);
    if (!blocks)
        return;
    add_blocks(p, blocks, h);
    add(n, norm->grad, sum);
}

void residual_norm_backward(const struct pass *p, const struct network_norm *norm, float *dx,
                            const float *dy, float *x, float *stats)
{
    (norm->bias ? layer_norm_backward : rms_norm_backward)(p, norm, dx, dy, x, stats);
}

void residual_post_norm(const struct pass *p, const struct network_norm *norm, float *y,
                        float *stats, float *x, const float *bias)
{
    const struct kernel_queue *k = &p->net->k;
    int64_t cols = p->net->model->hidden;

    if (bias)
        residual_finish(p, x, &(struct residual_pending){ NULL, bias });
    k->ops->rms_norm_forward(k->queue,
                             &(struct rms_norm_forward){ .y = y,
                                                         .type = DTYPE_F32,
                                                         .rstd = stats,
                                                         .x = x,
                                                         .w = residual_norm_weight(p, norm, cols),
                                                         .rows = p->residual_rows,
                                                         .cols = cols,
                                                         .eps = (float)p->net->model->norm_eps });
}

const float *residual_post_norm_backward(const struct pass *p, const struct network_norm *norm,
                                         float *x, float *stats)
{
    const struct activations_scratch *w = p->scratch;
    int64_t bytes = p->residual_rows * p->net->model->hidden * (int64_t)sizeof(float);

    if (!norm->weight)
        return w->dx;
    device_fill(p->net->k.queue, w->dblock, 0, bytes);
    rms_norm_backward(p, norm, w->dblock, w->dx, x, stats);
    return w->dblock;
}

void residual_bias_backward(const struct pass *p, const struct linear *l, const float *dx)
{
    const struct network *n = p->net;
    int64_t h = n->model->hidden;
    int blocks = blocks_of(n);
    struct bias_gradient a = {
        .dbias = l->bias_grad, .dy = dx, .type = DTYPE_F32, .rows = p->residual_rows, .cols = h
    };

    if (!l->bias_grad)
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

    k->ops->bias_residual_add(k->queue,
                              &(struct bias_residual_add){ .x = x,
                                                           .residual = in->residual,
                                                           .bias = in->bias,
                                                           .rows = p->residual_rows,
                                                           .cols = p->net->model->hidden });
}
