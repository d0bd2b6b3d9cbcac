/* reshard/engine/look_ahead.c - names what the next tiles will read, for sources that take a while
 * to answer; see reshard/engine/transfer_run.h. */
#include "reshard/engine/transfer_run.h"

/* Returns the bytes that tile number `number` reads; *tile is memory for it. */
static int64_t name_tile(const struct transfer_plan *p, int64_t number, struct transfer_tile *tile)
{
    const struct reshard_endpoint *from = p->transfer.from;
    int64_t read = 0, written = 0;

    transfer_tile_get(p, number, tile);
    transfer_tile_bytes(p, tile, &read, &written);
    for (int i = 0; i < tile->n_from; i++) {
        struct box run;

        box_meet(&run, extent_index_box(p->from, tile->tensor, tile->from[i]), &tile->box);
        from->will_read(from->ctx, extent_index_number(p->from, tile->tensor, tile->from[i]), &run);
    }
    return read;
}

void transfer_plan_announce(struct transfer_plan *p)
{
    const struct reshard_endpoint *from = p->transfer.from;
    struct transfer_tile tile = { 0 };
    struct tp_err ignored;

    p->announced = p->begin;
    if (from->will_read && !transfer_tile_make(&tile, p, &ignored))
        while (p->announced < p->end && p->announced_bytes < from->ahead_bytes)
            p->announced_bytes += name_tile(p, p->announced++, &tile);
    transfer_tile_free(&tile);
}

void transfer_look_ahead(struct transfer_run *r, int64_t number)
{
    const struct reshard_endpoint *from = r->plan->transfer.from;
    struct transfer_ahead *a = &r->ahead;

    if (!from->will_read)
        return;
    pthread_mutex_lock(&a->lock);
    if (a->next < number) { /* the tiles before this one have begun, or are left out */
        a->next = number;
        a->bytes = atomic_load(&r->bytes_read);
    }
    while (a->next < r->plan->end && a->bytes - atomic_load(&r->bytes_read) < from->ahead_bytes)
        a->bytes += name_tile(r->plan, a->next++, &a->tile);
    pthread_mutex_unlock(&a->lock);
}
