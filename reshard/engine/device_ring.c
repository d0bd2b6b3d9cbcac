/* reshard/engine/device_ring.c - see reshard/engine/device_ring.h. */
#include "reshard/engine/device_ring.h"

#include <stdlib.h>
#include <string.h>

#include "core/thread_pool.h"
#include "kernels/ops.h"
#include "reshard/engine/device_batch.h"

enum { SLOTS = 3, ITEMS_MIN = 16 };
enum { POWERS_BYTES = PART_SUMS_POINTS * PART_SUMS_POWERS * (int)sizeof(uint64_t) };

struct device_ring_slot {
    struct device_batch batch;
    char *pinned_read, *pinned_written;
    struct part_sums_result *results; /* pinned */
    /* on the device: */
    struct copy_item *copies;
    struct part_sums_item *parts;
    struct part_sums_result *device_results;
    struct device_event *arrived, *computed, *returned;
    bool is_full;
};

struct device_ring {
    const struct transfer_device *on;
    struct device_queue *to_device, *compute, *from_device;
    struct device_ring_slot slots[SLOTS];
    uint64_t (*powers)[PART_SUMS_POWERS]; /* pinned */
    uint64_t (*device_powers)[PART_SUMS_POWERS];
    uint32_t crc_powers[PART_SUMS_CRC_POWERS];
    int64_t unflushed_bytes; /* written since the target last flushed */
};

/* ---- memory ---- */

/* Memory of the device, or pinned memory. NULL: there is none, and *st has the reason; or *st had
 * one before. */
static void *take(struct device *d, bool pinned, int64_t n_bytes, tp_status *st, struct tp_err *err)
{
    void *p = NULL;

    if (!*st)
        *st = (pinned ? device_alloc_pinned : device_alloc)(d, &p, n_bytes, err);
    return *st ? NULL : p;
}

/* A slot, of a third of what the powers leave: a sixteenth for the tables, the rest for what is
 * read and what is written. A target in the device's memory needs no buffer. One that flushes gets
 * no more at a time than it collects. */
static tp_status open_slot(struct device_ring *ring, struct device_ring_slot *s,
                           const struct transfer_plan *p, struct tp_err *err)
{
    const struct reshard_endpoint *to = p->transfer.to;
    const int64_t bytes = (p->ring_bytes - POWERS_BYTES) / SLOTS, buffers = to->place ? 1 : 2;
    struct device *d = ring->on->device;
    struct device_batch *b = &s->batch;
    size_t items;
    tp_status st = TP_OK;

    b->items = (int)(bytes / 16 / DEVICE_BATCH_PINNED);
    b->items = b->items > ITEMS_MIN ? b->items : ITEMS_MIN;
    b->buffer_bytes = (bytes - (int64_t)b->items * DEVICE_BATCH_PINNED) / buffers / TRANSFER_ALIGN *
                      TRANSFER_ALIGN;
    if (to->flush && b->buffer_bytes > to->flush_bytes)
        b->buffer_bytes = to->flush_bytes / TRANSFER_ALIGN * TRANSFER_ALIGN;
    items = (size_t)b->items;
    s->pinned_read = take(d, true, b->buffer_bytes, &st, err);
    b->read = take(d, false, b->buffer_bytes, &st, err);
    if (buffers == 2) {
        s->pinned_written = take(d, true, b->buffer_bytes, &st, err);
        b->written = take(d, false, b->buffer_bytes, &st, err);
    }
    b->copies = take(d, true, (int64_t)(items * sizeof *b->copies), &st, err);
    s->copies = take(d, false, (int64_t)(items * sizeof *b->copies), &st, err);
    b->parts = take(d, true, (int64_t)(items * sizeof *b->parts), &st, err);
    s->parts = take(d, false, (int64_t)(items * sizeof *b->parts), &st, err);
    s->results = take(d, true, (int64_t)(items * sizeof *s->results), &st, err);
    s->device_results = take(d, false, (int64_t)(items * sizeof *s->results), &st, err);
    TP_TRY(st);
    TP_TRY(device_event_open(d, &s->arrived, err));
    TP_TRY(device_event_open(d, &s->computed, err));
    TP_TRY(device_event_open(d, &s->returned, err));
    b->reads = calloc(items, sizeof *b->reads);
    b->writes = calloc(items, sizeof *b->writes);
    b->sums = calloc(items, sizeof *b->sums);
    if (!b->reads || !b->writes || !b->sums)
        st = tp_fail(err, TP_E_NOMEM, "no memory for the tables of a device");
done:
    return st;
}

static void close_slot(struct device *d, struct device_ring_slot *s)
{
    struct device_batch *b = &s->batch;
    void *const owned[] = { s->pinned_read, b->read,          s->pinned_written, b->written,
                            b->copies,      s->copies,        b->parts,          s->parts,
                            s->results,     s->device_results };

    for (size_t i = 0; i < sizeof owned / sizeof *owned; i++)
        device_free(d, owned[i]);
    device_event_close(s->arrived);
    device_event_close(s->computed);
    device_event_close(s->returned);
    free(b->reads);
    free(b->writes);
    free(b->sums);
}

/* Send the powers of the digest's points; whatever is queued after them sees them. */
static tp_status send_powers(struct device_ring *ring, struct tp_err *err)
{
    tp_status st = TP_OK;

    ring->powers = take(ring->on->device, true, POWERS_BYTES, &st, err);
    ring->device_powers = take(ring->on->device, false, POWERS_BYTES, &st, err);
    if (st)
        return st;
    part_sums_crc_powers(ring->crc_powers);
    for (int p = 0; p < PART_SUMS_POINTS; p++)
        for (int k = 0; k < PART_SUMS_POWERS; k++)
            ring->powers[p][k] = digest_power(p, UINT64_C(1) << k);
    device_copy(ring->to_device, ring->device_powers, ring->powers, POWERS_BYTES);
    return TP_OK;
}

tp_status device_ring_open(struct device_ring **out, const struct transfer_plan *p,
                           struct tp_err *err)
{
    const struct transfer_device *on = p->transfer.device;
    struct device_ring *ring = calloc(1, sizeof *ring);
    tp_status st;

    if (!ring)
        return tp_fail(err, TP_E_NOMEM, "no memory to copy with a device");
    ring->on = on;
    TP_TRY(device_queue_open(on->device, &ring->to_device, DEVICE_QUEUE_COPY, err));
    TP_TRY(device_queue_open(on->device, &ring->compute, DEVICE_QUEUE_COMPUTE, err));
    TP_TRY(device_queue_open(on->device, &ring->from_device, DEVICE_QUEUE_COPY, err));
    TP_TRY(send_powers(ring, err));
    for (int i = 0; i < SLOTS; i++)
        TP_TRY(open_slot(ring, &ring->slots[i], p, err));
    *out = ring;
    ring = NULL;
done:
    device_ring_close(ring);
    return st;
}

void device_ring_close(struct device_ring *ring)
{
    if (!ring)
        return;
    /* closing a queue waits for it, so nothing uses the memory any more */
    device_queue_close(ring->to_device);
    device_queue_close(ring->compute);
    device_queue_close(ring->from_device);
    for (int i = 0; i < SLOTS; i++)
        close_slot(ring->on->device, &ring->slots[i]);
    device_free(ring->on->device, ring->powers);
    device_free(ring->on->device, ring->device_powers);
    free(ring);
}

/* ---- the device's part ---- */

/* A copy; nothing is queued for nothing. */
static void transfer(struct device_queue *q, void *dst, const void *src, int64_t n_bytes)
{
    if (n_bytes > 0)
        device_copy(q, dst, src, n_bytes);
}

static void send(struct device_ring *ring, struct device_ring_slot *s)
{
    const struct device_batch *b = &s->batch;
    struct device_queue *q = ring->to_device;

    transfer(q, s->copies, b->copies, b->n_copies * (int64_t)sizeof *s->copies);
    transfer(q, s->parts, b->parts, b->n_sums * (int64_t)sizeof *s->parts);
    transfer(q, b->read, s->pinned_read, b->read_bytes);
    device_record(q, s->arrived);
}

static void compute(struct device_ring *ring, struct device_ring_slot *s)
{
    const struct device_batch *b = &s->batch;
    struct part_sums sums = { .results = s->device_results,
                              .items = s->parts,
                              .powers = (const uint64_t(*)[PART_SUMS_POWERS])ring->device_powers,
                              .n_items = b->n_sums,
                              .work = b->sum_work };

    memcpy(sums.crc_powers, ring->crc_powers, sizeof sums.crc_powers);
    device_wait(ring->compute, s->arrived);
    ring->on->ops->copy_table(ring->compute,
                              &(struct copy_table){ s->copies, b->n_copies, b->copy_warps });
    ring->on->ops->part_sums(ring->compute, &sums);
    device_record(ring->compute, s->computed);
}

static void receive(struct device_ring *ring, struct device_ring_slot *s)
{
    const struct device_batch *b = &s->batch;
    struct device_queue *q = ring->from_device;

    device_wait(q, s->computed);
    transfer(q, s->pinned_written, b->written, b->written_bytes);
    transfer(q, s->results, s->device_results, b->n_sums * (int64_t)sizeof *s->results);
    device_record(q, s->returned);
}

/* ---- the host's part ---- */

/* What threads do at the same time. */
struct device_ring_work {
    struct transfer_run *run;
    struct device_ring_slot *reading, *writing; /* NULL: none */
};

static tp_status read_one(struct transfer_run *r, const struct device_ring_slot *s, int i,
                          struct tp_err *err)
{
    const struct reshard_endpoint *from = r->plan->transfer.from;
    const struct device_batch_run *run = &s->batch.reads[i];

    transfer_look_ahead(r, run->tile);
    atomic_fetch_add(&r->bytes_read, run->n_bytes);
    return (from->unsummed ? from->unsummed->read : from->read)(from->ctx, run->extent, &run->box,
                                                                s->pinned_read + run->at, err);
}

static tp_status write_one(struct transfer_run *r, const struct device_ring_slot *s, int i,
                           struct tp_err *err)
{
    const struct reshard_endpoint *to = r->plan->transfer.to;
    const struct device_batch_run *run = &s->batch.writes[i];
    tp_status st = TP_OK;

    if (!to->place) /* else the device has written it */
        st = (to->unsummed ? to->unsummed->write : to->write)(to->ctx, run->extent, &run->box,
                                                              s->pinned_written + run->at, err);
    if (!st) {
        atomic_fetch_add(&r->bytes_written, run->n_bytes);
        progress_add(r->plan->transfer.progress, run->n_bytes);
    }
    return st;
}

/* A thread_pool_fn: the writes, then the reads, then a tile that the host copies. */
static tp_status work_on(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct device_ring_work *w = ctx;
    const struct device_ring_slot *out = w->writing, *in = w->reading;

    if (out && item < out->batch.n_writes)
        return write_one(w->run, out, (int)item, err);
    item -= out ? out->batch.n_writes : 0;
    if (in && item < in->batch.n_reads)
        return read_one(w->run, in, (int)item, err);
    return in ? transfer_move_tile(w->run, in->batch.host_tile, worker, err) : TP_OK;
}

static tp_status work(const struct device_ring_work *w, struct tp_err *err)
{
    int64_t n = 0;

    if (w->writing)
        n += w->writing->batch.n_writes;
    if (w->reading)
        n += w->reading->batch.n_reads + (w->reading->batch.host_tile >= 0);
    return thread_pool_run(work_on, (void *)w, n, w->run->plan->threads, err);
}

/* Flush the target, unless it has no more than `most_bytes` to flush. No thread writes now. */
static tp_status flush(struct device_ring *ring, const struct transfer_run *r, int64_t most_bytes,
                       struct tp_err *err)
{
    const struct reshard_endpoint *to = r->plan->transfer.to;

    if (!to->flush || ring->unflushed_bytes <= most_bytes)
        return TP_OK;
    ring->unflushed_bytes = 0;
    return to->flush(to->ctx, err);
}

/* Write and read; a target that flushes never has more than its flush_bytes and a tile. */
static tp_status work_flushed(struct device_ring *ring, const struct device_ring_work *w,
                              struct tp_err *err)
{
    const struct transfer_run *r = w->run;
    const int64_t more = w->writing ? w->writing->batch.written_bytes : 0;
    const int64_t before = atomic_load(&r->bytes_written);
    tp_status st = flush(ring, r, r->plan->transfer.to->flush_bytes - more, err);

    if (!st)
        st = work(w, err);
    ring->unflushed_bytes += atomic_load(&r->bytes_written) - before;
    return st;
}

tp_status device_ring_move(struct device_ring *ring, struct transfer_run *r, int64_t first,
                           int64_t n, struct tp_err *err)
{
    int64_t next = first;
    tp_status st = TP_OK;

    if (n <= 0)
        return TP_OK;
    for (int i = 0; i < SLOTS; i++)
        ring->slots[i].is_full = false;
    /* Step i reads batch i, writes batch i - 2, and the device works on batch i - 1. */
    for (int64_t i = 0, last = INT64_MAX; i <= last; i++) {
        struct device_ring_slot *in = &ring->slots[i % SLOTS], *out = &ring->slots[(i + 1) % SLOTS];
        struct device_ring_work w = { r, NULL, NULL };

        if (next < first + n) {
            device_batch_fill(&in->batch, r->plan, &r->workers[0], &next, first + n);
            w.reading = in;
            last = i + 2;
        }
        if (out->is_full) {
            TP_TRY(device_event_sync(out->returned, err));
            w.writing = out;
        }
        TP_TRY(work_flushed(ring, &w, err));
        if (w.writing)
            device_batch_add_sums(&out->batch, r->plan, out->results);
        out->is_full = false;
        if (w.reading) {
            send(ring, in);
            compute(ring, in);
            receive(ring, in);
            in->is_full = true;
        }
    }
    st = flush(ring, r, 0, err);
done:
    return st;
}
