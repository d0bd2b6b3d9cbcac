/* ckpt/shard_clone.c - see ckpt/shard_clone.h. */
#include "ckpt/shard_clone.h"

#include <linux/fs.h>
#include <stdlib.h>
#include <sys/ioctl.h>

#include "ckpt/shard_writer.h"
#include "core/file.h"

enum {
    BLOCK_BYTES = 4096
}; /* of file systems that share blocks; others refuse, and bytes are copied */

/* ---- before ---- */

bool shard_clone_fits(const struct shard_clone *c, const struct tensor *t, const struct box *to)
{
    const int64_t elements = chunk_elements(t, to), n_chunks = box_run_count(to, elements);
    int64_t n, k = 0;
    const struct chunk_entry *chunks = shard_chunks(c->from, &n);

    if (shard_is_chunked(c->from) || !box_contains(to, &c->box) || !box_is_run_in(to, &c->box) ||
        box_offset_in(to, &c->box) * dtype_bytes(t->dtype) % BLOCK_BYTES != 0 ||
        chunks[c->first].offset % BLOCK_BYTES != 0)
        return false;
    for (int64_t i = c->first; i < c->first + c->n; i++) {
        struct box chunk;

        if (!box_is_run_in(to, &chunks[i].box))
            return false;
        for (box_run(&chunk, to, elements, k);
             !box_contains(&chunk, &chunks[i].box) && k + 1 < n_chunks; k++)
            box_run(&chunk, to, elements, k + 1);
        if (!box_contains(&chunk, &chunks[i].box))
            return false;
    }
    return true;
}

/* ---- cloning ---- */

static int64_t bytes_of(const struct shard_clone *c)
{
    int64_t n, sum = 0;
    const struct chunk_entry *chunks = shard_chunks(c->from, &n);

    for (int64_t i = c->first; i < c->first + c->n; i++)
        sum += chunks[i].stored_bytes;
    return sum;
}

/* Share whole blocks. False: the file system cannot. */
static bool share_blocks(const struct shard_writer *w, int64_t at, const struct shard_clone *c,
                         int64_t bytes)
{
    int64_t n;
    struct file_clone_range range = { .src_fd = shard_reader_fd(c->from),
                                      .src_offset =
                                          (uint64_t)shard_chunks(c->from, &n)[c->first].offset,
                                      .src_length = (uint64_t)bytes,
                                      .dest_offset = (uint64_t)at };

    return bytes > 0 && at % BLOCK_BYTES == 0 && range.src_offset % BLOCK_BYTES == 0 &&
           ioctl(w->fd, FICLONERANGE, &range) == 0;
}

/* Read, check and write the bytes from `skip` on. Chunks are read whole, so that they are
 * checked. */
static tp_status copy_rest(const struct shard_writer *w, int64_t at, const struct shard_clone *c,
                           int64_t skip, struct tp_err *err)
{
    int64_t n, begin = 0;
    const struct chunk_entry *chunks = shard_chunks(c->from, &n);
    unsigned char *buf = malloc(CHUNK_BYTES_MAX);
    tp_status st = buf ? TP_OK : tp_fail(err, TP_E_NOMEM, "%s: no memory to copy a chunk", w->path);

    for (int64_t i = c->first; i < c->first + c->n && !st; i++) {
        const int64_t bytes = chunks[i].stored_bytes, from = skip > begin ? skip - begin : 0;

        if (from < bytes) {
            TP_TRY(shard_read_chunk(c->from, i, buf, err));
            TP_TRY(file_write_at(w->fd, w->path, at + begin + from, buf + from,
                                 (size_t)(bytes - from), err));
        }
        begin += bytes;
    }
done:
    free(buf);
    return st;
}

/* Add what the other index states of a chunk to the sums of the chunk that it is in. */
static tp_status add_sums(struct shard_writer *w, int box, const struct chunk_entry *chunk,
                          struct tp_err *err)
{
    struct shard_run r;
    struct chunk_part part;
    struct box overlap;
    uint64_t sums[CHUNK_SUM_WORDS];
    int64_t k = 0;
    tp_status st = shard_run_begin(&r, w, box, &chunk->box, NULL, err);

    if (st)
        return st;
    if (!shard_run_next(&r, &k, &part, &overlap) || part.n != chunk->raw_bytes)
        return tp_fail(err, TP_E_INTERNAL, "%s: a chunk that is cloned is in several chunks",
                       w->path);
    part.digest = chunk->digest;
    chunk_sums_known(sums, &part, chunk->crc32c, w->chunks[k].raw_bytes);
    pthread_mutex_lock(&w->lock);
    chunk_sums_add(w->sums + k * CHUNK_SUM_WORDS, sums, CHUNK_SUM_WORDS);
    pthread_mutex_unlock(&w->lock);
    return TP_OK;
}

tp_status shard_clone(struct shard_writer *w, int box, const struct shard_clone *c, bool *cloned,
                      struct tp_err *err)
{
    const int64_t whole = bytes_of(c) / BLOCK_BYTES * BLOCK_BYTES;
    int64_t n;
    const struct chunk_entry *chunks = shard_chunks(c->from, &n);
    struct shard_run r;
    tp_status st = shard_run_begin(&r, w, box, &c->box, NULL, err);

    if (st)
        return st;
    *cloned = share_blocks(w, r.at, c, whole);
    TP_TRY(copy_rest(w, r.at, c, *cloned ? whole : 0, err));
    for (int64_t i = c->first; i < c->first + c->n; i++)
        TP_TRY(add_sums(w, box, &chunks[i], err));
done:
    return st;
}
