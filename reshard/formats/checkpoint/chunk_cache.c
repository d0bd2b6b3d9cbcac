/* reshard/formats/checkpoint/chunk_cache.c - see reshard/formats/checkpoint/chunk_cache.h. */
#include "reshard/formats/checkpoint/chunk_cache.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "core/page_pool.h"

enum { BUCKETS = 1024 };

/* A chunk in the cache. */
struct chunk_cache_entry {
    struct chunk_cache_entry *next; /* in its bucket */
    struct chunk_cache_entry *newer, *older;
    const struct shard_reader *reader;
    int64_t chunk, n_bytes, used_bytes; /* that were read of it */
    int users;                          /* threads that load or copy it */
    bool is_ready;
    unsigned char *data;
};

/* A decoder that no thread uses. */
struct chunk_cache_decoder {
    struct chunk_cache_decoder *next;
    struct codec_decoder *decoder;
};

struct chunk_cache {
    pthread_mutex_t lock; /* guards all below */
    pthread_cond_t ready; /* an entry was loaded, or could not be */
    struct chunk_cache_entry *buckets[BUCKETS];
    struct chunk_cache_entry ends; /* ends.newer is the oldest entry, ends.older the newest */
    struct chunk_cache_decoder *decoders;
    int64_t bytes, most_bytes;
    struct page_pool pool;
};

tp_status chunk_cache_new(struct chunk_cache **out, int64_t most_bytes, struct tp_err *err)
{
    struct chunk_cache *c = calloc(1, sizeof *c);

    if (!c)
        return tp_fail(err, TP_E_NOMEM, "no memory to read compressed chunks");
    pthread_mutex_init(&c->lock, NULL);
    pthread_cond_init(&c->ready, NULL);
    page_pool_init(&c->pool);
    c->most_bytes = most_bytes;
    c->ends.newer = c->ends.older = &c->ends;
    *out = c;
    return TP_OK;
}

int64_t chunk_cache_bytes(int64_t most_bytes, int64_t chunk_bytes, int threads)
{
    return chunk_bytes ? most_bytes + threads * (chunk_bytes + codec_decoder_bytes(chunk_bytes))
                       : 0;
}

/* ---- entries; the lock is held ---- */

static struct chunk_cache_entry **bucket_of(struct chunk_cache *c, const struct shard_reader *r,
                                            int64_t chunk)
{
    uint64_t h = ((uint64_t)(uintptr_t)r >> 4) * 0x9e3779b97f4a7c15u + (uint64_t)chunk;

    return &c->buckets[(h ^ h >> 32) % BUCKETS];
}

static struct chunk_cache_entry *find(struct chunk_cache *c, const struct shard_reader *r,
                                      int64_t chunk)
{
    struct chunk_cache_entry *e = *bucket_of(c, r, chunk);

    while (e && (e->reader != r || e->chunk != chunk))
        e = e->next;
    return e;
}

static void unlist(struct chunk_cache_entry *e)
{
    e->newer->older = e->older;
    e->older->newer = e->newer;
}

static void list_newest(struct chunk_cache *c, struct chunk_cache_entry *e)
{
    e->older = c->ends.older;
    e->newer = &c->ends;
    e->older->newer = e;
    c->ends.older = e;
}

static void drop(struct chunk_cache *c, struct chunk_cache_entry *e)
{
    struct chunk_cache_entry **at = bucket_of(c, e->reader, e->chunk);

    while (*at != e)
        at = &(*at)->next;
    *at = e->next;
    unlist(e);
    c->bytes -= e->n_bytes;
    page_pool_give(&c->pool, e->data, e->n_bytes);
    free(e);
}

/* Drop the oldest entries that are not in use, until n_bytes more fit. */
static void make_room(struct chunk_cache *c, int64_t n_bytes)
{
    struct chunk_cache_entry *e = c->ends.newer, *next;

    for (; e != &c->ends && c->bytes + n_bytes > c->most_bytes; e = next) {
        next = e->newer;
        if (e->users == 0)
            drop(c, e);
    }
}

static struct chunk_cache_entry *add(struct chunk_cache *c, const struct shard_reader *r,
                                     int64_t chunk)
{
    struct chunk_cache_entry *e = calloc(1, sizeof *e), **bucket = bucket_of(c, r, chunk);
    int64_t n;

    if (!e)
        return NULL;
    e->n_bytes = shard_chunks(r, &n)[chunk].raw_bytes;
    make_room(c, e->n_bytes);
    e->data = page_pool_take(&c->pool, e->n_bytes);
    if (!e->data) {
        free(e);
        return NULL;
    }
    e->reader = r;
    e->chunk = chunk;
    e->users = 1;
    e->next = *bucket;
    *bucket = e;
    list_newest(c, e);
    c->bytes += e->n_bytes;
    return e;
}

void chunk_cache_free(struct chunk_cache *c)
{
    struct chunk_cache_decoder *d, *next;

    if (!c)
        return;
    while (c->ends.newer != &c->ends)
        drop(c, c->ends.newer);
    for (d = c->decoders; d; d = next) {
        next = d->next;
        codec_decoder_free(d->decoder);
        free(d);
    }
    page_pool_release(&c->pool);
    pthread_cond_destroy(&c->ready);
    pthread_mutex_destroy(&c->lock);
    free(c);
}

/* ---- reading ---- */

/* Decompress a chunk with a decoder that no other thread uses. Without the lock. */
static tp_status unpack(struct chunk_cache *c, const struct shard_reader *r, int64_t chunk,
                        void *buf, struct tp_err *err)
{
    struct chunk_cache_decoder *d;
    tp_status st;

    pthread_mutex_lock(&c->lock);
    d = c->decoders;
    if (d)
        c->decoders = d->next;
    pthread_mutex_unlock(&c->lock);
    if (!d && !(d = calloc(1, sizeof *d)))
        return tp_fail(err, TP_E_NOMEM, "no memory to read compressed chunks");
    st = shard_unpack_chunk(r, chunk, &d->decoder, buf, err);
    pthread_mutex_lock(&c->lock);
    d->next = c->decoders;
    c->decoders = d;
    pthread_mutex_unlock(&c->lock);
    return st;
}

/* Load a new entry. With the lock, which is released meanwhile. After a failure the entry is
 * removed; those who waited for it load it again, and so find the failure too. */
static tp_status load(struct chunk_cache *c, struct chunk_cache_entry *e, struct tp_err *err)
{
    tp_status st;

    pthread_mutex_unlock(&c->lock);
    st = unpack(c, e->reader, e->chunk, e->data, err);
    pthread_mutex_lock(&c->lock);
    e->is_ready = !st;
    pthread_cond_broadcast(&c->ready);
    return st;
}

/* The entry of a chunk, which is ready and used by the caller. With the lock. */
static tp_status acquire(struct chunk_cache_entry **out, struct chunk_cache *c,
                         const struct shard_reader *r, int64_t chunk, struct tp_err *err)
{
    struct chunk_cache_entry *e;
    tp_status st;

    while ((e = find(c, r, chunk)) && !e->is_ready)
        pthread_cond_wait(&c->ready, &c->lock);
    if (e) {
        e->users++;
        unlist(e);
        list_newest(c, e);
        *out = e;
        return TP_OK;
    }
    e = add(c, r, chunk);
    if (!e)
        return tp_fail(err, TP_E_NOMEM, "no memory for a chunk");
    st = load(c, e, err);
    if (st)
        drop(c, e); /* it was never ready, so this thread is its only user */
    *out = st ? NULL : e;
    return st;
}

tp_status chunk_cache_read(struct chunk_cache *c, const struct shard_reader *r, int64_t chunk,
                           int64_t skip, void *buf, int64_t n, struct tp_err *err)
{
    struct chunk_cache_entry *e = NULL;
    int64_t count;
    bool whole = skip == 0 && n == shard_chunks(r, &count)[chunk].raw_bytes;
    tp_status st;

    pthread_mutex_lock(&c->lock);
    if (whole && !find(c, r, chunk)) { /* no later read wants it */
        pthread_mutex_unlock(&c->lock);
        return unpack(c, r, chunk, buf, err);
    }
    st = acquire(&e, c, r, chunk, err);
    pthread_mutex_unlock(&c->lock);
    if (st)
        return st;
    memcpy(buf, e->data + skip, (size_t)n);
    pthread_mutex_lock(&c->lock);
    e->users--;
    e->used_bytes += n;
    if (e->users == 0 && e->used_bytes >= e->n_bytes)
        drop(c, e);
    pthread_mutex_unlock(&c->lock);
    return TP_OK;
}
