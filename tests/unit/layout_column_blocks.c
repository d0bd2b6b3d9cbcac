/* tests/unit/layout_column_blocks.c - the blocks of columns in which a box is stored. */
#include <criterion/criterion.h>

#include "layout/column_blocks.h"
#include "tests/unit/random.h"

/* A matrix, small or large, whose columns are cut in heads or features and may be fused. */
static struct tensor random_tensor(struct rng *r)
{
    struct placement rule = { .dim = 1,
                              .unit = 1 << rng_int(r, 0, 6),
                              .blocks = rng_int(r, 0, 3) ? 1 : 3 };
    struct tensor t = { .ndim = 2, .dtype = rng_int(r, 0, 1) ? DTYPE_F32 : DTYPE_BF16 };

    t.placement = rule;
    t.shape[0] = rng_int(r, 1, 2000);
    t.shape[1] = rng_int(r, 1, 60) * rule.unit * rule.blocks;
    return t;
}

/* The columns of the first fused block, cut into `parts` equal parts: number `part`. */
static struct box part_of(const struct tensor *t, int parts, int part)
{
    struct box b = box_whole(2, t->shape);

    b.len[1] = t->shape[1] / t->placement.blocks / parts;
    b.lo[1] = part * b.len[1];
    return b;
}

Test(column_blocks, blocks_are_the_box_from_left_to_right_and_none_is_tiny)
{
    struct rng r = rng_start("column_blocks/tiles");

    for (int i = 0; i < 3000; i++) {
        struct tensor t = random_tensor(&r);
        int64_t units = t.shape[1] / t.placement.blocks / t.placement.unit;
        int parts = (int)rng_int(&r, 1, units < 12 ? units : 12);
        struct box b = part_of(&t, units % parts ? 1 : parts, 0), blocks[COLUMN_BLOCKS_MAX];
        int64_t at = b.lo[1];
        int n = column_blocks(&t, &b, blocks);

        cr_assert(n >= 1 && n <= COLUMN_BLOCKS_MAX);
        for (int k = 0; k < n; k++) {
            cr_assert_eq(blocks[k].lo[1], at);
            cr_assert(blocks[k].lo[0] == 0 && blocks[k].len[0] == t.shape[0]);
            cr_assert_eq(blocks[k].len[1] % t.placement.unit, 0, "a head is cut in two");
            at += blocks[k].len[1];
        }
        cr_assert_eq(at, b.lo[1] + b.len[1]);
    }
}

Test(column_blocks, a_block_belongs_to_one_of_two_four_or_eight_ranks)
{
    struct rng r = rng_start("column_blocks/edges");
    int cut = 0;

    for (int i = 0; i < 3000; i++) {
        struct tensor t = random_tensor(&r);
        struct box whole = part_of(&t, 1, 0), blocks[COLUMN_BLOCKS_MAX];
        int n = column_blocks(&t, &whole, blocks);
        int64_t units = t.shape[1] / t.placement.blocks / t.placement.unit;

        for (int tp = 2; tp <= 8; tp *= 2) {
            struct box part = part_of(&t, tp, (int)rng_int(&r, 0, tp - 1)), meet;

            if (units % tp || box_elements(&part) * dtype_bytes(t.dtype) < COLUMN_BYTES_LEAST)
                continue;
            cut++;
            for (int k = 0; k < n; k++)
                cr_assert(!box_meet(&meet, &part, &blocks[k]) || box_equal(&meet, &blocks[k]),
                          "tp %d of %lld x %lld: block %d belongs to two ranks", tp,
                          (long long)t.shape[0], (long long)t.shape[1], k);
        }
    }
    cr_assert(cut > 100, "only %d cuts were checked", cut);
}

Test(column_blocks, rows_and_uncut_tensors_stay_whole)
{
    struct tensor t = { .ndim = 2,
                        .shape = { 4096, 4096 },
                        .placement = { .blocks = 1, .unit = 1 } };
    struct box b = box_whole(2, t.shape), blocks[COLUMN_BLOCKS_MAX];

    for (t.placement.dim = -1; t.placement.dim <= 0; t.placement.dim++) {
        cr_assert_eq(column_blocks(&t, &b, blocks), 1);
        cr_assert(box_equal(&blocks[0], &b));
    }
}
