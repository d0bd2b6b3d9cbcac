/* kernels/cpu/copy.c - see kernels/copy.h. */
#include "kernels/copy.h"

#include <string.h>

#include "kernels/cpu/copy_table_body.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/thread.h"

struct copy_work {
    char *dst;
    const char *src;
    struct copy_rows rows;
};

/* One size known to the compiler, so that a run of a few elements costs a few instructions. */
#define COPY_ROWS(bytes)                        \
    for (; c.row < hi; copy_cursor_next(&c, r)) \
    memcpy(dst + c.dst, src + c.src, bytes)

static void copy_range(void *ctx, int64_t lo, int64_t hi, int thread)
{
    const struct copy_work *copy = ctx;
    const struct copy_rows *r = &copy->rows;
    char *dst = copy->dst;
    const char *src = copy->src;
    struct copy_cursor c;

    (void)thread;
    copy_cursor_begin(&c, r, lo, 1);
    switch (r->run_bytes) {
    case 1:
        COPY_ROWS(1);
        break;
    case 2:
        COPY_ROWS(2);
        break;
    case 4:
        COPY_ROWS(4);
        break;
    case 8:
        COPY_ROWS(8);
        break;
    default:
        COPY_ROWS((size_t)c.bytes);
    }
}

enum { PIECE_BYTES = 1 << 20 }; /* long enough for memcpy, short enough to share */

static void copy_shared(const struct device_queue *q, const struct copy_box *a)
{
    struct copy_work copy = { .dst = a->dst, .src = a->src };

    copy_rows_make(&copy.rows, &a->dst_box, &a->src_box, &a->region, a->elem_bytes);
    copy_rows_cut(&copy.rows, PIECE_BYTES);
    kernels_for(q, copy.rows.n_rows, kernels_grain(2 * copy.rows.run_bytes), copy_range, &copy);
}

/* The work of a GPU's warps, whose threads run one after the other. */
tp_status cpu_run_copy_table(struct device_queue *q, const struct copy_table *a, struct tp_err *err)
{
    (void)q;
    (void)err;
    for (int i = 0; i < a->n_items; i++)
        for (int64_t warp = 0; warp < copy_item_warps(&a->items[i]); warp++)
            for (int lane = 0; lane < COPY_WARP; lane++)
                copy_table_work(&a->items[i], warp, lane);
    return TP_OK;
}

tp_status cpu_run_copy_box(struct device_queue *q, const struct copy_box *a, struct tp_err *err)
{
    (void)err;
    copy_shared(q, a);
    return TP_OK;
}

void copy_box(void *dst, const struct box *dst_box, const void *src, const struct box *src_box,
              const struct box *region, int elem_bytes)
{
    const struct copy_box a = { dst, src, *dst_box, *src_box, *region, elem_bytes };

    copy_shared(NULL, &a);
}
