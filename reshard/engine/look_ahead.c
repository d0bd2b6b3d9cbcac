/* reshard/engine/look_ahead.c - names what the next tiles will read, for sources that take a while
 * to answer; see reshard/engine/transfer_run.h. */
#include <stdlib.h>

#include "reshard/engine/transfer_run.h"

/* Returns the bytes that the tile reads; w has room for its arrays. */
static int64_t name_tile(const struct transfer_plan *p, int64_t tile, struct transfer_tile *w)
{
    const struct reshard_endpoint *from = p->transfer.from;
    int64_t read = 0, written = 0;

    transfer_tile_get(p, tile, w);
    transfer_tile_bytes(p, w, &read, &written);
    for (int i = 0; i < w->n_from; i++) {
        struct box run;

        box_meet(&run, extent_index_box(p->from, w->tensor, w->from[i]), &w->box);
        from->will_read(from->ctx, extent_index_number(p->from, w->tensor, w->from[i]), &run);
    }
    return read;
}

void transfer_plan_announce(struct transfer_plan *p)
{
    const struct reshard_endpoint *from = p->transfer.from;
    struct transfer_tile w = { .from = calloc((size_t)p->max_from, sizeof *w.from),
                               .to = calloc((size_t)p->max_to, sizeof *w.to) };

    p->announced = p->begin;
    if (from->will_read && w.from && w.to)
        while (p->announced < p->end && p->announced_bytes < from->ahead_bytes)
            p->announced_bytes += name_tile(p, p->announced++, &w);
    free(w.from);
    free(w.to);
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
        a->bytes += name_tile(r->plan, a->next++, &a->tile);
    pthread_mutex_unlock(&a->lock);
}
