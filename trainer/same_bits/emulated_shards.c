/* trainer/same_bits/emulated_shards.c - see trainer/same_bits/emulated_shards.h. */
#include "trainer/same_bits/emulated_shards.h"

#include "comm/reduce.h"
#include "kernels/cpu/thread.h"
#include "layout/same_bits.h"

struct work {
    float *out;
    const float *parts;
    int shards;
    int64_t stride;
};

static void sum_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct work *w = ctx;
    const void *rows[SAME_BITS_SHARDS_MAX];
    void *out = w->out + lo;

    (void)thread;
    for (int s = 0; s < w->shards; s++)
        rows[s] = w->parts + s * w->stride + lo;
    comm_reduce(&out, 1, rows, w->shards, hi - lo, COMM_F32, COMM_SUM);
}

void shards_sum(float *out, const float *parts, int shards, int64_t stride, int64_t n)
{
    struct work w = { out, parts, shards, stride };

    kernels_for(n, kernels_grain(4 * (shards + 1)), sum_range, &w);
}
