/* tests/unit/layout_box.c - intersections, runs and text of boxes. */
#include <criterion/criterion.h>
#include <string.h>

#include "layout/box.h"
#include "tests/unit/random.h"

static struct box random_box(struct rng *r, int ndim, const int64_t *shape)
{
    struct box b = { .ndim = ndim };

    for (int d = 0; d < ndim; d++) {
        b.lo[d] = rng_int(r, 0, shape[d] - 1);
        b.len[d] = rng_int(r, 1, shape[d] - b.lo[d]);
    }
    return b;
}

/* Mark the elements of b in a row-major grid of `whole`. */
static void mark(unsigned char *grid, const struct box *whole, const struct box *b)
{
    struct box at = *b;

    for (int64_t i = 0; i < box_elements(b); i++) {
        int64_t rest = i;

        for (int d = b->ndim - 1; d >= 0; d--) {
            at.lo[d] = b->lo[d] + rest % b->len[d];
            rest /= b->len[d];
        }
        grid[box_offset_in(whole, &at)]++;
    }
}

Test(box, the_intersection_has_exactly_the_common_elements)
{
    struct rng r = rng_start("box/meet");

    for (int i = 0; i < 2000; i++) {
        int64_t shape[3] = { rng_int(&r, 1, 6), rng_int(&r, 1, 6), rng_int(&r, 1, 6) };
        int ndim = (int)rng_int(&r, 1, 3);
        struct box whole = box_whole(ndim, shape);
        struct box a = random_box(&r, ndim, shape), b = random_box(&r, ndim, shape), both;
        unsigned char grid[216] = { 0 }, want[216] = { 0 };

        mark(grid, &whole, &a);
        mark(grid, &whole, &b);
        if (box_meet(&both, &a, &b)) {
            mark(want, &whole, &both);
            cr_assert(box_contains(&a, &both) && box_contains(&b, &both));
        }
        for (int64_t e = 0; e < box_elements(&whole); e++)
            cr_assert_eq(grid[e] == 2, want[e] == 1);
    }
}

Test(box, runs_tile_a_box_and_are_contiguous)
{
    struct rng r = rng_start("box/runs");

    for (int i = 0; i < 2000; i++) {
        int64_t shape[4] = { rng_int(&r, 1, 5), rng_int(&r, 1, 5), rng_int(&r, 1, 5),
                             rng_int(&r, 1, 5) };
        int ndim = (int)rng_int(&r, 0, 4);
        struct box whole = box_whole(ndim, shape), b = random_box(&r, ndim, shape);
        int64_t max = rng_int(&r, 1, 40), n = box_run_count(&b, max), next = 0;
        unsigned char grid[625] = { 0 }, want[625] = { 0 };

        mark(want, &whole, &b);
        for (int64_t k = 0; k < n; k++) {
            struct box run;

            box_run(&run, &b, max, k);
            cr_assert(box_is_run_in(&b, &run));
            cr_assert(box_elements(&run) <= max);
            cr_assert_eq(box_offset_in(&b, &run), next, "runs are consecutive in storage");
            next += box_elements(&run);
            mark(grid, &whole, &run);
        }
        cr_assert_arr_eq(grid, want, sizeof grid);
    }
}

Test(box, formats_as_ranges)
{
    struct box b = { .ndim = 2, .lo = { 0, 128 }, .len = { 64, 128 } };
    char text[BOX_TEXT_MAX];

    cr_assert_str_eq(box_format(text, &b), "[0:64, 128:256]");
    cr_assert_str_eq(box_format_shape(text, sizeof text, 2, b.len), "[64, 128]");
    cr_assert_str_eq(box_format_shape(text, sizeof text, 0, b.len), "[]");
}

Test(box, shapes_fit_any_buffer)
{
    const int64_t shape[] = { 64, 128, 7 };
    char buf[64];

    cr_expect_str_eq(box_format_shape(buf, sizeof buf, 3, shape), "[64, 128, 7]");
    cr_expect_str_eq(box_format_shape(buf, sizeof buf, 1, shape), "[64]");
    cr_expect_str_eq(box_format_shape(buf, sizeof buf, 0, shape), "[]");
    for (size_t size = 1; size < 16; size++) {
        memset(buf, 'x', sizeof buf);
        box_format_shape(buf, size, 3, shape);
        cr_expect_lt(strnlen(buf, sizeof buf), size, "%zu bytes", size);
        cr_expect_eq(buf[size], 'x', "a byte after the first %zu was written", size);
    }
}
