/* reshard/engine/device_batch.c - see reshard/engine/device_batch.h. */
#include "reshard/engine/device_batch.h"

#include <string.h>

/* ---- filling ---- */

/* Where a batch would be after one more tile. */
struct device_batch_mark {
    int reads, writes, copies, sums;
    int64_t read_bytes, written_bytes;
};

static struct device_batch_mark mark_of(const struct device_batch *b)
{
    return (struct device_batch_mark){ b->n_reads, b->n_writes,   b->n_copies,
                                       b->n_sums,  b->read_bytes, b->written_bytes };
}

static void go_back(struct device_batch *b, const struct device_batch_mark *m)
{
    b->n_reads = m->reads;
    b->n_writes = m->writes;
    b->n_copies = m->copies;
    b->n_sums = m->sums;
    b->read_bytes = m->read_bytes;
    b->written_bytes = m->written_bytes;
}

/* Give a run a place in a buffer that is at `buffer` on the device. False: there is no room. */
static bool place_run(const struct device_batch *b, struct device_batch_run *run, char *buffer,
                      int64_t *used)
{
    if (transfer_aligned(run->n_bytes) > b->buffer_bytes - *used)
        return false;
    run->at = *used;
    run->data = buffer + *used;
    *used += transfer_aligned(run->n_bytes);
    return true;
}

static bool add_run(const struct device_batch *b, struct device_batch_run *list, int *n,
                    const struct device_batch_run *run)
{
    if (*n == b->items)
        return false;
    list[(*n)++] = *run;
    return true;
}

/* Room for one more checksum; NULL: there is none. */
static struct part_sums_item *add_sum(struct device_batch *b, enum device_batch_sum_kind kind,
                                      int owner)
{
    if (b->n_sums == b->items)
        return NULL;
    b->sums[b->n_sums].kind = kind;
    b->sums[b->n_sums].owner = owner;
    return &b->parts[b->n_sums++];
}

/* The checksums of the parts of a run that lies at `data` on the device. */
static bool add_parts(struct device_batch *b, const struct transfer_plan *p, int tensor,
                      enum device_batch_sum_kind kind, const struct device_batch_run *run)
{
    const struct reshard_endpoint *e =
        kind == DEVICE_BATCH_SOURCE ? p->transfer.from : p->transfer.to;
    const struct reshard_tensor *t = &p->transfer.tensors[tensor];
    const struct box whole = box_whole(t->ndim, t->shape);
    struct reshard_part part;

    if (!e->unsummed)
        return true;
    for (int64_t at = 0; at < run->n_bytes; at += part.n) {
        struct part_sums_item *it;

        e->unsummed->part(e->ctx, run->extent, &run->box, at, &part);
        if (part.is_checked)
            continue;
        if (!(it = add_sum(b, kind, run->extent)))
            return false;
        b->sums[b->n_sums - 1].part = part;
        *it = part_sums_item_crc(run->data + at, part.n, part.after);
        if (kind == DEVICE_BATCH_TARGET)
            part_sums_item_digest(it, &part.box, &whole, e->dtypes[tensor], e->dtypes[tensor]);
    }
    return true;
}

/* The digest of a run after its cast. targets: room for positions. */
static bool add_cast(struct device_batch *b, const struct transfer_plan *p, int tensor,
                     const struct device_batch_run *run, int *targets)
{
    const struct reshard_tensor *t = &p->transfer.tensors[tensor];
    const struct box whole = box_whole(t->ndim, t->shape);
    enum dtype from = p->transfer.from->dtypes[tensor], to = p->transfer.to->dtypes[tensor];
    struct part_sums_item *it;

    if (from == to || !p->cast_digests)
        return true;
    if (!transfer_counts(p, tensor, targets, extent_index_find(p->to, tensor, &run->box, targets)))
        return true;
    if (!(it = add_sum(b, DEVICE_BATCH_CAST, tensor)))
        return false;
    *it = part_sums_item_crc(run->data, 0, 0);
    part_sums_item_digest(it, &run->box, &whole, from, to);
    return true;
}

/* The run of an extent in a tile. */
static struct device_batch_run run_of(const struct extent_index *x, int64_t number,
                                      const struct transfer_tile *tile, int position,
                                      enum dtype type)
{
    struct device_batch_run run = { .tile = number,
                                    .extent = extent_index_number(x, tile->tensor, position) };

    box_meet(&run.box, extent_index_box(x, tile->tensor, position), &tile->box); /* they overlap */
    run.n_bytes = box_elements(&run.box) * dtype_bytes(type);
    return run;
}

/* The copies from the last run that is read to the runs that are written, from `first` on. */
static bool add_copies(struct device_batch *b, const struct transfer_plan *p, int tensor, int first)
{
    enum dtype from_type = p->transfer.from->dtypes[tensor];
    enum dtype to_type = p->transfer.to->dtypes[tensor];
    const struct device_batch_run *from = &b->reads[b->n_reads - 1];

    for (int i = first; i < b->n_writes; i++) {
        const struct device_batch_run *to = &b->writes[i];
        struct copy_box c = { .dst = to->data,
                              .src = from->data,
                              .dst_box = to->box,
                              .src_box = from->box,
                              .elem_bytes = dtype_bytes(from_type) };

        if (!box_meet(&c.region, &from->box, &to->box))
            continue;
        if (b->n_copies == b->items)
            return false;
        copy_item_make(&b->copies[b->n_copies++], &c, to_type, from_type);
    }
    return true;
}

static bool add_target(struct device_batch *b, const struct transfer_plan *p, int tensor,
                       struct device_batch_run *run)
{
    const struct reshard_endpoint *to = p->transfer.to;

    if (to->place)
        run->data = to->place(to->ctx, run->extent, &run->box);
    else if (!place_run(b, run, b->written, &b->written_bytes))
        return false;
    return add_run(b, b->writes, &b->n_writes, run) &&
           add_parts(b, p, tensor, DEVICE_BATCH_TARGET, run);
}

/* Add tile number `number`, which is w's. False: there is no room for all of it. */
static bool add_tile(struct device_batch *b, const struct transfer_plan *p, int64_t number,
                     struct transfer_worker *w)
{
    const struct transfer_tile *tile = &w->tile;
    enum dtype from_type = p->transfer.from->dtypes[tile->tensor];
    enum dtype to_type = p->transfer.to->dtypes[tile->tensor];
    const int first = b->n_writes;

    for (int i = 0; i < tile->n_to; i++) {
        struct device_batch_run run = run_of(p->to, number, tile, tile->to[i], to_type);

        if (!add_target(b, p, tile->tensor, &run))
            return false;
    }
    for (int i = 0; i < tile->n_from; i++) {
        struct device_batch_run run = run_of(p->from, number, tile, tile->from[i], from_type);

        if (!place_run(b, &run, b->read, &b->read_bytes) ||
            !add_run(b, b->reads, &b->n_reads, &run) ||
            !add_parts(b, p, tile->tensor, DEVICE_BATCH_SOURCE, &run) ||
            !add_cast(b, p, tile->tensor, &run, w->targets) ||
            !add_copies(b, p, tile->tensor, first))
            return false;
    }
    return true;
}

void device_batch_fill(struct device_batch *b, const struct transfer_plan *p,
                       struct transfer_worker *w, int64_t *next, int64_t end)
{
    const struct device_batch_mark empty = { 0 };

    go_back(b, &empty);
    b->host_tile = -1;
    while (*next < end) {
        struct device_batch_mark before = mark_of(b);

        transfer_tile_get(p, *next, &w->tile);
        if (!add_tile(b, p, *next, w)) {
            go_back(b, &before);
            break;
        }
        ++*next;
    }
    if (b->n_reads == 0 && b->n_writes == 0 && *next < end)
        b->host_tile = (*next)++;
    b->copy_warps = copy_items_place(b->copies, b->n_copies);
    b->sum_work = part_sums_place(b->parts, b->n_sums);
}

/* ---- checksums ---- */

/* Halves of so many 32-bit numbers, as one number modulo the prime. */
static uint64_t digest_of(unsigned long long low, unsigned long long high)
{
    return digest_mod_add(low % DIGEST_PRIME,
                          digest_mod_multiply(high % DIGEST_PRIME, UINT64_C(1) << 32));
}

static void add_cast_digest(struct transfer_plan *p, int tensor, const struct digest *part)
{
    uint64_t *words = &p->cast_digests[2 * (int64_t)tensor];
    struct digest sum = { { words[0], words[1] } };

    digest_add(&sum, part);
    memcpy(words, sum.d, sizeof sum.d);
}

void device_batch_add_sums(const struct device_batch *b, struct transfer_plan *p,
                           const struct part_sums_result *results)
{
    for (int i = 0; i < b->n_sums; i++) {
        const struct device_batch_sum *s = &b->sums[i];
        const struct part_sums_result *r = &results[i];
        const struct reshard_endpoint *e =
            s->kind == DEVICE_BATCH_SOURCE ? p->transfer.from : p->transfer.to;
        struct reshard_part_sums sums = { .crc = r->crc };

        for (int k = 0; k < PART_SUMS_POINTS; k++)
            sums.digest.d[k] = digest_of(r->low[k], r->high[k]);
        if (s->kind == DEVICE_BATCH_CAST)
            add_cast_digest(p, s->owner, &sums.digest);
        else
            e->unsummed->add(e->ctx, s->owner, &s->part, &sums);
    }
}
