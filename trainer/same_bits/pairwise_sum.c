/* trainer/same_bits/pairwise_sum.c - see trainer/same_bits/pairwise_sum.h. */
#include "trainer/same_bits/pairwise_sum.h"

#include <string.h>

#include "kernels/cpu/thread.h"

enum { BLOCK = 2048 }; /* elements that stay in the first-level cache */

struct work {
    const struct fold *f;
    const float *x;
    int64_t at;
    int set;   /* digits that are added */
    float *to; /* the next digit, or the sum */
};

static void add(float *restrict x, const float *restrict y, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        x[i] += y[i];
}

static void add_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct work *w = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i += BLOCK) {
        int64_t n = hi - i < BLOCK ? hi - i : BLOCK;
        float sum[BLOCK];

        memcpy(sum, w->x + i, (size_t)n * sizeof *sum);
        for (int k = 0; k < w->set; k++)
            add(sum, w->f->level[k] + w->at + i, n);
        memcpy(w->to + w->at + i, sum, (size_t)n * sizeof *sum);
    }
}

static int digits_set(int64_t leaf)
{
    int n = 0;

    for (; leaf & 1; leaf >>= 1)
        n++;
    return n;
}

float *fold_place(const struct fold *f, int64_t leaf)
{
    return f->levels > 0 && digits_set(leaf) == 0 ? f->level[0] : f->sum;
}

void fold_add(const struct fold *f, struct range r, int64_t leaf, const float *x)
{
    struct work w = { .f = f, .x = x, .at = r.at, .set = digits_set(leaf) };

    w.to = w.set == f->levels ? f->sum : f->level[w.set];
    if (w.to + r.at != x || w.set > 0)
        kernels_for(r.n, BLOCK * kernels_grain(BLOCK * 4 * (w.set + 2)), add_range, &w);
}

void fold_add_double(double level[FOLD_LEVELS_MAX + 1], double x, int64_t leaf)
{
    int k = digits_set(leaf);

    for (int i = 0; i < k; i++)
        x += level[i];
    level[k] = x;
}
