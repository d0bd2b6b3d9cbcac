/* tests/unit/layout_tensor_parts.c - the parts of a tensor tile it, and fused tensors are cut block
 * by block. */
#include "layout/tensor_parts.h"

#include <criterion/criterion.h>

#include "tests/unit/random.h"

/* GPT-2's fused attention is [in, 3 x out], and each third is cut by itself. */
Test(tensor_parts, fused_tensors_are_cut_block_by_block)
{
    struct tensor t = { .name = "c_attn",
                        .group = GROUP_PARAM,
                        .ndim = 2,
                        .shape = { 6, 24 },
                        .placement = { .dim = 1, .unit = 2, .blocks = 3 } };
    struct tensor_parts p = tensor_parts_of(&t, 2);
    struct box b[TENSOR_BOXES_MAX];

    cr_assert(p.units == 4 && p.parts == 2 && p.repeat == 1);
    cr_assert_eq(tensor_parts_boxes(&t, &p, 1, b), 3);
    for (int i = 0; i < 3; i++)
        cr_assert(b[i].lo[1] == 8 * i + 4 && b[i].len[1] == 4 && b[i].len[0] == 6);
}

/* Eight ranks share two key-value heads: four neighbours hold the same one. */
Test(tensor_parts, more_ranks_than_units_hold_replicas)
{
    struct tensor t = { .ndim = 2,
                        .shape = { 32, 8 },
                        .placement = { .dim = 0, .unit = 16, .blocks = 1, .replicate = true } };
    struct tensor_parts p = tensor_parts_of(&t, 8);
    struct box b[TENSOR_BOXES_MAX];

    cr_assert(p.units == 2 && p.parts == 2 && p.repeat == 4);
    cr_assert_eq(tensor_parts_boxes(&t, &p, 1, b), 1);
    cr_assert(b[0].lo[0] == 16 && b[0].len[0] == 16 && b[0].len[1] == 8);
}

/* A file may have such a tensor: no rank holds any of it. */
Test(tensor_parts, a_tensor_without_elements_has_empty_parts)
{
    struct tensor t = { .ndim = 1,
                        .shape = { 0 },
                        .placement = { .dim = 0, .unit = 4, .blocks = 1, .replicate = true } };

    for (int tp = 1; tp < 9; tp++) {
        struct tensor_parts p = tensor_parts_of(&t, tp);
        struct box b[TENSOR_BOXES_MAX];

        cr_assert(p.units == 0 && p.parts >= 1 && p.repeat >= 1);
        for (int part = 0; part < p.parts; part++)
            cr_assert_eq(tensor_parts_boxes(&t, &p, part, b), 0);
    }
}

/* A matrix that is cut on either axis, whole, fused or uneven. */
static struct tensor random_tensor(struct rng *r)
{
    struct tensor t = { .ndim = 2, .group = GROUP_PARAM };

    t.placement = (struct placement){ .dim = (int)rng_int(r, -1, 1),
                                      .unit = rng_int(r, 1, 3),
                                      .blocks = rng_int(r, 0, 1) ? 1 : 3 };
    t.placement.uneven = t.placement.blocks == 1 && rng_int(r, 0, 1);
    t.shape[0] = rng_int(r, 1, 20);
    t.shape[1] = rng_int(r, 1, 20);
    if (t.placement.dim >= 0 && !t.placement.uneven)
        t.shape[t.placement.dim] = rng_int(r, 1, 7) * t.placement.unit * t.placement.blocks;
    return t;
}

Test(tensor_parts, parts_and_their_dp_shards_tile_the_tensor)
{
    struct rng r = rng_start("tensor_parts/tile");

    for (int i = 0; i < 5000; i++) {
        struct tensor t = random_tensor(&r);
        int tp = (int)rng_int(&r, 1, 5), dp = (int)rng_int(&r, 1, 4);
        struct tensor_parts p = tensor_parts_of(&t, tp);
        struct box whole = box_whole(t.ndim, t.shape), boxes[TENSOR_BOXES_MAX];
        unsigned char grid[64 * 64] = { 0 };

        for (int part = 0; part < p.parts; part++)
            for (int owner = 0; owner < dp; owner++) {
                int n = tensor_parts_boxes(&t, &p, part, boxes);

                n = tensor_parts_shard(&t, dp, owner, boxes, n);
                for (int k = 0; k < n; k++) {
                    cr_assert(!box_is_empty(&boxes[k]) && box_contains(&whole, &boxes[k]));
                    for (int64_t row = 0; row < boxes[k].len[0]; row++)
                        for (int64_t col = 0; col < boxes[k].len[1]; col++)
                            grid[(boxes[k].lo[0] + row) * 64 + boxes[k].lo[1] + col]++;
                }
            }
        for (int64_t row = 0; row < t.shape[0]; row++)
            for (int64_t col = 0; col < t.shape[1]; col++)
                cr_assert_eq(grid[row * 64 + col], 1, "tp %d dp %d: element %d, %d is in %d parts",
                             tp, dp, (int)row, (int)col, grid[row * 64 + col]);
    }
}
