/*
 * tests/unit/reshard_huge_tensor.c - a tensor of more than 2^31 elements moves from columns to
 * rows.
 *
 * The bytes are never in memory at the same time: the source computes them, and the target compares
 * them with what it computes.
 *
 * covers: reshard/engine/transfer_plan reshard/engine/move_tile
 */
#include <criterion/criterion.h>
#include <stdatomic.h>
#include <string.h>

#include "reshard/engine/transfer.h"

enum { PATTERN = 8191, COLUMNS = 32803, SOURCES = 3, TARGETS = 5 };

#define ROWS INT64_C(65521) /* times COLUMNS: 2^31 + 1.8 million */

static char pattern[PATTERN + COLUMNS];
static struct reshard_extent sources[SOURCES], targets[TARGETS];
static atomic_llong wrong, written;

/* The bytes that row `row` of the tensor has from column `column` on. */
static const char *bytes_at(int64_t row, int64_t column)
{
    return pattern + (row * COLUMNS + column) % PATTERN;
}

static tp_status read_run(void *ctx, int extent, const struct box *run, void *buf,
                          struct tp_err *err)
{
    const size_t n = (size_t)run->len[1];
    char *to = buf;

    (void)ctx;
    (void)extent;
    (void)err;
    for (int64_t row = run->lo[0]; row < run->lo[0] + run->len[0]; row++, to += n)
        memcpy(to, bytes_at(row, run->lo[1]), n);
    return TP_OK;
}

static tp_status write_run(void *ctx, int extent, const struct box *run, const void *buf,
                           struct tp_err *err)
{
    const size_t n = (size_t)run->len[1];
    const char *from = buf;

    (void)ctx;
    (void)extent;
    (void)err;
    for (int64_t row = run->lo[0]; row < run->lo[0] + run->len[0]; row++, from += n)
        wrong += memcmp(from, bytes_at(row, run->lo[1]), n) != 0;
    written += box_elements(run);
    return TP_OK;
}

/* Cut the tensor into n extents along an axis. */
static void cut(struct reshard_extent *extents, int n, int axis)
{
    const int64_t shape[] = { ROWS, COLUMNS };

    for (int i = 0; i < n; i++) {
        struct box *b = &extents[i].box;

        *b = box_whole(2, shape);
        b->lo[axis] = shape[axis] * i / n;
        b->len[axis] = shape[axis] * (i + 1) / n - b->lo[axis];
    }
}

Test(huge_tensor, every_element_arrives_where_it_belongs)
{
    static const struct reshard_tensor tensor = { "huge", 2, { ROWS, COLUMNS } };
    static const enum dtype dtype = DTYPE_U8;
    const struct reshard_endpoint from = { .name = "columns",
                                           .n_extents = SOURCES,
                                           .extents = sources,
                                           .dtypes = &dtype,
                                           .read = read_run };
    const struct reshard_endpoint to = { .name = "rows",
                                         .n_extents = TARGETS,
                                         .extents = targets,
                                         .dtypes = &dtype,
                                         .write = write_run };
    const struct transfer t = { .n_tensors = 1,
                                .tensors = &tensor,
                                .from = &from,
                                .to = &to,
                                .memory_bytes = 64 << 20,
                                .threads = 2 };
    struct transfer_plan *plan = NULL;
    struct transfer_stats stats;
    struct tp_err err = { 0 };

    cr_assert_gt(ROWS * COLUMNS, INT64_C(1) << 31);
    for (int i = 0; i < (int)sizeof pattern; i++)
        pattern[i] = (char)(i % PATTERN * 167 >> 3);
    cut(sources, SOURCES, 1);
    cut(targets, TARGETS, 0);
    cr_assert_eq(transfer_plan_make(&plan, &t, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(transfer_execute(plan, &stats, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(stats.bytes_read, ROWS * COLUMNS);
    cr_expect_eq(atomic_load(&written), ROWS * COLUMNS);
    cr_expect_eq(atomic_load(&wrong), 0, "%lld rows of a run differ", atomic_load(&wrong));
    transfer_plan_free(plan);
}
