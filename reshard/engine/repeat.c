/* reshard/engine/repeat.c - reads back what an earlier process wrote, or copies it again; see
 * reshard/engine/transfer.h. */
#include "core/thread_pool.h"
#include "reshard/engine/transfer_run.h"

/* The tiles of one call. */
struct transfer_repeat {
    struct transfer_run *run;
    int64_t first;
};

/* A thread_pool_fn: read back the suspect runs of a tile. */
static tp_status read_tile(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct transfer_repeat *repeat = ctx;
    const struct transfer_plan *p = repeat->run->plan;
    const struct reshard_endpoint *to = p->transfer.to;
    struct transfer_worker *w = &repeat->run->workers[worker];
    struct transfer_tile *tile = &w->tile;
    tp_status st = TP_OK;

    transfer_tile_get(p, repeat->first + item, tile);
    for (int i = 0; i < tile->n_to && !st; i++) {
        int extent = extent_index_number(p->to, tile->tensor, tile->to[i]);
        struct box run;

        box_meet(&run, extent_index_box(p->to, tile->tensor, tile->to[i]), &tile->box);
        if (!to->suspects(to->ctx, extent, &run))
            continue;
        st = to->read(to->ctx, extent, &run, w->buffer, err);
        progress_add(p->transfer.progress,
                     box_elements(&run) * dtype_bytes(to->dtypes[tile->tensor]));
    }
    return st;
}

/* A thread_pool_fn: copy a tile again if it writes a suspect run. */
static tp_status redo_tile(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct transfer_repeat *repeat = ctx;
    const struct transfer_plan *p = repeat->run->plan;
    const struct reshard_endpoint *to = p->transfer.to;
    struct transfer_tile *tile = &repeat->run->workers[worker].tile;
    bool wanted = false;

    transfer_tile_get(p, repeat->first + item, tile);
    for (int i = 0; i < tile->n_to && !wanted; i++) {
        struct box run;

        box_meet(&run, extent_index_box(p->to, tile->tensor, tile->to[i]), &tile->box);
        wanted = to->suspects(to->ctx, extent_index_number(p->to, tile->tensor, tile->to[i]), &run);
    }
    return wanted ? transfer_move_tile(repeat->run, repeat->first + item, worker, err) : TP_OK;
}

tp_status transfer_read_back(struct transfer_run *run, int64_t first, int64_t n, struct tp_err *err)
{
    struct transfer_repeat repeat = { run, first };

    return thread_pool_run(read_tile, &repeat, n, run->plan->threads, err);
}

tp_status transfer_redo(struct transfer_run *run, int64_t first, int64_t n, struct tp_err *err)
{
    struct transfer_repeat repeat = { run, first };

    return thread_pool_run(redo_tile, &repeat, n, run->plan->threads, err);
}
