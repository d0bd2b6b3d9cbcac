/* tests/unit/trainer_zigzag.c - ranks share a sequence: each token has one rank, and work is equal.
 */
#include <criterion/criterion.h>

#include "tests/unit/random.h"
#include "trainer/context/zigzag.h"
#include "trainer/data/dataset.h"

static struct zigzag random_cut(struct rng *r, int64_t blocks_max)
{
    int n = (int)rng_int(r, 1, 9);

    return (struct zigzag){ .seq = (n == 1 ? 1 : 2 * n) * rng_int(r, 1, blocks_max), .n = n };
}

Test(trainer_zigzag, every_token_has_one_rank_and_all_ranks_attend_to_equally_many_keys)
{
    struct rng r = rng_start("trainer_zigzag/tokens");

    for (int round = 0; round < 200; round++) {
        struct zigzag z = random_cut(&r, 12);
        int64_t first_keys = 0;
        bool seen[9 * 2 * 12] = { false };

        for (z.rank = 0; z.rank < z.n; z.rank++) {
            int64_t keys = 0, last = -1, run;

            for (int64_t i = 0; i < zigzag_tokens(&z); i++) {
                int64_t at = zigzag_position(&z, i, &run), rest;

                cr_assert(at > last && at < z.seq && !seen[at], "token %lld of rank %d of %d",
                          (long long)i, z.rank, z.n);
                seen[at] = true;
                last = at;
                keys += at + 1; /* under a causal mask */
                cr_assert(run >= 1 && i + run <= zigzag_tokens(&z));
                cr_expect_eq(zigzag_position(&z, i + run - 1, &rest), at + run - 1);
            }
            if (z.rank == 0)
                first_keys = keys;
            cr_expect_eq(keys, first_keys, "rank %d of %d has %lld keys, rank 0 %lld", z.rank, z.n,
                         (long long)keys, (long long)first_keys);
        }
        for (int64_t at = 0; at < z.seq; at++)
            cr_expect(seen[at], "no rank has token %lld", (long long)at);
    }
}

Test(trainer_zigzag, a_rank_fetches_its_tokens_of_the_whole_sequence)
{
    static const char TEXT[] = "/usr/share/common-licenses/GPL-3";
    struct rng r = rng_start("trainer_zigzag/data");

    for (int round = 0; round < 50; round++) {
        struct zigzag z = random_cut(&r, 6);
        int64_t first = rng_int(&r, 0, 5000), each = zigzag_tokens(&z), run;
        int32_t ids[3 * 108], targets[3 * 108], part[3 * 108], part_targets[3 * 108];
        struct tp_err err = { 0 };
        struct dataset d;

        z.rank = (int)rng_int(&r, 0, z.n - 1);
        cr_assert_eq(dataset_open(&d, TEXT, z.seq, 256, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(dataset_fetch(&d, first, 3, NULL, ids, targets, &err), TP_OK);
        cr_assert_eq(dataset_fetch(&d, first, 3, &z, part, part_targets, &err), TP_OK);
        for (int64_t i = 0; i < 3 * each; i++) {
            int64_t at = i / each * z.seq + zigzag_position(&z, i % each, &run);

            cr_expect_eq(part[i], ids[at]);
            cr_expect_eq(part_targets[i], targets[at]);
        }
        dataset_close(&d);
    }
}
