/* kernels/cpu/column_sums.c - see kernels/cpu/column_sums.h. */
#include "kernels/cpu/column_sums.h"

#include <string.h>

#include "kernels/cpu/thread.h"
#include "kernels/cpu/vec.h"

enum { ROWS_AT_ONCE = 32 };

/* Of a thread: the total and the part, side by side. */
static int64_t thread_floats(int64_t cols)
{
    return 2 * cols;
}

int64_t column_sums_workspace(int64_t cols)
{
    return thread_floats(cols) * kernels_threads();
}

void column_sums_begin(float *workspace, int64_t cols)
{
    memset(workspace, 0, (size_t)(thread_floats(cols) * kernels_team()) * sizeof *workspace);
}

float *column_sums_part(float *workspace, int64_t cols, int thread)
{
    return workspace + thread * thread_floats(cols) + cols;
}

static KERNEL_CLONES void add(float *restrict to, const float *restrict x, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        to[i] += x[i];
}

void column_sums_next(float *workspace, int64_t cols, int thread, int64_t r, int64_t lo, int64_t hi)
{
    float *part = column_sums_part(workspace, cols, thread);

    if ((r - lo) % ROWS_AT_ONCE != ROWS_AT_ONCE - 1 && r + 1 != hi)
        return;
    add(part - cols, part, cols);
    memset(part, 0, (size_t)cols * sizeof *part);
}

void column_sums_add(float *to, const float *workspace, int64_t cols, int64_t first, int64_t n)
{
    int threads = kernels_team();

    for (int t = 0; t < threads; t++)
        add(to, workspace + t * thread_floats(cols) + first, n);
}
