/* tests/unit/ckpt_chunk_sums.c - sums of parts give the sums of the chunk, or show that a byte was
 * written twice or never. */
#include "ckpt/chunk_sums.h"

#include <criterion/criterion.h>
#include <string.h>

#include "ckpt/crc.h"
#include "tests/unit/random.h"

enum { ELEMENTS = 600, PARTS_MAX = 12 };

static unsigned char data[ELEMENTS];

static const int64_t shape[1] = { ELEMENTS };

/* Add the sums of bytes from .. to - 1. An element is one byte. */
static void add_part(uint64_t *sum, int64_t from, int64_t to)
{
    const struct box box = { 1, { from }, { to - from } };
    struct chunk_part part = { data + from, from, to - from,
                               digest_box(data + from, &box, 1, shape, 1) };
    uint64_t words[CHUNK_SUM_WORDS];

    chunk_sums_of(words, &part, ELEMENTS);
    chunk_sums_add(sum, words, CHUNK_SUM_WORDS);
}

/* A part whose CRC is known has the same sums as one whose bytes are. */
Test(chunk_sums, the_sums_of_a_part_follow_from_its_crc)
{
    struct rng r = rng_start("chunk_sums/known");

    for (int round = 0; round < 500; round++) {
        const int64_t from = rng_int(&r, 0, ELEMENTS), to = rng_int(&r, from, ELEMENTS);
        const struct box box = { 1, { from }, { to - from } };
        struct chunk_part part = { data + from, from, to - from, { { 0, 0 } } };
        uint64_t expected[CHUNK_SUM_WORDS], found[CHUNK_SUM_WORDS];

        for (int i = 0; i < ELEMENTS; i++)
            data[i] = (unsigned char)rng_next(&r);
        part.digest = digest_box(data + from, &box, 1, shape, 1);
        chunk_sums_of(expected, &part, ELEMENTS);
        part.data = NULL;
        chunk_sums_known(found, &part, crc32c(data + from, (size_t)(to - from)), ELEMENTS);
        cr_assert_arr_eq(found, expected, sizeof found, "bytes %d to %d", (int)from, (int)to);
    }
}

/* Random parts that tile the chunk: cuts[0] .. cuts[n]. */
static int random_cuts(struct rng *r, int64_t cuts[PARTS_MAX + 1])
{
    int n = (int)rng_int(r, 1, PARTS_MAX);

    cuts[0] = 0;
    for (int i = 1; i < n; i++)
        cuts[i] = rng_int(r, cuts[i - 1], ELEMENTS);
    cuts[n] = ELEMENTS;
    return n;
}

Test(chunk_sums, the_sums_of_all_parts_in_any_order_are_the_sums_of_the_chunk)
{
    const struct box whole = box_whole(1, shape);
    struct rng r = rng_start("chunk_sums/whole");

    for (int round = 0; round < 500; round++) {
        int64_t cuts[PARTS_MAX + 1];
        int n = random_cuts(&r, cuts), first = (int)rng_int(&r, 0, n - 1);
        uint64_t one[CHUNK_SUM_WORDS] = { 0 }, other[CHUNK_SUM_WORDS] = { 0 };
        struct digest found, expected;
        uint32_t crc = 0;

        for (int i = 0; i < ELEMENTS; i++)
            data[i] = (unsigned char)rng_next(&r);
        for (int i = 0; i < n; i++) { /* two processes write, starting at a random part */
            int k = (first + i) % n;

            add_part(rng_int(&r, 0, 1) ? one : other, cuts[k], cuts[k + 1]);
        }
        chunk_sums_add(one, other, CHUNK_SUM_WORDS);
        cr_assert(chunk_sums_crc(&crc, one, ELEMENTS));
        cr_assert_eq(crc, crc32c(data, ELEMENTS));
        found = chunk_sums_digest(one);
        expected = digest_box(data, &whole, 1, shape, 1);
        cr_assert_eq(memcmp(&found, &expected, sizeof found), 0);
    }
}

Test(chunk_sums, a_part_that_is_missing_doubled_or_moved_is_found)
{
    struct rng r = rng_start("chunk_sums/faults");
    uint32_t crc;

    for (int round = 0; round < 500; round++) {
        int64_t cuts[PARTS_MAX + 1];
        int n = random_cuts(&r, cuts), victim = (int)rng_int(&r, 0, n - 1);
        uint64_t missing[CHUNK_SUM_WORDS] = { 0 }, doubled[CHUNK_SUM_WORDS] = { 0 };
        uint64_t moved[CHUNK_SUM_WORDS] = { 0 };

        if (cuts[victim] == cuts[victim + 1])
            continue; /* an empty part changes nothing */
        for (int i = 0; i < n; i++) {
            if (i != victim)
                add_part(missing, cuts[i], cuts[i + 1]);
            add_part(doubled, cuts[i], cuts[i + 1]);
            if (i != victim || cuts[i + 1] < ELEMENTS)
                add_part(moved, cuts[i] + (i == victim), cuts[i + 1] + (i == victim));
        }
        add_part(doubled, cuts[victim], cuts[victim + 1]);
        cr_assert_not(chunk_sums_crc(&crc, missing, ELEMENTS));
        cr_assert_not(chunk_sums_crc(&crc, doubled, ELEMENTS));
        cr_assert_not(chunk_sums_crc(&crc, moved, ELEMENTS));
    }
    {
        const uint64_t nothing[CHUNK_SUM_WORDS] = { 0 };

        cr_assert_not(chunk_sums_crc(&crc, nothing, ELEMENTS));
    }
}
