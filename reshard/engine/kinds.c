/* reshard/engine/kinds.c - what a plan says about its tensors: which are split, merged, copied or
 * cast; see reshard/engine/transfer_plan.h. */
#include <stdlib.h>

#include "reshard/engine/transfer_plan.h"

static bool is_cast(const struct transfer_plan *p, int tensor)
{
    return p->transfer.from->dtypes[tensor] != p->transfer.to->dtypes[tensor];
}

/* Whether an extent of one index overlaps several of the other. */
static bool overlaps_several(const struct extent_index *one, const struct extent_index *other,
                             int tensor)
{
    for (int i = 0; i < extent_index_count(one, tensor); i++)
        if (extent_index_find(other, tensor, extent_index_box(one, tensor, i), NULL) > 1)
            return true;
    return false;
}

static void tensor_stats(const struct transfer_plan *p, int tensor, struct transfer_tensor_stats *s)
{
    const struct extent_index *from = p->from, *to = p->to;

    *s = (struct transfer_tensor_stats){
        .from = extent_index_count(from, tensor),
        .to = extent_index_count(to, tensor),
        .merge = overlaps_several(to, from, tensor),
        .split = overlaps_several(from, to, tensor),
        .cast = is_cast(p, tensor),
    };
}

void transfer_kinds_count(struct transfer_plan *p)
{
    for (int t = p->tensors_begin; t < p->tensors_end; t++) {
        const int64_t elem = dtype_bytes(p->transfer.from->dtypes[t]);
        struct transfer_tensor_stats s;

        if (!transfer_share_counts(p, t))
            continue;
        tensor_stats(p, t, &s);
        p->stats.splits += s.split;
        p->stats.merges += s.merge;
        p->stats.copies += s.to > 0 && !s.split && !s.merge;
        for (int i = 0; i < extent_index_count(p->to, t); i++)
            p->stats.bytes_wanted += box_elements(extent_index_box(p->to, t, i)) * elem;
    }
}

tp_status transfer_kinds_add_up(struct transfer_plan *p, struct tp_err *err)
{
    struct transfer_stats *s = &p->stats;
    int64_t x[] = { s->splits, s->merges, s->copies, s->bytes_wanted };
    tp_status st = control_sum_i64(p->transfer.control, x, 4, err);

    s->splits = (int)x[0];
    s->merges = (int)x[1];
    s->copies = (int)x[2];
    s->bytes_wanted = x[3];
    return st;
}

enum { TENSOR_NUMBERS = 4 }; /* of each tensor, that processes send each other */

tp_status transfer_plan_tensors(const struct transfer_plan *p, struct transfer_tensor_stats *stats,
                                struct tp_err *err)
{
    const int n = p->transfer.n_tensors;
    int64_t *all = calloc((size_t)n * TENSOR_NUMBERS + 1, sizeof *all);
    tp_status st = all ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", n);

    if (transfer_is_shared(p))
        st = control_agree(p->transfer.control, st, err);
    if (st || !all)
        goto done;
    for (int t = p->tensors_begin; t < p->tensors_end; t++)
        if (transfer_share_counts(p, t)) {
            int64_t *x = all + (int64_t)t * TENSOR_NUMBERS;

            tensor_stats(p, t, &stats[t]);
            x[0] = stats[t].from;
            x[1] = stats[t].to;
            x[2] = stats[t].split;
            x[3] = stats[t].merge;
        }
    if (transfer_is_shared(p))
        TP_TRY(control_sum_i64(p->transfer.control, all, (int64_t)n * TENSOR_NUMBERS, err));
    for (int t = 0; t < n; t++) {
        const int64_t *x = all + (int64_t)t * TENSOR_NUMBERS;

        stats[t] = (struct transfer_tensor_stats){ (int)x[0], (int)x[1], x[2] > 0, x[3] > 0,
                                                   is_cast(p, t) };
    }
done:
    free(all);
    return st;
}
