/* reshard/engine/look_ahead.c - names what the next tiles will read, for sources that take a while
 * to answer; see reshard/engine/transfer_run.h. */
#include "reshard/engine/transfer_run.h"

static void name_tile(struct transfer_run *r, int64_t tile)
{
    const struct transfer_plan *p = r->plan;
    const struct reshard_endpoint *from = p->transfer.from;
    struct transfer_tile *w = &r->ahead.tile;
    int64_t read = 0, written = 0;

    transfer_tile_get(p, tile, w);
    transfer_tile_bytes(p, w, &read, &written);
    r->ahead.bytes += read;
    for (int i = 0; i < w->n_from; i++) {
        struct box run;

        box_meet(&run, extent_index_box(p->from, w->tensor, w->from[i]), &w->box);
        from->will_read(from->ctx, extent_index_number(p->from, w->tensor, w->from[i]), &run);
    }
}

void transfer_look_ahead(struct transfer_run *r, int64_t tile)
{
    const struct reshard_endpoint *from = r->plan->transfer.from;
    struct transfer_ahead *a = &r->ahead;

    if (!from->will_read)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->next < tile) { /* the tiles before this one have begun, or are left out */
        a->next = tile;
        a->bytes = atomic_load(&r->bytes_read);
    }
    while (a->next < r->plan->end && a->bytes - atomic_load(&r->bytes_read) < from->ahead_bytes)
        name_tile(r, a->next++);
    pthread_mutex_unlock(&a->lock);
}
