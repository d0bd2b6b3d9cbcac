/* trainer/data_parallel/pairwise_sum.c - see trainer/data_parallel/pairwise_sum.h. */
#include "trainer/data_parallel/pairwise_sum.h"

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

void fold_add(const struct fold *f, struct range r, int64_t leaf, const float *x,
              const struct kernel_queue *k)
{
    struct sum_levels a = { .x = x, .n_levels = digits_set(leaf), .n = r.n };

    a.to = (a.n_levels == f->levels ? f->sum : f->level[a.n_levels]) + r.at;
    for (int i = 0; i < a.n_levels; i++)
        a.level[i] = f->level[i] + r.at;
    if (a.to != x || a.n_levels > 0)
        k->ops->sum_levels(k->queue, &a);
}
