/* ckpt/shard_upload.c - see ckpt/shard_upload.h. */
#include "ckpt/shard_upload.h"

#include "ckpt/shard_hdf5.h"
#include "ckpt/shard_writer.h"
#include "core/file.h"

/* Of a file of compressed chunks only the payload's place is known before: this is an upper
 * estimate of what libhdf5 needs around it. */
enum { STRUCTURE_BYTES = 1 << 20, BOX_BYTES = 16 << 10, CHUNK_BYTES = 2048 };

/* The most bytes of the file. */
static int64_t most_bytes(const struct shard_writer *w)
{
    int64_t sum = STRUCTURE_BYTES + (int64_t)w->n * BOX_BYTES + w->n_chunks * CHUNK_BYTES;

    if (!w->pack)
        return w->size;
    for (int64_t k = 0; k < w->n_chunks; k++)
        sum += codec_stored_bound(w->chunks[k].frame_bytes);
    return sum;
}

static tp_status read_file(void *ctx, int64_t offset, void *buf, int64_t n, struct tp_err *err)
{
    const struct shard_writer *w = ctx;

    return file_read_at(w->fd, w->path, offset, buf, (size_t)n, err);
}

/* Compressed chunks follow one another from SHARD_PAYLOAD_BEGIN on, so a part is all payload,
 * except the first one and those after the last chunk. */
static void expect(struct upload_file *u, const struct shard_writer *w, int64_t size)
{
    if (w->pack) {
        upload_file_expect(u, SHARD_PAYLOAD_BEGIN, size - SHARD_PAYLOAD_BEGIN);
        upload_file_hold(u, 0, SHARD_PAYLOAD_BEGIN);
        return;
    }
    for (int64_t k = 0; k < w->n_chunks; k++)
        upload_file_expect(u, w->chunks[k].offset, w->chunks[k].stored_bytes);
    upload_file_hold(u, w->index_offset, w->n_chunks * CHUNK_ENTRY_BYTES);
}

tp_status shard_upload_begin(struct upload_file **out, const struct shard_writer *w, const char *id,
                             struct tp_err *err)
{
    const struct upload_file_request q = { .path = w->path,
                                           .size = most_bytes(w),
                                           .structure = w->pack ? NULL : read_file,
                                           .final = read_file,
                                           .ctx = (void *)w };
    struct upload_file *u = NULL;
    tp_status st = upload_file_new(&u, &q, err);

    if (st)
        return st;
    expect(u, w, q.size);
    st = upload_file_begin(u, id, err);
    if (st)
        upload_file_end(u);
    else
        *out = u;
    return st;
}

tp_status shard_upload_finish(struct upload_file *u, const struct shard_writer *w,
                              struct tp_err *err)
{
    tp_status st = w->pack ? upload_file_shorten(u, w->size, w->pack->end, err) : TP_OK;

    return st ? st : upload_file_finish(u, err);
}
