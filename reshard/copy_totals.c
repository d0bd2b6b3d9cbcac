/* reshard/copy_totals.c - see reshard/copy_totals.h. */
#include "reshard/copy_totals.h"

void copy_totals_plan(struct copy_totals *t, const struct copy_job *copy)
{
    t->bytes_read = copy->planned.bytes_read;
    t->bytes_written = copy->planned.bytes_written;
    t->tiles = copy->planned.tiles;
    t->peak_bytes = copy->memory.base_bytes + copy->planned.buffer_bytes;
}

tp_status copy_totals_add_up(struct copy_totals *t, struct comm_control *control,
                             struct tp_err *err)
{
    int64_t sums[] = { t->bytes_read, t->bytes_written, t->tiles };
    tp_status st = TP_OK;

    t->processes = control_size(control);
    if (!control)
        return TP_OK;
    TP_TRY(control_sum_i64(control, sums, 3, err));
    TP_TRY(control_max_i64(control, &t->peak_bytes, 1, err));
    t->bytes_read = sums[0];
    t->bytes_written = sums[1];
    t->tiles = sums[2];
done:
    return st;
}
