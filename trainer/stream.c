/* trainer/stream.c - see trainer/stream.h. */
#include "trainer/stream.h"

#include "kernels/bias.h"
#include "kernels/layernorm.h"
#include "kernels/norm.h"

static struct layernorm view(const struct pass *p, const struct norm *norm, float *x, float *stats)
{
    return (struct layernorm){ .rows = p->stream_rows,
                               .cols = p->net->model->hidden,
                               .eps = (float)p->net->model->norm_eps,
                               .w = norm->weight,
                               .b = norm->bias,
                               .x = x,
                               .mean = stats + p->stream_rows,
                               .rstd = stats };
}

void stream_norm(const struct pass *p, const struct norm *norm, void *y, float *stats, float *x,
                 const struct arriving *in)
{
    const struct model *m = p->net->model;

    if (norm->bias) {
        struct layernorm a = view(p, norm, x, stats);

        layernorm_forward(y, p->net->dtype, &a, in->residual, in->bias);
    } else {
        norm_rms_forward(y, p->net->dtype, stats, x, in->residual, norm->weight, p->stream_rows,
                         m->hidden, (float)m->norm_eps);
    }
}

void stream_norm_backward(const struct pass *p, const struct norm *norm, float *dx, const float *dy,
                          float *x, float *stats)
{
    if (norm->bias) {
        struct layernorm a = view(p, norm, x, stats);

        layernorm_backward(dx, norm->grad, norm->bias_grad, dy, &a, p->scratch->sums);
    } else {
        norm_rms_backward(dx, norm->grad, dy, x, stats, norm->weight, p->stream_rows,
                          p->net->model->hidden, p->scratch->sums);
    }
}

void stream_finish(const struct pass *p, float *x, const struct arriving *in)
{
    residual_add(x, in->residual, in->bias, p->stream_rows, p->net->model->hidden);
}

void stream_bias_backward(const struct pass *p, const struct linear *l, const void *dy,
                          enum dtype type, int64_t rows)
{
    if (l->bias_grad)
        bias_gradient(l->bias_grad, dy, type, rows, l->out, p->scratch->sums);
}
