/*
 * ckpt/shard_read.c - the reading half of ckpt/shard.h.
 *
 * Nothing in the file or in the manifest is trusted before it is checked. libhdf5 is not used.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/chunk_gaps.h"
#include "ckpt/shard_index.h"
#include "core/file.h"

static const unsigned char hdf5_signature[8] = { 0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n' };

struct shard_reader {
    char *path;
    struct object object;
    struct shard_info info;
    const struct layout *layout; /* the manifest's; borrowed */
    struct chunk_entry *chunks;
    int64_t n_chunks;
};

/* ---- opening ---- */

static tp_status open_file(struct shard_reader *r, const char *dir, struct tp_err *err)
{
    const struct shard_info *info = &r->info;
    int64_t size = 0, index_bytes;
    char path[PATH_MAX];
    tp_status st;

    if (!file_name_is_plain(info->file))
        return tp_fail(err, TP_E_CORRUPT, "%s: '%s' is not a plain file name", dir, info->file);
    if (snprintf(path, sizeof path, "%s/%s", dir, info->file) >= (int)sizeof path)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", dir);
    r->path = strdup(path);
    if (!r->path)
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", info->file);
    if (info->index_rows < 1 || info->index_rows > SHARD_CHUNKS_MAX)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: the manifest says that /index has %lld rows, expected 1 to %d", r->path,
                       (long long)info->index_rows, SHARD_CHUNKS_MAX);
    index_bytes = info->index_rows * CHUNK_ENTRY_BYTES;
    st = object_open_ahead(&r->object, &size, r->path, info->index_offset, index_bytes, err);
    if (st == TP_E_NOTFOUND)
        return tp_fail(err, TP_E_CORRUPT, "%s: the shard of rank %d is missing", r->path,
                       info->rank);
    if (st)
        return st;
    if (size != info->size_bytes)
        return tp_fail(err, TP_E_CORRUPT, "%s: has %lld bytes, but the manifest says %lld", r->path,
                       (long long)size, (long long)info->size_bytes);
    if (info->index_offset < 0 || index_bytes > size || info->index_offset > size - index_bytes)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: the manifest says that /index is %lld bytes at offset %lld, but the "
                       "file has %lld",
                       r->path, (long long)index_bytes, (long long)info->index_offset,
                       (long long)size);
    return TP_OK;
}

tp_status shard_open(struct shard_reader **out, const char *dir, const struct shard_info *info,
                     const struct layout *layout, struct tp_err *err)
{
    struct shard_reader *r = calloc(1, sizeof *r);
    struct shard_index_input index;
    tp_status st;

    if (!r)
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", info->file);
    r->object = OBJECT_NONE;
    r->info = *info;
    r->layout = layout;
    TP_TRY(open_file(r, dir, err));
    index = (struct shard_index_input){ &r->object, r->path, &r->info, layout };
    TP_TRY(shard_index_read(&r->chunks, &r->n_chunks, &index, err));
    *out = r;
    r = NULL;
done:
    shard_reader_close(r);
    return st;
}

void shard_reader_close(struct shard_reader *r)
{
    if (!r)
        return;
    object_close(&r->object);
    free(r->path);
    free(r->chunks);
    free(r);
}

/* ---- reading ---- */

const struct chunk_entry *shard_chunks(const struct shard_reader *r, int64_t *n)
{
    *n = r->n_chunks;
    return r->chunks;
}

int shard_reader_fd(const struct shard_reader *r)
{
    return r->object.fd;
}

tp_status shard_read_part(const struct shard_reader *r, int64_t chunk, int64_t skip, void *buf,
                          int64_t n, struct tp_err *err)
{
    if (chunk < 0 || chunk >= r->n_chunks || skip < 0 || n < 0 ||
        skip > r->chunks[chunk].stored_bytes - n)
        return tp_fail(err, TP_E_INTERNAL, "%s: %lld bytes at offset %lld of chunk %lld", r->path,
                       (long long)n, (long long)skip, (long long)chunk);
    return object_read_at(&r->object, r->path, r->chunks[chunk].offset + skip, buf, (size_t)n, err);
}

void shard_will_read_part(const struct shard_reader *r, int64_t chunk, int64_t skip, int64_t n)
{
    object_will_read(&r->object, r->chunks[chunk].offset + skip, n);
}

tp_status shard_chunk_error(const struct shard_reader *r, int64_t chunk, const char *what,
                            struct tp_err *err)
{
    const struct chunk_entry *c = &r->chunks[chunk];
    const struct tensor *t = &r->layout->tensors[c->tensor];
    char text[BOX_TEXT_MAX];

    return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s/%s, box %s, %lld bytes at offset %lld: %s",
                   r->path, t->group, t->name, box_format(text, &c->box),
                   (long long)c->stored_bytes, (long long)c->offset, what);
}

tp_status shard_crc_error(const struct shard_reader *r, int64_t chunk, uint32_t found,
                          struct tp_err *err)
{
    char what[128];

    snprintf(what, sizeof what, "the CRC32C is %08x, expected %08x: the bytes are damaged", found,
             r->chunks[chunk].crc32c);
    return shard_chunk_error(r, chunk, what, err);
}

const struct tensor *shard_chunk_tensor(const struct shard_reader *r, int64_t chunk)
{
    return &r->layout->tensors[r->chunks[chunk].tensor];
}

bool shard_is_chunked(const struct shard_reader *r)
{
    return r->info.chunked;
}

tp_status shard_begin_meta(struct chunk_gaps **out, const struct shard_reader *r,
                           struct tp_err *err)
{
    const struct chunk_file file = { &r->object, r->path, r->info.size_bytes, r->chunks,
                                     r->n_chunks };

    object_will_read(&r->object, 0, r->info.size_bytes);
    return chunk_gaps_new(out, &file, err);
}

tp_status shard_end_meta(const struct shard_reader *r, struct chunk_gaps *g, struct tp_err *err)
{
    char found[SHA256_TEXT];
    tp_status st = chunk_gaps_end(g, found, err);

    if (st)
        return st;
    if (!chunk_gaps_begin_with(g, hdf5_signature, sizeof hdf5_signature))
        return tp_fail(err, TP_E_CORRUPT, "%s: does not begin with the HDF5 signature", r->path);
    if (strcmp(found, r->info.meta_sha256) == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: the bytes outside payloads have the SHA-256 %.16s..., but the manifest "
                   "says %.16s...: the HDF5 structures are damaged",
                   r->path, found, r->info.meta_sha256);
}

tp_status shard_check_meta(const struct shard_reader *r, struct tp_err *err)
{
    const struct chunk_file file = { &r->object, r->path, r->info.size_bytes, r->chunks,
                                     r->n_chunks };
    struct chunk_gaps *g = NULL;
    tp_status st = chunk_gaps_new(&g, &file, err);

    if (!st)
        st = shard_end_meta(r, g, err);
    chunk_gaps_free(g);
    return st;
}
