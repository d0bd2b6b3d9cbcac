/* ckpt/shard_pack.c - see ckpt/shard_pack.h. */
#include "ckpt/shard_pack.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/crc.h"
#include "ckpt/shard_hdf5.h"
#include "ckpt/shard_writer.h"
#include "core/file.h"
#include "core/thread_pool.h"
#include "storage/upload_file.h"

/* ---- beginning ---- */

/* Where a chunk is in the order of the file. */
struct shard_pack_key {
    int64_t tensor, last, chunk; /* chunk ascends with the part */
};

static int by_key(const void *a, const void *b)
{
    const struct shard_pack_key *x = a, *y = b;

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->last != y->last)
        return x->last < y->last ? -1 : 1;
    return x->chunk < y->chunk ? -1 : x->chunk > y->chunk;
}

static struct shard_pack_key key_of(const struct shard_writer *w, int64_t k)
{
    const struct chunk_entry *c = &w->chunks[k];
    const struct tensor *t = &w->layout->tensors[c->tensor];
    const struct box whole = box_whole(t->ndim, t->shape);
    struct box last = c->box;

    for (int d = 0; d < last.ndim; d++) {
        last.lo[d] += last.len[d] - 1;
        last.len[d] = 1;
    }
    return (struct shard_pack_key){ c->tensor, box_offset_in(&whole, &last), k };
}

tp_status shard_pack_begin(struct shard_writer *w, struct page_pool *pool, struct tp_err *err)
{
    const size_t n = (size_t)w->n_chunks;
    struct shard_pack_key *keys = calloc(n, sizeof *keys);
    struct shard_pack *p = calloc(1, sizeof *p);
    int64_t at = 0;

    if (p) {
        page_pool_init(&p->own_pool);
        p->pool = pool ? pool : &p->own_pool;
        p->order = calloc(n, sizeof *p->order);
        p->chunks = calloc(n, sizeof *p->chunks);
        p->words = calloc(n, sizeof *p->words);
    }
    w->pack = p;
    if (!keys || !p || !p->order || !p->chunks || !p->words) {
        free(keys);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    }
    for (int64_t k = 0; k < w->n_chunks; k++) {
        keys[k] = key_of(w, k);
        w->chunks[k].offset = at; /* as if the file had raw payloads alone: for shard_run */
        at += w->chunks[k].raw_bytes;
    }
    qsort(keys, n, sizeof *keys, by_key);
    for (int64_t i = 0; i < w->n_chunks; i++)
        p->order[i] = keys[i].chunk;
    p->end = SHARD_PAYLOAD_BEGIN;
    free(keys);
    return TP_OK;
}

static int64_t room_of(const struct shard_writer *w, int64_t k)
{
    return codec_stored_bound(w->chunks[k].frame_bytes);
}

void shard_pack_free(struct shard_writer *w)
{
    struct shard_pack *p = w->pack;

    if (!p)
        return;
    for (int64_t k = 0; p->chunks && k < w->n_chunks; k++)
        page_pool_give(p->pool, p->chunks[k].data, room_of(w, k));
    page_pool_release(&p->own_pool);
    free(p->order);
    free(p->chunks);
    free(p->words);
    free(p);
}

bool shard_pack_chunk(const struct shard_writer *w, int64_t i, int *box, struct box *run)
{
    int low = 0, high = w->n - 1;
    int64_t k;

    if (i >= w->n_chunks)
        return false;
    k = w->pack->order[i];
    while (low < high) {
        int mid = low + (high - low + 1) / 2;

        if (w->first_chunk[mid] <= k)
            low = mid;
        else
            high = mid - 1;
    }
    *box = w->first + low;
    *run = w->chunks[k].box;
    return true;
}

int64_t shard_pack_stored_bytes(const struct shard_writer *w)
{
    return w->pack ? w->pack->end - SHARD_PAYLOAD_BEGIN : 0;
}

/* ---- collecting ---- */

tp_status shard_pack_add(struct shard_writer *w, int64_t k, const struct chunk_part *part,
                         struct tp_err *err)
{
    struct shard_pack *p = w->pack;
    struct shard_pack_chunk *c = &p->chunks[k];
    unsigned char *data;
    int64_t filled;

    pthread_mutex_lock(&w->lock);
    if (c->filled == 0)
        c->data = page_pool_take(p->pool, room_of(w, k));
    filled = c->filled += part->n;
    data = c->data;
    pthread_mutex_unlock(&w->lock);
    if (filled > w->chunks[k].raw_bytes)
        return tp_fail(err, TP_E_INTERNAL, "%s: tensor %s: a chunk was written twice", w->path,
                       w->layout->tensors[w->chunks[k].tensor].name);
    if (!data)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a chunk of %lld bytes", w->path,
                       (long long)w->chunks[k].raw_bytes);
    memcpy(data + part->skip, part->data, (size_t)part->n);
    return TP_OK;
}

/* ---- flushing ---- */

tp_status shard_packer_open(struct shard_packer *p, int level, int threads, struct tp_err *err)
{
    *p = (struct shard_packer){ .level = level, .threads = threads };
    p->encoders = calloc((size_t)threads, sizeof *p->encoders);
    return p->encoders ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory to compress");
}

void shard_packer_close(struct shard_packer *p)
{
    for (int i = 0; p->encoders && i < p->threads; i++)
        codec_encoder_free(p->encoders[i]);
    free(p->encoders);
    *p = (struct shard_packer){ .encoders = NULL };
}

int64_t shard_packer_bytes(const struct shard_packer *p, int64_t chunk_bytes)
{
    return p->threads * codec_encoder_bytes(p->level, chunk_bytes);
}

/* The chunks that one call of shard_pack_flush appends. */
struct shard_pack_batch {
    struct shard_packer *packer;
    struct shard_pack_item {
        struct shard_writer *w;
        int64_t chunk;
    } * items;
    int64_t n;
};

static bool is_complete(const struct shard_writer *w, int64_t i)
{
    const int64_t k = w->pack->order[i];

    return w->pack->chunks[k].filled == w->chunks[k].raw_bytes;
}

/* Chunks of a writer that are complete, without one before them that is not. */
static int64_t count_ready(const struct shard_writer *w)
{
    int64_t n = 0;

    while (w->pack->next + n < w->n_chunks && is_complete(w, w->pack->next + n))
        n++;
    return n;
}

static tp_status make_batch(struct shard_pack_batch *b, struct shard_writer *const *writers, int n,
                            struct tp_err *err)
{
    int64_t room = 0;

    for (int i = 0; i < n; i++)
        if (writers[i])
            room += count_ready(writers[i]);
    b->items = calloc((size_t)room + 1, sizeof *b->items);
    if (!b->items)
        return tp_fail(err, TP_E_NOMEM, "no memory to compress %lld chunks", (long long)room);
    for (int i = 0; i < n; i++) {
        struct shard_writer *w = writers[i];
        const int64_t ready = w ? count_ready(w) : 0;

        for (int64_t j = 0; j < ready; j++)
            b->items[b->n++] = (struct shard_pack_item){ w, w->pack->order[w->pack->next + j] };
        if (w)
            w->pack->next += ready;
    }
    return TP_OK;
}

/* A thread_pool_fn: compress a chunk in its own memory. */
static tp_status encode_item(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct shard_pack_batch *b = ctx;
    const struct shard_writer *w = b->items[item].w;
    const struct chunk_entry *e = &w->chunks[b->items[item].chunk];
    struct shard_pack_chunk *c = &w->pack->chunks[b->items[item].chunk];
    struct codec_encoder **encoder = &b->packer->encoders[worker];
    const struct codec_chunk chunk = { .data = c->data,
                                       .n_bytes = e->frame_bytes,
                                       .elem_bytes =
                                           dtype_bytes(w->layout->tensors[e->tensor].dtype),
                                       .always = e->raw_bytes < e->frame_bytes };
    tp_status st = TP_OK;

    c->stored = (struct codec_stored){ CODEC_RAW, e->raw_bytes };
    if (e->box.ndim > 0) { /* HDF5 has no filters for a scalar */
        if (!*encoder)
            TP_TRY(codec_encoder_new(encoder, b->packer->level, err));
        memset(c->data + e->raw_bytes, 0, (size_t)(e->frame_bytes - e->raw_bytes));
        TP_TRY(codec_encode(&c->stored, *encoder, &chunk, err));
    }
    c->crc32c = crc32c(c->data, (size_t)c->stored.bytes);
done:
    return st;
}

/* A thread_pool_fn: write a chunk to its place, and free its memory. */
static tp_status write_item(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct shard_pack_batch *b = ctx;
    const struct shard_writer *w = b->items[item].w;
    struct shard_pack_chunk *c = &w->pack->chunks[b->items[item].chunk];
    tp_status st =
        w->upload ? upload_file_write(w->upload, c->offset, c->data, c->stored.bytes, err)
                  : file_write_at(w->fd, w->path, c->offset, c->data, (size_t)c->stored.bytes, err);

    (void)worker;
    page_pool_give(w->pack->pool, c->data, room_of(w, b->items[item].chunk));
    c->data = NULL;
    return st;
}

tp_status shard_pack_flush(struct shard_packer *p, struct shard_writer *const *writers, int n,
                           struct tp_err *err)
{
    struct shard_pack_batch b = { .packer = p };
    tp_status st = make_batch(&b, writers, n, err);

    if (!st)
        st = thread_pool_run(encode_item, &b, b.n, p->threads, err);
    for (int64_t i = 0; i < b.n && !st; i++) {
        struct shard_pack *pack = b.items[i].w->pack;
        struct shard_pack_chunk *c = &pack->chunks[b.items[i].chunk];

        c->offset = pack->end;
        pack->end += c->stored.bytes;
    }
    if (!st)
        st = thread_pool_run(write_item, &b, b.n, p->threads, err);
    free(b.items);
    return st;
}

/* ---- finishing ---- */

/* Remove what a process that died left outside of payloads: libhdf5 does not write all of it, and
 * meta_sha256 would cover it. */
static tp_status clear_outside(const struct shard_writer *w, struct tp_err *err)
{
    static const unsigned char zeros[SHARD_PAYLOAD_BEGIN];

    if (ftruncate(w->fd, w->pack->end) != 0)
        return tp_fail_errno(err, "%s: cannot truncate", w->path);
    return file_write_at(w->fd, w->path, 0, zeros, sizeof zeros, err);
}

tp_status shard_pack_finish(struct shard_writer *w, struct tp_err *err)
{
    const struct shard_structure structure = { .layout = w->layout,
                                               .boxes = w->boxes + w->first,
                                               .n_boxes = w->n,
                                               .index_rows = w->n_chunks,
                                               .chunks = w->chunks,
                                               .first_chunk = w->first_chunk,
                                               .payload_end = w->pack->end };
    struct shard_offsets offsets = { .payload = NULL };
    tp_status st;

    if (w->pack->next < w->n_chunks)
        return tp_fail(err, TP_E_INTERNAL, "%s: chunks are not complete, or were not flushed",
                       w->path);
    for (int64_t k = 0; k < w->n_chunks; k++) {
        const struct shard_pack_chunk *c = &w->pack->chunks[k];

        w->chunks[k].offset = c->offset;
        w->chunks[k].stored_bytes = c->stored.bytes;
        w->chunks[k].codec = c->stored.codec;
        w->chunks[k].crc32c = c->crc32c;
    }
    st = w->pack->is_continued ? clear_outside(w, err) : TP_OK;
    if (!st)
        st = shard_hdf5_create(&offsets, w->fd, w->path, &structure, err);
    if (st)
        return st;
    w->index_offset = offsets.index;
    w->size = offsets.size;
    if (ftruncate(w->fd, w->size) != 0)
        return tp_fail_errno(err, "%s: cannot set its length to %lld bytes", w->path,
                             (long long)w->size);
    return TP_OK;
}
