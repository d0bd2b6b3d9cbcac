/* trainer/data_parallel/pairwise_sum.c - see trainer/data_parallel/pairwise_sum.h. */
#include "trainer/data_parallel/pairwise_sum.h"

static int digits_set(int64_t group)
{
    int n = 0;

    for (; group & 1; group >>= 1)
        n++;
    return n;
}

float *pairwise_sum_place(const struct pairwise_sum *f, int64_t group)
{
    return f->levels > 0 && digits_set(group) == 0 ? f->level[0] : f->sum;
}

void pairwise_sum_add(const struct pairwise_sum *f, struct pairwise_range r, int64_t group,
                      const float *x, const struct kernel_queue *k)
{
    struct sum_levels a = { .x = x, .n_levels = digits_set(group), .n = r.n };

    a.to = (a.n_levels == f->levels ? f->sum : f->level[a.n_levels]) + r.at;
    for (int i = 0; i < a.n_levels; i++)
        a.level[i] = f->level[i] + r.at;
    if (a.to != x || a.n_levels > 0)
        k->ops->sum_levels(k->queue, &a);
}
