/* ckpt/chunk_gaps.c - see ckpt/chunk_gaps.h. */
#include "ckpt/chunk_gaps.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { HASH_BUFFER_BYTES = 256 << 10, HEAD_BYTES = 8 };

/* A payload, and whether it was read. */
struct gap_payload {
    int64_t offset, end, chunk;
    bool passed;
};

struct chunk_gaps {
    struct chunk_file file;
    struct gap_payload *payloads; /* [file.n] ascending by offset */
    struct sha256 *hash;
    int64_t next, n_passed; /* the first gap that is not hashed, 0 to file.n */
    unsigned char *buf;     /* of the thread that hashes; NULL: none is needed now */
    unsigned char head[HEAD_BYTES];
    size_t head_bytes;
    pthread_mutex_t lock; /* guards all of this */
};

static int by_offset(const void *a, const void *b)
{
    const struct gap_payload *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

tp_status chunk_gaps_new(struct chunk_gaps **out, const struct chunk_file *file, struct tp_err *err)
{
    struct chunk_gaps *g = calloc(1, sizeof *g);
    tp_status st = TP_OK;

    if (!g)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", file->path);
    pthread_mutex_init(&g->lock, NULL);
    g->file = *file;
    g->payloads = calloc((size_t)file->n + 1, sizeof *g->payloads);
    if (!g->payloads)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", file->path));
    for (int64_t i = 0; i < file->n; i++) {
        const struct chunk_entry *c = &file->chunks[i];

        g->payloads[i] = (struct gap_payload){ c->offset, c->offset + c->stored_bytes, i, false };
    }
    qsort(g->payloads, (size_t)file->n, sizeof *g->payloads, by_offset);
    TP_TRY(sha256_new(&g->hash, err));
    *out = g;
    g = NULL;
done:
    chunk_gaps_free(g);
    return st;
}

void chunk_gaps_free(struct chunk_gaps *g)
{
    char ignored[SHA256_TEXT];

    if (!g)
        return;
    if (g->hash)
        sha256_end(g->hash, ignored);
    pthread_mutex_destroy(&g->lock);
    free(g->payloads);
    free(g->buf);
    free(g);
}

int64_t chunk_gaps_chunk(const struct chunk_gaps *g, int64_t position)
{
    return g->payloads[position].chunk;
}

/* ---- hashing; under the lock ---- */

static int64_t gap_begin(const struct chunk_gaps *g, int64_t gap)
{
    return gap > 0 ? g->payloads[gap - 1].end : 0;
}

static int64_t gap_end(const struct chunk_gaps *g, int64_t gap)
{
    return gap < g->file.n ? g->payloads[gap].offset : g->file.size;
}

static tp_status hash_next(struct chunk_gaps *g, struct tp_err *err)
{
    const int64_t end = gap_end(g, g->next);

    if (!g->buf && !(g->buf = malloc(HASH_BUFFER_BYTES)))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", g->file.path);
    for (int64_t at = gap_begin(g, g->next); at < end;) {
        const int64_t n = end - at < HASH_BUFFER_BYTES ? end - at : HASH_BUFFER_BYTES;
        tp_status st = object_read_at(g->file.object, g->file.path, at, g->buf, (size_t)n, err);

        if (st)
            return st;
        if (at == 0) {
            g->head_bytes = n < HEAD_BYTES ? (size_t)n : HEAD_BYTES;
            memcpy(g->head, g->buf, g->head_bytes);
        }
        sha256_add(g->hash, g->buf, (size_t)n);
        at += n;
    }
    g->next++;
    return TP_OK;
}

tp_status chunk_gaps_passed(struct chunk_gaps *g, int64_t position, bool *all, struct tp_err *err)
{
    tp_status st = TP_OK;

    pthread_mutex_lock(&g->lock);
    g->payloads[position].passed = true;
    *all = ++g->n_passed == g->file.n;
    while (!st && g->next < g->file.n && g->payloads[g->next].passed)
        st = hash_next(g, err);
    pthread_mutex_unlock(&g->lock);
    return st;
}

tp_status chunk_gaps_end(struct chunk_gaps *g, char out[SHA256_TEXT], struct tp_err *err)
{
    tp_status st = TP_OK;

    pthread_mutex_lock(&g->lock);
    while (!st && g->next <= g->file.n)
        st = hash_next(g, err);
    if (!st) {
        sha256_end(g->hash, out);
        g->hash = NULL;
        free(g->buf); /* thousands of shards may be open */
        g->buf = NULL;
    }
    pthread_mutex_unlock(&g->lock);
    return st;
}

bool chunk_gaps_begin_with(const struct chunk_gaps *g, const void *bytes, size_t n)
{
    return n <= g->head_bytes && memcmp(g->head, bytes, n) == 0;
}

tp_status chunks_hash_outside(char out[SHA256_TEXT], const struct chunk_file *file,
                              struct tp_err *err)
{
    struct chunk_gaps *g = NULL;
    tp_status st = chunk_gaps_new(&g, file, err);

    if (st)
        return st;
    st = chunk_gaps_end(g, out, err);
    chunk_gaps_free(g);
    return st;
}
