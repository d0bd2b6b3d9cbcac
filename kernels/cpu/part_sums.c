/* kernels/cpu/part_sums.c - see kernels/part_sums.h. */
#include "kernels/part_sums.h"

#include <string.h>

#include "kernels/cpu/part_sums_body.h"
#include "kernels/cpu/run.h"

struct part_sums_item part_sums_item_crc(const void *data, int64_t n_bytes, int64_t after)
{
    return (struct part_sums_item){ .data = data, .crc_bytes = n_bytes, .after = after };
}

void part_sums_item_digest(struct part_sums_item *it, const struct box *part,
                           const struct box *whole, enum dtype type, enum dtype cast)
{
    int bytes = dtype_bytes(cast), halves = bytes == 8 ? 2 : 1;

    it->type = type;
    it->cast = cast;
    it->elem_bytes = bytes / halves;
    copy_rows_make_of(&it->rows, whole, part, part, halves, dtype_bytes(type));
    copy_rows_cut(&it->rows, COPY_PIECE);
}

void part_sums_crc_powers(uint32_t powers[PART_SUMS_CRC_POWERS])
{
    powers[0] = 0x00800000; /* x^8 */
    for (int k = 1; k < PART_SUMS_CRC_POWERS; k++)
        powers[k] = part_sums_multiply(powers[k - 1], powers[k - 1]);
}

struct part_sums_work part_sums_place(struct part_sums_item *items, int n_items)
{
    struct part_sums_work n = { 0 };

    for (int i = 0; i < n_items; i++) {
        items[i].first_warp = n.rows;
        items[i].first_piece = n.pieces;
        n.rows += items[i].rows.n_rows;
        n.pieces += (items[i].crc_bytes + PART_SUMS_PIECE - 1) / PART_SUMS_PIECE;
    }
    return n;
}

static void sum_item(struct part_sums_result *out, const struct part_sums *a,
                     const struct part_sums_item *it, const uint32_t table[4][256])
{
    uint64_t sum[PART_SUMS_POINTS] = { 0, 0 };

    memset(out, 0, sizeof *out);
    out->crc = part_sums_shift(a->crc_powers,
                               part_sums_crc(a, it->data, it->crc_bytes, 0, 1, table), it->after);
    part_sums_rows(sum, a, it, 0, 1, 0, 1);
    for (int p = 0; p < PART_SUMS_POINTS; p++) {
        out->low[p] = (uint32_t)sum[p];
        out->high[p] = sum[p] >> 32;
    }
}

tp_status cpu_run_part_sums(struct device_queue *q, const struct part_sums *a, struct tp_err *err)
{
    uint32_t table[4][256];

    (void)q;
    (void)err;
    for (int value = 0; value < 256; value++)
        part_sums_table_entry(table, value, a->crc_powers[2]); /* one thread: a word */
    for (int i = 0; i < a->n_items; i++)
        sum_item(&a->results[i], a, &a->items[i], table);
    return TP_OK;
}
