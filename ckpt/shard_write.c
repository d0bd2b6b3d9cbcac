/* ckpt/shard_write.c - the writing half of ckpt/shard.h, when the file exists. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/chunk_gaps.h"
#include "ckpt/shard_upload.h"
#include "ckpt/shard_writer.h"
#include "core/file.h"

enum { WRITEBACK_BYTES = 256 << 10 };

/* ---- writing ---- */

/* The chunk of this rank's box number i that contains the file offset `at`. */
static int64_t chunk_at(const struct shard_writer *w, int i, int64_t at)
{
    int64_t lo = w->first_chunk[i], hi = w->first_chunk[i + 1] - 1;

    while (lo < hi) {
        int64_t mid = lo + (hi - lo + 1) / 2;

        if (w->chunks[mid].offset <= at)
            lo = mid;
        else
            hi = mid - 1;
    }
    return lo;
}

static tp_status check_run(const struct shard_writer *w, int box, const struct box *run,
                           struct tp_err *err)
{
    const struct stored_box *b = &w->boxes[box];
    char text[BOX_TEXT_MAX];

    if (box < w->first || box >= w->first + w->n)
        return tp_fail(err, TP_E_INTERNAL, "%s: box %d belongs to another rank", w->path, box);
    if (!box_contains(&b->box, run) || !box_is_run_in(&b->box, run))
        return tp_fail(err, TP_E_INTERNAL, "%s: tensor %s: %s is not a run of its box", w->path,
                       w->layout->tensors[b->tensor].name, box_format(text, run));
    return TP_OK;
}

tp_status shard_run_begin(struct shard_run *r, const struct shard_writer *w, int box,
                          const struct box *run, const void *data, struct tp_err *err)
{
    const struct stored_box *b = &w->boxes[box];
    tp_status st = check_run(w, box, run, err);
    int elem;

    *r = (struct shard_run){ .w = w, .run = run, .bytes = data };
    if (st || box_is_empty(run))
        return st;
    elem = dtype_bytes(w->layout->tensors[b->tensor].dtype);
    r->at = w->chunks[w->first_chunk[box - w->first]].offset + box_offset_in(&b->box, run) * elem;
    r->left = box_elements(run) * elem;
    r->chunk = chunk_at(w, box - w->first, r->at);
    return TP_OK;
}

bool shard_run_next(struct shard_run *r, int64_t *chunk, struct chunk_part *part,
                    struct box *overlap)
{
    const struct chunk_entry *c;

    if (r->left <= 0)
        return false;
    c = &r->w->chunks[r->chunk];
    *part = (struct chunk_part){ .data = r->bytes, .skip = r->at - c->offset };
    part->n = c->raw_bytes - part->skip < r->left ? c->raw_bytes - part->skip : r->left;
    box_meet(overlap, r->run, &c->box);
    *chunk = r->chunk++;
    if (r->bytes)
        r->bytes += part->n;
    r->at += part->n;
    r->left -= part->n;
    return true;
}

void shard_run_sums(uint64_t sums[CHUNK_SUM_WORDS], const struct shard_writer *w, int64_t chunk,
                    struct chunk_part *part, const struct box *overlap)
{
    const struct tensor *t = &w->layout->tensors[w->chunks[chunk].tensor];

    part->digest = digest_box(part->data, overlap, t->ndim, t->shape, dtype_bytes(t->dtype));
    chunk_sums_of(sums, part, w->chunks[chunk].raw_bytes);
}

static tp_status write_payload(const struct shard_writer *w, const struct shard_run *r,
                               struct tp_err *err)
{
    tp_status st;

    if (r->left == 0)
        return TP_OK;
    if (w->upload)
        return upload_file_write(w->upload, r->at, r->bytes, r->left, err);
    st = file_write_at(w->fd, w->path, r->at, r->bytes, (size_t)r->left, err);
    /* Ask the kernel to start writing back now, so that the fsync of shard_wait has little left
     * to do. Only a hint: if it fails, fsync does the work. */
    if (!st && r->left >= WRITEBACK_BYTES)
        (void)sync_file_range(w->fd, r->at, r->left, SYNC_FILE_RANGE_WRITE);
    return st;
}

static void add_sums(struct shard_writer *w, int64_t chunk, const uint64_t sums[CHUNK_SUM_WORDS])
{
    pthread_mutex_lock(&w->lock);
    chunk_sums_add(w->sums + chunk * CHUNK_SUM_WORDS, sums, CHUNK_SUM_WORDS);
    pthread_mutex_unlock(&w->lock);
}

tp_status shard_write_digested(struct shard_writer *w, int box, const struct box *run,
                               const void *data, struct digest *written, struct tp_err *err)
{
    struct shard_run r;
    struct chunk_part part;
    struct box overlap;
    int64_t k;
    tp_status st = shard_run_begin(&r, w, box, run, data, err);

    *written = (struct digest){ 0 };
    if (!st && !w->pack)
        st = write_payload(w, &r, err);
    while (!st && shard_run_next(&r, &k, &part, &overlap)) {
        uint64_t sums[CHUNK_SUM_WORDS];

        if (w->pack && (st = shard_pack_add(w, k, &part, err)))
            return st;
        shard_run_sums(sums, w, k, &part, &overlap);
        add_sums(w, k, sums);
        digest_add(written, &part.digest);
    }
    return st;
}

tp_status shard_write(struct shard_writer *w, int box, const struct box *run, const void *data,
                      struct tp_err *err)
{
    struct digest written;

    return shard_write_digested(w, box, run, data, &written, err);
}

tp_status shard_write_unsummed(struct shard_writer *w, int box, const struct box *run,
                               const void *data, struct tp_err *err)
{
    struct shard_run r;
    struct chunk_part part;
    struct box overlap;
    int64_t k;
    tp_status st = shard_run_begin(&r, w, box, run, data, err);

    if (!st && !w->pack)
        return write_payload(w, &r, err);
    while (!st && shard_run_next(&r, &k, &part, &overlap))
        st = shard_pack_add(w, k, &part, err);
    return st;
}

int64_t shard_part_at(const struct shard_writer *w, int box, const struct box *run, int64_t at,
                      int64_t *chunk, struct chunk_part *part, struct box *overlap)
{
    const struct stored_box *b = &w->boxes[box];
    int elem = dtype_bytes(w->layout->tensors[b->tensor].dtype);
    int64_t begin =
        w->chunks[w->first_chunk[box - w->first]].offset + box_offset_in(&b->box, run) * elem;
    struct shard_run r = { .w = w,
                           .run = run,
                           .chunk = chunk_at(w, box - w->first, begin + at),
                           .at = begin + at,
                           .left = box_elements(run) * elem - at };

    shard_run_next(&r, chunk, part, overlap);
    return w->chunks[*chunk].raw_bytes - part->skip - part->n;
}

void shard_add_sums(struct shard_writer *w, int64_t chunk, const struct chunk_part *part,
                    uint32_t crc_part)
{
    uint64_t sums[CHUNK_SUM_WORDS];

    chunk_sums_given(sums, part, crc_part);
    add_sums(w, chunk, sums);
}

tp_status shard_sync(struct shard_writer *w, struct tp_err *err)
{
    return file_sync(w->fd, w->path, true, err);
}

uint64_t *shard_sums(struct shard_writer *w, int64_t *n_words)
{
    *n_words = w->n_chunks * CHUNK_SUM_WORDS;
    return w->sums;
}

/* ---- finishing ---- */

tp_status shard_write_index(const struct shard_writer *w, char sha[SHA256_TEXT], struct tp_err *err)
{
    size_t bytes = (size_t)w->n_chunks * CHUNK_ENTRY_BYTES;
    unsigned char *buf = malloc(bytes);
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", w->path);
    for (int64_t k = 0; k < w->n_chunks; k++)
        chunk_entry_encode(buf + k * CHUNK_ENTRY_BYTES, &w->chunks[k]);
    st = sha256_of(sha, buf, bytes, err);
    if (!st)
        st = file_write_at(w->fd, w->path, w->index_offset, buf, bytes, err);
    free(buf);
    return st;
}

static tp_status fill_checksums(struct shard_writer *w, struct tp_err *err)
{
    char text[BOX_TEXT_MAX];

    for (int64_t k = 0; k < w->n_chunks; k++) {
        struct chunk_entry *c = &w->chunks[k];
        const uint64_t *sums = w->sums + k * CHUNK_SUM_WORDS;
        uint32_t crc;

        if (!chunk_sums_crc(&crc, sums, c->raw_bytes))
            return tp_fail(err, TP_E_INTERNAL,
                           "%s: tensor %s: a byte of %s was not written, or was written twice",
                           w->path, w->layout->tensors[c->tensor].name, box_format(text, &c->box));
        c->digest = chunk_sums_digest(sums);
        if (!w->pack)
            c->crc32c = crc;
    }
    return TP_OK;
}

tp_status shard_finish(struct shard_writer *w, struct shard_info *info, struct tp_err *err)
{
    const struct object object = object_of_file(w->fd);
    struct chunk_file file = { &object, w->path, w->size, w->chunks, w->n_chunks };
    struct shard_info found = { .rank = w->rank,
                                .index_rows = w->n_chunks,
                                .chunked = w->pack != NULL };
    tp_status st;

    memcpy(found.file, w->file, sizeof found.file);
    TP_TRY(fill_checksums(w, err));
    if (w->pack)
        TP_TRY(shard_pack_finish(w, err));
    found.size_bytes = file.size = w->size;
    found.index_offset = w->index_offset;
    TP_TRY(shard_write_index(w, found.index_sha256, err));
    TP_TRY(chunks_hash_outside(found.meta_sha256, &file, err));
    if (w->upload)
        TP_TRY(shard_upload_finish(w->upload, w, err));
    *info = found;
done:
    return st;
}

tp_status shard_wait(struct shard_writer *w, struct tp_err *err)
{
    return w->upload ? upload_file_wait(w->upload, err) : file_sync(w->fd, w->path, false, err);
}

tp_status shard_appear(struct shard_writer *w, struct tp_err *err)
{
    return w->upload ? upload_file_complete(w->upload, err) : TP_OK;
}

void shard_remove(const struct shard_writer *w)
{
    if (w->upload)
        upload_file_remove(w->upload);
}

struct upload_file *shard_upload_of(const struct shard_writer *w)
{
    return w->upload;
}

void shard_close(struct shard_writer *w)
{
    if (!w)
        return;
    upload_file_end(w->upload);
    if (w->fd >= 0)
        close(w->fd);
    shard_pack_free(w);
    pthread_mutex_destroy(&w->lock);
    free(w->path);
    free(w->first_chunk);
    free(w->chunks);
    free(w->sums);
    free(w);
}
