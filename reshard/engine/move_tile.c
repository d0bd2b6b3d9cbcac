/* reshard/engine/move_tile.c - copies one tile through the buffer of a thread; see
 * reshard/engine/transfer.h. */
#include <math.h>
#include <string.h>

#include "kernels/cast.h"
#include "kernels/copy.h"
#include "reshard/engine/transfer_run.h"

/* The runs of a source extent and of a target extent in a tile, and their overlap. */
struct transfer_overlap {
    int tensor, from, to; /* positions */
    struct box from_run, to_run, common;
    enum dtype from_type, to_type;
};

static struct box run_of(const struct extent_index *x, const struct transfer_tile *tile,
                         int position)
{
    struct box run;

    box_meet(&run, extent_index_box(x, tile->tensor, position), &tile->box); /* they do overlap */
    return run;
}

static int64_t bytes_of(const struct box *b, enum dtype type)
{
    return box_elements(b) * dtype_bytes(type);
}

/* Whether the digest of what was cast is compared, and not that of what was read. */
static bool proves_cast(const struct transfer_run *r, const struct transfer_overlap *o)
{
    return r->plan->cast_digests && o->from_type != o->to_type;
}

static tp_status read_run(struct transfer_run *r, const struct transfer_worker *w,
                          const struct transfer_overlap *o, void *buf, struct tp_err *err)
{
    const struct reshard_endpoint *from = r->plan->transfer.from;
    const bool digested = !from->read_undigested || !(w->is_direct || proves_cast(r, o));
    tp_status (*read)(void *, int, const struct box *, void *, struct tp_err *) =
        digested ? from->read : from->read_undigested;

    if (!w->counts && from->read_uncounted)
        read = from->read_uncounted;
    atomic_fetch_add(&r->bytes_read, bytes_of(&o->from_run, o->from_type));
    return read(from->ctx, extent_index_number(r->plan->from, o->tensor, o->from), &o->from_run,
                buf, err);
}

static tp_status write_run(struct transfer_run *r, struct transfer_worker *w,
                           const struct transfer_overlap *o, const void *buf, struct tp_err *err)
{
    const struct reshard_endpoint *to = r->plan->transfer.to;
    const int extent = extent_index_number(r->plan->to, o->tensor, o->to);
    int64_t n = bytes_of(&o->to_run, o->to_type);
    struct digest part;
    tp_status st = w->is_direct ? to->write_digested(to->ctx, extent, &o->to_run, buf, &part, err)
                                : to->write(to->ctx, extent, &o->to_run, buf, err);

    if (!st) {
        if (w->is_direct)
            digest_add(&w->written, &part);
        atomic_fetch_add(&r->bytes_written, n);
        progress_add(r->plan->transfer.progress, n);
    }
    return st;
}

/* Where the target's run is gathered. The first call for a target reserves the bytes, unless they
 * are the target's own. */
static char *gathered_run(const struct transfer_run *r, struct transfer_worker *w,
                          const struct transfer_overlap *o)
{
    const struct reshard_endpoint *to = r->plan->transfer.to;

    if (w->gathered[o->to])
        return w->gathered[o->to];
    if (transfer_gathers_in_place(r->plan)) {
        int extent = extent_index_number(r->plan->to, o->tensor, o->to);

        w->gathered[o->to] = to->place(to->ctx, extent, &o->to_run);
    } else {
        w->gathered[o->to] = w->free;
        w->free += bytes_of(&o->to_run, o->to_type);
    }
    return w->gathered[o->to];
}

/* Whether the source's run is contiguous within the target's run. */
static bool source_is_part(const struct transfer_overlap *o)
{
    return o->from_type == o->to_type && box_contains(&o->to_run, &o->from_run) &&
           box_is_run_in(&o->to_run, &o->from_run);
}

/* Whether the target's run is contiguous within the source's run. */
static bool target_is_part(const struct transfer_overlap *o)
{
    return o->from_type == o->to_type && box_contains(&o->from_run, &o->to_run) &&
           box_is_run_in(&o->from_run, &o->to_run);
}

/* Whether every run of a tile is written as it was read: the same box, from the same buffer. One
 * digest is then enough for both ends. Where runs are split, merged or gathered, two digests prove
 * that each byte got to its place. */
static bool tile_is_direct(const struct transfer_run *r, struct transfer_worker *w,
                           const struct transfer_overlap *o)
{
    const struct transfer *t = &r->plan->transfer;
    const struct transfer_tile *tile = &w->tile;

    if (!t->from->read_undigested || !t->to->write_digested || t->partial || t->mine ||
        o->from_type != o->to_type)
        return false;
    for (int i = 0; i < tile->n_from; i++) {
        const struct box from_run = run_of(r->plan->from, tile, tile->from[i]);
        struct box to_run;

        if (extent_index_find(r->plan->to, tile->tensor, &from_run, w->targets) != 1)
            return false;
        to_run = run_of(r->plan->to, tile, w->targets[0]);
        if (!box_equal(&from_run, &to_run))
            return false;
    }
    return true;
}

/* Whether a finite element became infinite in f16. */
static bool overflowed(const void *halves, const void *data, enum dtype type, int64_t n)
{
    const int64_t bytes = dtype_bytes(type);
    bool has_infinity = false;
    uint16_t half;

    for (int64_t i = 0; i < n; i++) {
        memcpy(&half, (const char *)halves + 2 * i, sizeof half);
        has_infinity |= (half & 0x7fff) == 0x7c00;
    }
    for (int64_t i = 0; i < n && has_infinity; i++) {
        double value;

        memcpy(&half, (const char *)halves + 2 * i, sizeof half);
        cast(&value, DTYPE_F64, (const char *)data + bytes * i, type, 1);
        if ((half & 0x7fff) == 0x7c00 && isfinite(value))
            return true;
    }
    return false;
}

/* Cast n elements. TP_E_USAGE: f16 does not have some of them, and would make infinities of
 * them. */
static tp_status cast_run_of(const struct transfer_run *r, const struct transfer_overlap *o,
                             void *to, const void *data, int64_t n, struct tp_err *err)
{
    cast(to, o->to_type, data, o->from_type, n);
    if (o->to_type != DTYPE_F16 || !overflowed(to, data, o->from_type, n))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: tensor %s has values beyond 65504, the largest of f16; use bf16 or f32",
                   r->plan->transfer.from->name, r->plan->transfer.tensors[o->tensor].name);
}

/* Cast the run that was read. All of the overlaps with targets are then copied from the cast run,
 * so its digest is what the targets together must have. */
static tp_status cast_run(struct transfer_run *r, struct transfer_worker *w,
                          const struct transfer_overlap *o, struct tp_err *err)
{
    struct transfer_plan *p = r->plan;
    const struct reshard_tensor *t = &p->transfer.tensors[o->tensor];
    struct digest sum, part;
    uint64_t *words;
    tp_status st = cast_run_of(r, o, w->cast, w->read, box_elements(&o->from_run), err);

    w->is_cast = true;
    if (st || !p->cast_digests || !w->counts)
        return st;
    words = &p->cast_digests[2 * (int64_t)o->tensor];
    part = digest_box(w->cast, &o->from_run, t->ndim, t->shape, dtype_bytes(o->to_type));
    pthread_mutex_lock(&p->lock);
    sum = (struct digest){ { words[0], words[1] } };
    digest_add(&sum, &part);
    words[0] = sum.d[0];
    words[1] = sum.d[1];
    pthread_mutex_unlock(&p->lock);
    return TP_OK;
}

/* Copy the overlap from the source's run into the target's run. */
static tp_status gather(struct transfer_run *r, struct transfer_worker *w,
                        const struct transfer_overlap *o, struct tp_err *err)
{
    const int from_bytes = dtype_bytes(o->from_type), to_bytes = dtype_bytes(o->to_type);
    const char *data = w->read;
    char *to = gathered_run(r, w, o);
    tp_status st = TP_OK;

    if (o->from_type == o->to_type) {
        copy_box(to, &o->to_run, data, &o->from_run, &o->common, from_bytes);
        return TP_OK;
    }
    if (!w->is_cast && box_is_run_in(&o->from_run, &o->common) &&
        box_is_run_in(&o->to_run, &o->common)) {
        return cast_run_of(r, o, to + box_offset_in(&o->to_run, &o->common) * to_bytes,
                           data + box_offset_in(&o->from_run, &o->common) * from_bytes,
                           box_elements(&o->common), err);
    }
    if (!w->is_cast)
        st = cast_run(r, w, o, err);
    if (!st)
        copy_box(to, &o->to_run, w->cast, &o->from_run, &o->common, to_bytes);
    return st;
}

/* Read the run of one source extent and give each target its part. */
static tp_status move_source(struct transfer_run *r, struct transfer_worker *w,
                             struct transfer_overlap *o, struct tp_err *err)
{
    const struct transfer_tile *tile = &w->tile;
    tp_status st = TP_OK;
    int n;

    o->from_run = run_of(r->plan->from, tile, o->from);
    n = extent_index_find(r->plan->to, tile->tensor, &o->from_run, w->targets);
    w->counts = transfer_counts(r->plan, tile->tensor, w->targets, n);
    n = transfer_keep_mine(r->plan, tile->tensor, w->targets, n);
    if (n == 1) {
        o->to = w->targets[0];
        o->to_run = run_of(r->plan->to, tile, o->to);
        if (source_is_part(o) &&
            (transfer_gathers_in_place(r->plan) || !box_equal(&o->from_run, &o->to_run))) {
            int64_t at = box_offset_in(&o->to_run, &o->from_run) * dtype_bytes(o->to_type);

            return read_run(r, w, o, gathered_run(r, w, o) + at, err);
        }
    }
    TP_TRY(read_run(r, w, o, w->read, err));
    w->is_cast = false;
    if (proves_cast(r, o))
        TP_TRY(cast_run(r, w, o, err));
    for (int i = 0; i < n; i++) {
        o->to = w->targets[i];
        o->to_run = run_of(r->plan->to, tile, o->to);
        box_meet(&o->common, &o->from_run, &o->to_run);
        if (target_is_part(o)) {
            int64_t at = box_offset_in(&o->from_run, &o->to_run) * dtype_bytes(o->from_type);

            TP_TRY(write_run(r, w, o, w->read + at, err));
        } else {
            TP_TRY(gather(r, w, o, err));
        }
    }
done:
    return st;
}

static void divide_buffer(const struct transfer_run *r, struct transfer_worker *w)
{
    enum dtype from = r->plan->transfer.from->dtypes[w->tile.tensor];
    enum dtype to = r->plan->transfer.to->dtypes[w->tile.tensor];
    int64_t n = box_elements(&w->tile.box);

    w->read = w->buffer;
    w->cast = w->read + transfer_aligned(n * dtype_bytes(from));
    w->free = w->cast + (from == to ? 0 : transfer_aligned(n * dtype_bytes(to)));
}

tp_status transfer_move_tile(struct transfer_run *r, int64_t number, int worker, struct tp_err *err)
{
    struct transfer_worker *w = &r->workers[worker];
    struct transfer_tile *tile = &w->tile;
    struct transfer_overlap o = { 0 };
    tp_status st = TP_OK;

    transfer_look_ahead(r, number);
    transfer_tile_get(r->plan, number, tile);
    divide_buffer(r, w);
    o.tensor = tile->tensor;
    o.from_type = r->plan->transfer.from->dtypes[tile->tensor];
    o.to_type = r->plan->transfer.to->dtypes[tile->tensor];
    w->is_direct = tile_is_direct(r, w, &o);
    w->written = (struct digest){ 0 };
    for (int i = 0; i < tile->n_to; i++)
        w->gathered[tile->to[i]] = NULL;
    for (int i = 0; i < tile->n_from; i++) {
        o.from = tile->from[i];
        TP_TRY(move_source(r, w, &o, err));
    }
    for (int i = 0; i < tile->n_to; i++) {
        /* threads begin with different targets, so that they do not wait for each other's files */
        o.to = tile->to[(i + worker * tile->n_to / r->plan->threads) % tile->n_to];
        if (!w->gathered[o.to])
            continue; /* already written by move_source */
        o.to_run = run_of(r->plan->to, tile, o.to);
        TP_TRY(write_run(r, w, &o, w->gathered[o.to], err));
    }
    if (w->is_direct)
        r->plan->transfer.from->add_digest(r->plan->transfer.from->ctx, tile->tensor, &w->written);
done:
    return st;
}
