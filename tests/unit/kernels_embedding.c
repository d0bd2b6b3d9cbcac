/* tests/unit/kernels_embedding.c - the sum over vocabulary shards is the row of the full table. */
#include "kernels/embedding.h"

#include "tests/unit/kernels_support.h"

static void one_case(struct rng *r, enum dtype type)
{
    int64_t vocab = rng_int(r, 1, 60), cols = rng_int(r, 1, 150), n = rng_int(r, 0, 80);
    int64_t cut = rng_int(r, 0, vocab);
    float *table = random_floats(r, vocab * cols, 1), *dx = random_floats(r, n * cols, 1);
    char *stored = stored_as(type, table, vocab * cols);
    float *low = filled_floats(n * cols, NAN), *high = filled_floats(n * cols, NAN);
    float *dtable = filled_floats(vocab * cols, 2), *want = filled_floats(vocab * cols, 2);
    int32_t ids[80];

    for (int64_t i = 0; i < n; i++)
        ids[i] = (int32_t)rng_int(r, 0, vocab - 1);
    RUN(embedding_forward, embedding_forward, low, stored, type, ids, n, 0, cut, cols);
    RUN(embedding_forward, embedding_forward, high, stored + cut * cols * dtype_bytes(type), type,
        ids, n, cut, vocab - cut, cols);
    for (int64_t i = 0; i < n * cols; i++) {
        int64_t id = ids[i / cols];
        cr_assert_eq(low[i] + high[i], table[id * cols + i % cols]);
        cr_assert_eq(id < cut ? high[i] : low[i], 0, "the row of another shard's token");
    }
    RUN(embedding_backward, embedding_backward, dtable, dx, ids, n, 0, cut, cols);
    RUN(embedding_backward, embedding_backward, dtable + cut * cols, dx, ids, n, cut, vocab - cut,
        cols);
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j < cols; j++)
            want[ids[i] * cols + j] += dx[i * cols + j];
    cr_assert_eq(memcmp(dtable, want, (size_t)(vocab * cols) * 4), 0, "same sums, same order");
    free(table);
    free(dx);
    free(stored);
    free(low);
    free(high);
    free(dtable);
    free(want);
}

Test(embedding, the_sum_of_shards_is_the_full_result)
{
    struct rng r = rng_start("embedding");

    for (int i = 0; i < 100; i++)
        one_case(&r, i & 1 ? DTYPE_BF16 : DTYPE_F32);
}

Test(embedding, threads_do_not_change_the_result)
{
    struct rng r = rng_start("embedding, 3 threads");

    use_threads(3);
    for (int i = 0; i < 30; i++)
        one_case(&r, DTYPE_F32);
}
