/* kernels/cpu/column_sums.c - see kernels/cpu/column_sums.h. */
#include "kernels/cpu/column_sums.h"

#include <inttypes.h>
#include <string.h>

#include "kernels/cpu/vec.h"

enum { ROWS_AT_ONCE = 32 };

static int64_t thread_floats(int64_t cols)
{
    return 2 * cols;
}

tp_status column_sums_room(float **room, struct device_queue *q, int64_t cols, struct tp_err *err)
{
    int64_t floats = thread_floats(cols) * q->device->threads;

    *room = device_scratch(q, floats * (int64_t)sizeof **room);
    if (!*room)
        return tp_fail(err, TP_E_NOMEM, "out of memory: %" PRId64 " floats of scratch", floats);
    return TP_OK;
}

struct column_sums column_sums_of(float *room, int64_t cols, int thread)
{
    float *total = room + thread * thread_floats(cols);

    return (struct column_sums){ .total = total, .part = total + cols, .cols = cols };
}

void column_sums_clear(float *room, int64_t cols, int threads)
{
    memset(room, 0, (size_t)(thread_floats(cols) * threads) * sizeof *room);
}

static KERNEL_CLONES void add(float *restrict to, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += x[i];
}

void column_sums_next(const struct column_sums *s, int64_t r, int64_t lo, int64_t hi)
{
    if ((r - lo) % ROWS_AT_ONCE != ROWS_AT_ONCE - 1 && r + 1 != hi)
        return;
    add(s->total, s->part, s->cols);
    memset(s->part, 0, (size_t)s->cols * sizeof *s->part);
}

void column_sums_add(float *to, int64_t first, int64_t n, const float *room, int64_t cols,
                     int threads)
{
    for (int t = 0; t < threads; t++)
        add(to, room + t * thread_floats(cols) + first, n);
}
