/* tests/unit/kernels_copy.c - gather and split of boxes, element by element. */
#include "kernels/copy.h"

#include "kernels/copy_body.h"
#include "kernels/cpu/thread.h"
#include "tests/unit/kernels_support.h"

/* A region inside a random box that contains it. */
static void random_case(struct rng *r, struct box *outer, const struct box *region)
{
    outer->ndim = region->ndim;
    for (int d = 0; d < region->ndim; d++) {
        int64_t before = rng_int(r, 0, 2) * rng_int(r, 0, 1);
        int64_t after = rng_int(r, 0, 2) * rng_int(r, 0, 1);
        outer->lo[d] = region->lo[d] - before;
        outer->len[d] = region->len[d] + before + after;
    }
}

/* The definition: copy every element of region and change nothing else. */
static void reference(unsigned char *dst, const struct box *dst_box, const unsigned char *src,
                      const struct box *src_box, const struct box *region, int elem)
{
    struct box at = *region;

    for (int64_t i = 0; i < box_elements(region); i++) {
        int64_t rest = i;
        for (int d = region->ndim - 1; d >= 0; d--) {
            at.lo[d] = region->lo[d] + rest % region->len[d];
            at.len[d] = 1;
            rest /= region->len[d];
        }
        memcpy(dst + box_offset_in(dst_box, &at) * elem, src + box_offset_in(src_box, &at) * elem,
               (size_t)elem);
    }
}

/* The copy of a GPU kernel, with its threads run one after the other. */
static void copy_as_gpu(void *dst, const struct box *dst_box, const void *src,
                        const struct box *src_box, const struct box *region, int elem)
{
    struct copy_item item;

    copy_item_make(&item, &(struct copy_box){ dst, src, *dst_box, *src_box, *region, elem },
                   DTYPE_U8, DTYPE_U8);
    for (int64_t warp = 0; warp < copy_item_warps(&item); warp++)
        for (int lane = 0; lane < COPY_WARP; lane++)
            copy_item_work(&item, warp, lane);
}

typedef void (*copy_fn)(void *, const struct box *, const void *, const struct box *,
                        const struct box *, int);

static void random_copies(const char *name, int times, copy_fn fn)
{
    struct rng r = rng_start(name);
    unsigned char *src = malloc(1 << 20), *dst = malloc(1 << 20), *want = malloc(1 << 20);

    cr_assert(src && dst && want);
    for (int i = 0; i < 1 << 20; i++)
        src[i] = (unsigned char)rng_next(&r);
    for (int i = 0; i < times; i++) {
        struct box region = { .ndim = (int)rng_int(&r, 0, 4) }, dst_box, src_box;
        int elem = 1 << rng_int(&r, 0, 3);
        int64_t longest = i % 50 ? 6 : 2000; /* also rows with several words per lane */
        unsigned char *from = src + elem * rng_int(&r, 0, 16);
        size_t bytes;

        if (longest > 6)
            region.ndim = 1;

        for (int d = 0; d < region.ndim; d++) {
            region.lo[d] = rng_int(&r, 5, 50);
            region.len[d] = rng_int(&r, rng_int(&r, 0, 9) > 0, longest);
        }
        random_case(&r, &dst_box, &region);
        random_case(&r, &src_box, &region);
        bytes = (size_t)(box_elements(&dst_box) * elem);
        memset(dst, 0xee, bytes + 8);
        memset(want, 0xee, bytes + 8);
        fn(dst, &dst_box, from, &src_box, &region, elem);
        reference(want, &dst_box, from, &src_box, &region, elem);
        cr_assert_eq(memcmp(dst, want, bytes + 8), 0, "case %d of %s", i, name);
    }
    free(src);
    free(dst);
    free(want);
}

Test(copy, moves_the_region_and_nothing_else)
{
    random_copies("copy", 20000, copy_box);
}

Test(copy, threads_of_a_gpu_move_the_same)
{
    random_copies("copy/lanes", 5000, copy_as_gpu);
}

Test(copy, threads_do_not_change_the_result)
{
    struct rng r = rng_start("copy/threads");
    int64_t shape[2] = { 1000, 300 };
    struct box whole = box_whole(2, shape);
    float *src = random_floats(&r, 300000, 1), *dst = filled_floats(300000, 0),
          *want = filled_floats(300000, 0);

    for (int i = 0; i < 20; i++) {
        struct box part = { .ndim = 2, .lo = { rng_int(&r, 0, 200), rng_int(&r, 0, 99) } };
        part.len[0] = rng_int(&r, 700, 800);
        part.len[1] = rng_int(&r, 1, 200);
        copy_box(want, &part, src, &whole, &part, 4);
        use_threads(3);
        RUN(copy_box, copy_box, dst, src, part, whole, part, 4);
        cr_assert_eq(memcmp(dst, want, (size_t)box_elements(&part) * 4), 0);
    }
    free(src);
    free(dst);
    free(want);
}

Test(copy, contiguous_axes_join_into_one_run)
{
    int64_t shape[3] = { 4, 5, 6 };
    struct box whole = box_whole(3, shape), half = whole, column = whole;
    struct copy_rows rows;

    half.len[0] = 2;
    copy_rows_make(&rows, &half, &whole, &half, 4);
    cr_assert_eq(rows.n_rows, 1);
    cr_assert_eq(rows.run_bytes, 2 * 5 * 6 * 4);
    column.lo[2] = 3;
    column.len[2] = 3;
    copy_rows_make(&rows, &column, &whole, &column, 4);
    cr_assert_eq(rows.n_axes, 1, "axes 0 and 1 join");
    cr_assert_eq(rows.n_rows, 20);
    cr_assert_eq(rows.run_bytes, 12);
}

Test(copy, pieces_of_long_runs_make_the_whole)
{
    struct rng r = rng_start("copy/pieces");

    for (int i = 0; i < 300; i++) {
        int64_t shape[2] = { rng_int(&r, 1, 5), rng_int(&r, 1, 90) }, whole_bytes = 0;
        struct box whole = box_whole(2, shape), part = whole;
        struct copy_rows rows;
        struct copy_cursor c;

        part.len[1] = rng_int(&r, 1, shape[1]);
        copy_rows_make(&rows, &part, &whole, &part, 2);
        copy_rows_cut(&rows, rng_int(&r, 1, 100));
        for (copy_cursor_begin(&c, &rows, 0, 1); c.row < rows.n_rows; copy_cursor_next(&c, &rows)) {
            cr_assert_eq(c.dst, whole_bytes, "the parts are consecutive");
            cr_assert_gt(c.bytes, 0);
            whole_bytes += c.bytes;
        }
        cr_assert_eq(whole_bytes, box_elements(&part) * 2);
    }
}

Test(copy, any_number_of_workers_copy_the_right_rows)
{
    struct rng r = rng_start("copy/cursor");

    for (int i = 0; i < 300; i++) {
        struct box region = { .ndim = 4 }, dst_box, src_box;
        struct copy_rows rows;
        struct copy_cursor one, many;
        int64_t workers = rng_int(&r, 1, 40);

        for (int d = 0; d < 4; d++) {
            region.lo[d] = 9;
            region.len[d] = rng_int(&r, 1, 6);
        }
        random_case(&r, &dst_box, &region);
        random_case(&r, &src_box, &region);
        copy_rows_make(&rows, &dst_box, &src_box, &region, 2);
        for (int64_t w = 0; w < workers; w++) {
            copy_cursor_begin(&many, &rows, w, workers);
            for (; many.row < rows.n_rows; copy_cursor_next(&many, &rows)) {
                copy_cursor_begin(&one, &rows, many.row, 1);
                cr_assert_eq(one.dst, many.dst);
                cr_assert_eq(one.src, many.src);
            }
        }
    }
}

/* Rows of so many bytes, this far apart, which begin at `offset` in the source. */
static struct copy_item rows_item(int64_t bytes, int64_t pitch, int64_t offset, enum dtype dst_type,
                                  enum dtype src_type)
{
    static _Alignas(256) char memory[256];
    const int64_t elem = dtype_bytes(src_type);
    struct copy_box c = { .dst = memory, .src = memory, .elem_bytes = (int)elem };
    struct copy_item item;

    c.src_box = (struct box){ 2, { 0, 0 }, { 1000, pitch / elem } };
    c.region = (struct box){ 2, { 0, offset / elem }, { 1000, bytes / elem } };
    c.dst_box = c.region;
    copy_item_make(&item, &c, dst_type, src_type);
    return item;
}

static void assert_shared(struct copy_item it, int unit, int lanes)
{
    cr_expect_eq(it.unit, unit, "units of %d, not %d", it.unit, unit);
    cr_expect_eq(it.lanes, lanes, "%d threads for a row, not %d", it.lanes, lanes);
    cr_expect_eq(it.rows_a_warp * it.lanes, COPY_WARP);
}

/* A GPU needs about 24 KiB in flight on each processor: 64 bytes of each thread. */
Test(copy, threads_of_a_gpu_have_64_bytes_in_flight)
{
    assert_shared(rows_item(512, 1024, 512, DTYPE_U8, DTYPE_U8), 16, 8);
    assert_shared(rows_item(4096, 8192, 0, DTYPE_BF16, DTYPE_BF16), 16, 32);
    assert_shared(rows_item(1000, 2048, 8, DTYPE_U8, DTYPE_U8), 8, 16);
    assert_shared(rows_item(64, 256, 64, DTYPE_U8, DTYPE_U8), 16, 4);
    assert_shared(rows_item(998, 2048, 2, DTYPE_U8, DTYPE_U8), 2, 32);
    assert_shared(rows_item(512, 1024, 512, DTYPE_BF16, DTYPE_F32), 4, 8);
    assert_shared(rows_item(512, 1024, 0, DTYPE_F32, DTYPE_BF16), 4, 8);
    assert_shared(rows_item(512, 1024, 512, DTYPE_F16, DTYPE_F64), 2, 8);
    assert_shared(rows_item(1000, 2000, 0, DTYPE_BF16, DTYPE_F32), 1, 32);
}

Test(copy, warps_of_a_table_find_their_items)
{
    const int64_t warps[] = { 0, 3, 0, 0, 1, 700, 0, 2, 0 };
    enum { N = sizeof warps / sizeof *warps };
    struct copy_item items[N];
    int64_t total;

    for (int i = 0; i < N; i++) {
        items[i] = rows_item(8192, 8192, 0, DTYPE_U8, DTYPE_U8);
        items[i].rows.n_rows = warps[i];
    }
    total = copy_items_place(items, N);
    cr_assert_eq(total, 706);
    for (int64_t step = 1; step < 1000; step = step * 3 + 1)
        for (int64_t warp = 0, at = 0; warp < total; warp += step) {
            at = copy_items_find(items, N, (int)at, warp);
            cr_assert_geq(warp, items[at].first_warp);
            cr_assert_lt(warp, items[at].first_warp + warps[at]);
        }
}
