/* ckpt/shard_pack_resume.c - see ckpt/shard_pack_resume.h. */
#include "ckpt/shard_pack_resume.h"

#include <fcntl.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/crc.h"
#include "ckpt/shard_writer.h"
#include "core/file.h"
#include "core/stop.h"
#include "core/thread_pool.h"

/* A word has the stored bytes of a chunk in its low bits, then the codec, then the CRC32C. 0: the
 * chunk is not in the file. */
enum { BYTES_BITS = 24, CODEC_BITS = 8 };
_Static_assert(CODEC_STORED_MAX < 1 << BYTES_BITS, "the stored bytes of a chunk fit in a word");

/* Before the bytes of each incomplete chunk; in this machine's byte order. */
struct saved_chunk {
    uint64_t generation;
    int64_t rank, chunk, filled;
    uint32_t
        crc32c; /* of the chunk's raw_bytes, of which those that were not written are undefined */
    uint32_t reserved;
};

enum { SAVED_GENERATION, SAVED_BYTES }; /* of `saved`; both 0: nothing was incomplete */

/* ---- saving ---- */

uint64_t *shard_pack_words(struct shard_writer *w, int64_t *n)
{
    *n = w->pack ? w->n_chunks * SHARD_PACK_CHUNK_WORDS : 0;
    return w->pack ? w->pack->words : NULL;
}

static void update_words(struct shard_writer *w)
{
    struct shard_pack *p = w->pack;

    for (; p->n_words < p->next; p->n_words++) {
        const struct shard_pack_chunk *c = &p->chunks[p->order[p->n_words]];

        p->words[p->n_words] = (uint64_t)c->stored.bytes | (uint64_t)c->stored.codec << BYTES_BITS |
                               (uint64_t)c->crc32c << (BYTES_BITS + CODEC_BITS);
    }
}

/* The file of a generation, in turns. */
static tp_status open_saved(int *fd, char path[PATH_MAX], const char *dir, uint64_t generation,
                            int flags, struct tp_err *err)
{
    const char *name = generation % 2 ? SHARD_PACK_FILE_1 : SHARD_PACK_FILE_0;
    tp_status st = file_join(path, dir, name, err);

    if (st)
        return st;
    *fd = open(path, flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    return *fd < 0 ? tp_fail_errno(err, "%s: cannot open", path) : TP_OK;
}

static tp_status save_chunks(const struct shard_writer *w, int fd, const char *path,
                             uint64_t generation, int64_t *at, struct tp_err *err)
{
    const struct shard_pack *p = w->pack;
    tp_status st = TP_OK;

    for (int64_t i = p->next; i < w->n_chunks; i++) {
        const struct shard_pack_chunk *c = &p->chunks[p->order[i]];
        const int64_t bytes = w->chunks[p->order[i]].raw_bytes;
        struct saved_chunk head = { generation, w->rank, p->order[i], c->filled, 0, 0 };

        if (c->filled == 0)
            continue;
        head.crc32c = crc32c(c->data, (size_t)bytes);
        TP_TRY(file_write_at(fd, path, *at, &head, sizeof head, err));
        TP_TRY(file_write_at(fd, path, *at + (int64_t)sizeof head, c->data, (size_t)bytes, err));
        *at += (int64_t)sizeof head + bytes;
    }
done:
    return st;
}

static bool is_incomplete(const struct shard_writer *w)
{
    for (int64_t i = w->pack->next; i < w->n_chunks; i++)
        if (w->pack->chunks[w->pack->order[i]].filled > 0)
            return true;
    return false;
}

tp_status shard_pack_save(struct shard_writer *const *writers, int n, const char *dir,
                          uint64_t saved[SHARD_PACK_SAVED_WORDS], struct tp_err *err)
{
    const uint64_t generation = saved[SAVED_GENERATION] + 1;
    char path[PATH_MAX];
    bool any = false;
    int64_t bytes = 0;
    int fd = -1;
    tp_status st = TP_OK;

    for (int i = 0; i < n; i++)
        if (writers[i]) {
            update_words(writers[i]);
            any = any || is_incomplete(writers[i]);
        }
    if (any) {
        TP_TRY(open_saved(&fd, path, dir, generation, O_WRONLY | O_CREAT | O_TRUNC, err));
        for (int i = 0; i < n; i++)
            if (writers[i])
                TP_TRY(save_chunks(writers[i], fd, path, generation, &bytes, err));
        TP_TRY(file_sync(fd, path, true, err));
        TP_TRY(file_sync_dir(dir, err)); /* the file may be new, whatever the generation is */
    }
    saved[SAVED_GENERATION] = generation;
    saved[SAVED_BYTES] = (uint64_t)bytes;
done:
    if (fd >= 0)
        close(fd);
    return st;
}

/* ---- reading back ---- */

/* Take the places of the chunks from the words. */
static tp_status take_words(struct shard_writer *w, struct tp_err *err)
{
    struct shard_pack *p = w->pack;
    uint32_t ignored;

    for (; p->next < w->n_chunks && p->words[p->next]; p->next++) {
        const uint64_t word = p->words[p->next];
        const int64_t k = p->order[p->next];
        const int64_t bytes = (int64_t)(word & ((1U << BYTES_BITS) - 1));
        struct shard_pack_chunk *c = &p->chunks[k];

        if (bytes < 1 || bytes > codec_stored_bound(w->chunks[k].frame_bytes) ||
            !chunk_sums_crc(&ignored, w->sums + k * CHUNK_SUM_WORDS, w->chunks[k].raw_bytes))
            return tp_fail(err, TP_E_CORRUPT, "%s: its journal contradicts itself", w->path);
        c->stored.bytes = bytes;
        c->stored.codec = (unsigned char)(word >> BYTES_BITS);
        c->crc32c = (uint32_t)(word >> (BYTES_BITS + CODEC_BITS));
        c->filled = w->chunks[k].raw_bytes;
        c->offset = p->end;
        p->end += bytes;
    }
    p->n_words = p->next;
    return TP_OK;
}

/* A thread_pool_fn: read a chunk that is in the file. */
static tp_status check_chunk(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct shard_writer *w = ctx;
    const int64_t k = w->pack->order[item];
    const struct shard_pack_chunk *c = &w->pack->chunks[k];
    unsigned char *buf;
    tp_status st;

    (void)worker;
    if (stop_requested())
        return tp_fail(err, TP_E_STOPPED,
                       "interrupted while reading what was written before; run the same command "
                       "again to resume");
    buf = page_pool_take(w->pack->pool, codec_stored_bound(w->chunks[k].frame_bytes));
    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it back", w->path);
    st = file_read_at(w->fd, w->path, c->offset, buf, (size_t)c->stored.bytes, err);
    if (!st && crc32c(buf, (size_t)c->stored.bytes) != c->crc32c)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: tensor %s: a chunk is not what the interrupted run wrote", w->path,
                     w->layout->tensors[w->chunks[k].tensor].name);
    page_pool_give(w->pack->pool, buf, codec_stored_bound(w->chunks[k].frame_bytes));
    return st;
}

static struct shard_writer *writer_of(struct shard_writer *const *writers, int n, int64_t rank)
{
    for (int i = 0; i < n; i++)
        if (writers[i] && writers[i]->rank == rank)
            return writers[i];
    return NULL;
}

/* Collect the chunk that is at *at of the file again. */
static tp_status take_chunk(struct shard_writer *const *writers, int n, int fd, const char *path,
                            uint64_t generation, int64_t *at, struct tp_err *err)
{
    struct shard_pack_chunk *c = NULL;
    struct shard_writer *w;
    struct saved_chunk head;
    int64_t bytes;
    tp_status st = file_read_at(fd, path, *at, &head, sizeof head, err);

    if (st)
        return st;
    w = writer_of(writers, n, head.rank);
    if (w && head.chunk >= 0 && head.chunk < w->n_chunks)
        c = &w->pack->chunks[head.chunk];
    if (!c || head.generation != generation || c->filled > 0 || head.filled < 1 ||
        head.filled > w->chunks[head.chunk].raw_bytes)
        return tp_fail(err, TP_E_CORRUPT, "%s: is damaged, or of another run", path);
    bytes = w->chunks[head.chunk].raw_bytes;
    c->data = page_pool_take(w->pack->pool, codec_stored_bound(w->chunks[head.chunk].frame_bytes));
    if (!c->data)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for a chunk of %lld bytes", w->path,
                       (long long)bytes);
    c->filled = head.filled;
    st = file_read_at(fd, path, *at + (int64_t)sizeof head, c->data, (size_t)bytes, err);
    if (!st && crc32c(c->data, (size_t)bytes) != head.crc32c)
        st = tp_fail(err, TP_E_CORRUPT, "%s: is damaged", path);
    *at += (int64_t)sizeof head + bytes;
    return st;
}

static tp_status take_saved(struct shard_writer *const *writers, int n, const char *dir,
                            const uint64_t saved[SHARD_PACK_SAVED_WORDS], struct tp_err *err)
{
    char path[PATH_MAX];
    struct stat sb;
    int fd = -1;
    tp_status st = open_saved(&fd, path, dir, saved[SAVED_GENERATION], O_RDONLY, err);

    if (st)
        return st;
    if (fstat(fd, &sb) != 0 || !S_ISREG(sb.st_mode) || sb.st_size != (int64_t)saved[SAVED_BYTES])
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not a file of %llu bytes", path,
                     (unsigned long long)saved[SAVED_BYTES]);
    for (int64_t at = 0; !st && at < (int64_t)saved[SAVED_BYTES];)
        st = take_chunk(writers, n, fd, path, saved[SAVED_GENERATION], &at, err);
    close(fd);
    return st;
}

tp_status shard_pack_restore(struct shard_writer *const *writers, int n, const char *dir,
                             const uint64_t saved[SHARD_PACK_SAVED_WORDS], int threads,
                             struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < n; i++) {
        if (!writers[i])
            continue;
        TP_TRY(take_words(writers[i], err));
        TP_TRY(thread_pool_run(check_chunk, writers[i], writers[i]->pack->next, threads, err));
    }
    if (saved[SAVED_BYTES] > 0)
        TP_TRY(take_saved(writers, n, dir, saved, err));
done:
    return st;
}
