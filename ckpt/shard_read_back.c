/* ckpt/shard_read_back.c - see ckpt/shard_read_back.h. */
#include "ckpt/shard_read_back.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/shard_writer.h"
#include "core/file.h"

struct shard_read_back {
    struct shard_writer *w;
    uint64_t *sums;         /* [n_chunks * CHUNK_SUM_WORDS] of what was read */
    unsigned char *suspect; /* [n_chunks] */
    pthread_mutex_t lock;   /* guards sums */
};

static bool is_untouched(const uint64_t *sums)
{
    for (int i = 0; i < CHUNK_SUM_WORDS; i++)
        if (sums[i])
            return false;
    return true;
}

tp_status shard_read_back_begin(struct shard_read_back **out, struct shard_writer *w,
                                struct tp_err *err)
{
    struct shard_read_back *b = calloc(1, sizeof *b);

    if (!b)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it back", w->path);
    b->w = w;
    pthread_mutex_init(&b->lock, NULL);
    b->sums = calloc((size_t)w->n_chunks * CHUNK_SUM_WORDS, sizeof *b->sums);
    b->suspect = calloc((size_t)w->n_chunks, sizeof *b->suspect);
    if (!b->sums || !b->suspect) {
        shard_read_back_end(b);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it back", w->path);
    }
    for (int64_t k = 0; k < w->n_chunks; k++)
        b->suspect[k] = !is_untouched(&w->sums[k * CHUNK_SUM_WORDS]);
    *out = b;
    return TP_OK;
}

void shard_read_back_end(struct shard_read_back *b)
{
    if (!b)
        return;
    pthread_mutex_destroy(&b->lock);
    free(b->sums);
    free(b->suspect);
    free(b);
}

bool shard_read_back_wants(const struct shard_read_back *b, int box, const struct box *run)
{
    struct shard_run r;
    struct chunk_part part;
    struct box overlap;
    struct tp_err ignored;
    int64_t k;

    if (shard_run_begin(&r, b->w, box, run, NULL, &ignored))
        return true; /* shard_read_back_run reports it */
    while (shard_run_next(&r, &k, &part, &overlap))
        if (b->suspect[k])
            return true;
    return false;
}

tp_status shard_read_back_run(struct shard_read_back *b, int box, const struct box *run, void *buf,
                              struct tp_err *err)
{
    struct shard_writer *w = b->w;
    struct shard_run r;
    struct chunk_part part;
    struct box overlap;
    int64_t k;
    tp_status st = shard_run_begin(&r, w, box, run, buf, err);

    while (!st && shard_run_next(&r, &k, &part, &overlap)) {
        uint64_t sums[CHUNK_SUM_WORDS];

        if (!b->suspect[k])
            continue;
        part.data = buf;
        st =
            file_read_at(w->fd, w->path, w->chunks[k].offset + part.skip, buf, (size_t)part.n, err);
        if (st)
            break;
        shard_run_sums(sums, w, k, &part, &overlap);
        pthread_mutex_lock(&b->lock);
        chunk_sums_add(b->sums + k * CHUNK_SUM_WORDS, sums, CHUNK_SUM_WORDS);
        pthread_mutex_unlock(&b->lock);
    }
    return st;
}

int64_t shard_read_back_compare(struct shard_read_back *b)
{
    int64_t left = 0;

    for (int64_t k = 0; k < b->w->n_chunks; k++) {
        uint64_t *found = &b->sums[k * CHUNK_SUM_WORDS];
        const uint64_t *written = &b->w->sums[k * CHUNK_SUM_WORDS];

        if (!b->suspect[k])
            continue;
        b->suspect[k] = memcmp(found, written, CHUNK_SUM_WORDS * sizeof *found) != 0;
        left += b->suspect[k];
        memset(found, 0, CHUNK_SUM_WORDS * sizeof *found);
    }
    return left;
}
