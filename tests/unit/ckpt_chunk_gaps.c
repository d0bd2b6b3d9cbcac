/* tests/unit/ckpt_chunk_gaps.c - the bytes outside payloads have the same hash, in whatever order
 * the payloads are read. */
#include "ckpt/chunk_gaps.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

enum { CHUNKS = 40 };

static struct tp_err err;

TestSuite(chunk_gaps, .init = temp_dir_make, .fini = temp_dir_remove);

Test(chunk_gaps, hash_the_same_bytes_in_any_order_of_reading)
{
    struct rng r = rng_start("chunk_gaps/order");
    static char bytes[1 << 20], outside[1 << 20];
    struct chunk_entry chunks[CHUNKS];
    struct chunk_file file = { .path = temp_path("shard"), .chunks = chunks, .n = CHUNKS };
    struct object object;
    int64_t at = 0, n_outside = 0;
    char expected[SHA256_TEXT], found[SHA256_TEXT];

    for (int i = 0; i < CHUNKS; i++) { /* the index has them in another order: last one first */
        const int64_t gap = rng_int(&r, 0, 1) * rng_int(&r, 0, 9000);

        memset(outside + n_outside, i + 1, (size_t)gap);
        memset(bytes + at, i + 1, (size_t)gap);
        chunks[CHUNKS - 1 - i] =
            (struct chunk_entry){ .offset = at + gap, .stored_bytes = rng_int(&r, 1, 9000) };
        at += gap + chunks[CHUNKS - 1 - i].stored_bytes;
        n_outside += gap;
    }
    memset(bytes + at, 77, 500);
    memset(outside + n_outside, 77, 500);
    file.size = at + 500;
    cr_assert_eq(sha256_of(expected, outside, (size_t)n_outside + 500, &err), TP_OK);
    temp_write("shard", bytes, (size_t)file.size);
    cr_assert_eq(object_open(&object, &at, file.path, &err), TP_OK, "%s", err.msg);
    file.object = &object;
    for (int round = 0; round < 10; round++) {
        struct chunk_gaps *g = NULL;
        int order[CHUNKS];

        cr_assert_eq(chunk_gaps_new(&g, &file, &err), TP_OK, "%s", err.msg);
        for (int i = 0; i < CHUNKS; i++)
            order[i] = i;
        for (int i = CHUNKS - 1; i > 0 && round > 0; i--) {
            const int64_t k = rng_int(&r, 0, i);
            const int other = order[k];

            order[k] = order[i];
            order[i] = other;
        }
        for (int i = 0; i < CHUNKS; i++) {
            bool all = false;

            cr_expect_eq(chunk_gaps_chunk(g, order[i]), CHUNKS - 1 - order[i]);
            cr_assert_eq(chunk_gaps_passed(g, order[i], &all, &err), TP_OK, "%s", err.msg);
            cr_expect_eq(all, i == CHUNKS - 1);
        }
        cr_assert_eq(chunk_gaps_end(g, found, &err), TP_OK, "%s", err.msg);
        cr_expect_str_eq(found, expected);
        chunk_gaps_free(g);
    }
    cr_assert_eq(chunks_hash_outside(found, &file, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(found, expected);
    object_close(&object);
}
