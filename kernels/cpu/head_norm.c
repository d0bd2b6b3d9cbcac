/* kernels/cpu/head_norm.c - see kernels/head_norm.h. Heads are shared among threads as rows of
 * kernels/cpu/rms_norm.c are. */
#include "kernels/head_norm.h"

#include <string.h>

#include "kernels/cpu/column_sums.h"
#include "kernels/cpu/rms_norm.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

/* Where head i of all rows' heads begins. */
static int64_t head_at(int64_t i, int64_t heads, int64_t head_dim, int64_t ld)
{
    return i / heads * ld + i % heads * head_dim;
}

static void forward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct head_norm_forward *a = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        float *y = (float *)a->y + head_at(i, a->heads, a->head_dim, a->ldy);
        float *x = (float *)a->x + head_at(i, a->heads, a->head_dim, a->ldx);

        a->rstd[i] = rms_norm_row(y, DTYPE_F32, x, NULL, a->w, a->head_dim, a->eps);
    }
}

tp_status cpu_run_head_norm_forward(struct device_queue *q, const struct head_norm_forward *a,
                                    struct tp_err *err)
{
    struct head_norm_forward rows = *a;
    tp_status st = cpu_run_wants_f32(a->type, "a norm of heads", err);

    if (!st)
        kernels_for(q, a->rows * a->heads, kernels_grain(a->head_dim * 8), forward_range, &rows);
    return st;
}

/* ---- backward ---- */

static KERNEL_CLONES void backward_head(float *restrict d, float *restrict dw,
                                        const float *restrict x, const float *restrict w,
                                        float rstd, float along, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        float dy = d[i];

        d[i] = rstd * (dy * w[i]) - along * x[i];
        dw[i] += dy * (x[i] * rstd);
    }
}

struct head_norm_work {
    struct head_norm_backward a;
    float *room;
};

/* Heads lo .. hi - 1; what they give to dw is added to the thread's part. */
static void backward_heads(const struct head_norm_backward *a, const struct column_sums *sums,
                           int64_t lo, int64_t hi)
{
    for (int64_t i = lo; i < hi; i++) {
        float *d = (float *)a->d + head_at(i, a->heads, a->head_dim, a->ldd);
        const float *x = (const float *)a->x + head_at(i, a->heads, a->head_dim, a->ldx);
        float along = rms_norm_row_along(d, x, a->w, a->rstd[i], a->head_dim);

        backward_head(d, sums->part, x, a->w, a->rstd[i], along, a->head_dim);
        column_sums_next(sums, i, lo, hi);
    }
}

static void backward_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct head_norm_work *w = ctx;
    const struct column_sums s = column_sums_of(w->room, w->a.head_dim, thread);

    backward_heads(&w->a, &s, lo, hi);
}

/* Blocks lo .. hi - 1 of rows, each by this thread alone. */
static void backward_blocks(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct head_norm_work *w = ctx;
    const struct head_norm_backward *a = &w->a;
    const struct column_sums s = column_sums_of(w->room, a->head_dim, thread);
    int64_t heads = a->rows / a->blocks * a->heads;

    for (int64_t i = lo; i < hi; i++) {
        float *dw = a->dw + i * a->block_step;

        column_sums_clear(s.total, s.cols, 1);
        backward_heads(a, &s, i * heads, (i + 1) * heads);
        memset(dw, 0, (size_t)a->head_dim * sizeof *dw);
        column_sums_add(dw, 0, a->head_dim, s.total, a->head_dim, 1);
    }
}

tp_status cpu_run_head_norm_backward(struct device_queue *q, const struct head_norm_backward *a,
                                     struct tp_err *err)
{
    struct head_norm_work w = { .a = *a };
    int team = kernels_team(q);
    tp_status st = cpu_run_wants_f32(a->type, "the gradient of a norm of heads", err);

    if (!st)
        st = column_sums_room(&w.room, q, a->head_dim, err);
    if (st)
        return st;
    if (a->blocks) {
        kernels_each(q, a->blocks, backward_blocks, &w);
        return TP_OK;
    }
    column_sums_clear(w.room, a->head_dim, team);
    kernels_for(q, a->rows * a->heads, kernels_grain(a->head_dim * 16), backward_range, &w);
    column_sums_add(a->dw, 0, a->head_dim, w.room, a->head_dim, team);
    return TP_OK;
}
