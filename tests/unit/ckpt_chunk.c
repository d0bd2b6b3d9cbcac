/* tests/unit/ckpt_chunk.c - how a stored box is cut into chunks, each with its checksum. */
#include <criterion/criterion.h>

#include "ckpt/shard.h"
#include "tests/unit/random.h"

static struct tensor random_tensor(struct rng *r)
{
    struct tensor t = { .ndim = (int)rng_int(r, 1, 3),
                        .dtype = rng_int(r, 0, 1) ? DTYPE_F32 : DTYPE_BF16,
                        .placement = { .dim = (int)rng_int(r, -1, 0), .unit = 1, .blocks = 1 } };

    for (int d = 0; d < t.ndim; d++)
        t.shape[d] = rng_int(r, 1, rng_int(r, 0, 1) ? 40 : 3000);
    if (rng_int(r, 0, 1))
        t.shape[0] = 16 * rng_int(r, 1, 2000);
    return t;
}

Test(chunk, chunks_are_neither_too_large_nor_too_small)
{
    struct rng r = rng_start("chunk/sizes");

    for (int i = 0; i < 5000; i++) {
        struct tensor t = random_tensor(&r);
        struct box b = box_whole(t.ndim, t.shape);
        int64_t n = chunk_elements(&t, &b), bytes = n * dtype_bytes(t.dtype);
        int64_t all = box_elements(&b) * dtype_bytes(t.dtype);

        cr_assert(n >= 1 && bytes <= CHUNK_BYTES_MAX);
        cr_assert(bytes >= all || bytes >= 64 << 10 || t.shape[0] == 1, "%lld of %lld bytes",
                  (long long)bytes, (long long)all);
        /* the index stays small: a tensor has few chunks, or each has at least half a MiB */
        cr_assert(box_run_count(&b, n) <= 16 + 2 * all / (1 << 20));
    }
}

Test(chunk, boundaries_of_usual_cuts_are_boundaries_of_chunks)
{
    struct rng r = rng_start("chunk/edges");
    int checked = 0;

    for (int i = 0; i < 5000; i++) {
        struct tensor t = random_tensor(&r);
        struct box b = box_whole(t.ndim, t.shape);
        int64_t row = box_elements(&b) / b.len[0], n = chunk_elements(&t, &b);

        for (int parts = 2; parts <= 16; parts *= 2) {
            int64_t bytes = t.shape[0] / parts * row * dtype_bytes(t.dtype);

            if (t.shape[0] % parts || bytes < 64 << 10 || bytes > 4 << 20)
                continue;
            checked++;
            cr_assert_eq(t.shape[0] / parts * row % n, 0, "%lld rows of %lld in %d parts",
                         (long long)t.shape[0], (long long)row, parts);
        }
    }
    cr_assert(checked > 100, "only %d cuts were checked", checked);
}

Test(chunk, hostile_shapes_take_no_time)
{
    struct tensor t = { .ndim = 1,
                        .dtype = DTYPE_F32,
                        .placement = { .dim = -1, .unit = 1, .blocks = 1 } };
    struct box b;

    t.shape[0] = (INT64_C(1) << 55) - 55; /* a prime */
    b = box_whole(1, t.shape);
    for (int i = 0; i < 1000000; i++)
        cr_assert(chunk_elements(&t, &b) > 0);
}
