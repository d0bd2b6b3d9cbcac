/* kernels/cpu/column_sums.c - see kernels/cpu/column_sums.h. */
#include "kernels/cpu/column_sums.h"

#include <string.h>

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

enum { ROWS_AT_ONCE = 32 };

/* The room of a thread: its total and its part, `cols` floats each. Rows are added to the part. */
struct column_sums_work {
    struct column_sums s;
    float *room;
};

static float *total_of(const struct column_sums_work *w, int thread)
{
    return w->room + thread * 2 * w->s.cols;
}

static void clear_room(const struct column_sums_work *w, int first, int n)
{
    memset(total_of(w, first), 0, (size_t)(n * 2 * w->s.cols) * sizeof *w->room);
}

static KERNEL_CLONES void add(float *restrict to, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += x[i];
}

static void add_rows(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct column_sums_work *w = ctx;
    float *total = total_of(w, thread), *part = total + w->s.cols;

    for (int64_t r = lo; r < hi; r++) {
        w->s.add_row(w->s.ctx, part, r);
        if ((r - lo) % ROWS_AT_ONCE == ROWS_AT_ONCE - 1 || r + 1 == hi) {
            add(total, part, w->s.cols);
            memset(part, 0, (size_t)w->s.cols * sizeof *part);
        }
    }
}

/* Add the totals of n threads to the arrays, which begin `at` elements behind s.out. */
static void add_totals(const struct column_sums_work *w, int64_t at, int first, int n)
{
    int arrays = w->s.out[1] ? 2 : 1;
    int64_t cols = w->s.cols / arrays;

    for (int i = 0; i < arrays; i++)
        for (int t = first; t < first + n; t++)
            add(w->s.out[i] + at, total_of(w, t) + i * cols, cols);
}

/* Blocks lo .. hi - 1 of rows, each by this thread alone. */
static void sum_blocks(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct column_sums_work *w = ctx;
    const struct column_sums *s = &w->s;
    int64_t rows = s->rows / s->blocks, cols = s->cols / (s->out[1] ? 2 : 1);

    for (int64_t b = lo; b < hi; b++) {
        clear_room(w, thread, 1);
        add_rows(ctx, b * rows, (b + 1) * rows, thread);
        for (int i = 0; s->clear && i < COLUMN_SUMS_ARRAYS && s->out[i]; i++)
            memset(s->out[i] + b * s->block_step, 0, (size_t)cols * sizeof *s->out[i]);
        add_totals(w, b * s->block_step, thread, 1);
    }
}

tp_status column_sums_add(struct device_queue *q, const struct column_sums *s, struct tp_err *err)
{
    struct column_sums_work w = { .s = *s };
    int64_t floats = 2 * s->cols * q->device->threads;
    int team = kernels_team(q);

    w.room = device_scratch(q, floats * (int64_t)sizeof *w.room);
    if (!w.room)
        return tp_fail(err, TP_E_NOMEM, "out of memory: %lld floats of scratch", (long long)floats);
    if (s->blocks) {
        kernels_each(q, s->blocks, sum_blocks, &w);
        return TP_OK;
    }
    clear_room(&w, 0, team);
    kernels_for(q, s->rows, kernels_grain(s->row_bytes), add_rows, &w);
    add_totals(&w, 0, 0, team);
    return TP_OK;
}
