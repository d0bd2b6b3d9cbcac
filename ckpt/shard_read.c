/*
 * ckpt/shard_read.c - the reading half of ckpt/shard.h.
 *
 * Nothing in the file or in the manifest is trusted before it is checked, and memory grows only
 * with entries that are valid. libhdf5 is not used.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/chunk_gaps.h"
#include "ckpt/shard.h"
#include "core/file.h"

enum { ENTRIES_AT_ONCE = 512 };

static const unsigned char hdf5_signature[8] = { 0x89, 'H', 'D', 'F', '\r', '\n', 0x1a, '\n' };

struct shard_reader {
    char *path;
    struct object object;
    struct shard_info info;
    const struct layout *layout; /* the manifest's; borrowed */
    struct chunk_entry *chunks;
    int64_t n_chunks, capacity;
};

/* "PATH: row 3 of /index ...". */
static tp_status bad_row(const struct shard_reader *r, int64_t row, const char *what,
                         struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: row %lld of /index %s", r->path, (long long)row, what);
}

/* ---- opening ---- */

static tp_status open_file(struct shard_reader *r, const char *dir, struct tp_err *err)
{
    const struct shard_info *info = &r->info;
    int64_t size = 0, index_bytes;
    tp_status st;

    if (!file_name_is_plain(info->file))
        return tp_fail(err, TP_E_CORRUPT, "%s: '%s' is not a plain file name", dir, info->file);
    if (strlen(dir) + 1 + strlen(info->file) >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", dir);
    if (asprintf(&r->path, "%s/%s", dir, info->file) < 0) {
        r->path = NULL;
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", info->file);
    }
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

/* Read the entries from number `from` on, as many as the buffer holds: *n. The index is read in
 * such pieces, once to hash it and once to decode it. */
static tp_status read_index(struct shard_reader *r, int64_t from, unsigned char *buf, int64_t *n,
                            struct tp_err *err)
{
    *n = r->info.index_rows - from < ENTRIES_AT_ONCE ? r->info.index_rows - from : ENTRIES_AT_ONCE;
    return object_read_at(&r->object, r->path, r->info.index_offset + from * CHUNK_ENTRY_BYTES, buf,
                          (size_t)*n * CHUNK_ENTRY_BYTES, err);
}

static tp_status check_index_hash(struct shard_reader *r, unsigned char *buf, struct tp_err *err)
{
    char found[SHA256_TEXT];
    struct sha256 *h = NULL;
    tp_status st = sha256_new(&h, err);
    int64_t n = 0;

    if (st)
        return st;
    for (int64_t from = 0; from < r->info.index_rows && !st; from += n) {
        st = read_index(r, from, buf, &n, err);
        if (!st)
            sha256_add(h, buf, (size_t)n * CHUNK_ENTRY_BYTES);
    }
    sha256_end(h, found);
    if (!st && strcmp(found, r->info.index_sha256) != 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: /index has the SHA-256 %.16s..., but the manifest says %.16s...: the "
                     "file is damaged or belongs to another save",
                     r->path, found, r->info.index_sha256);
    return st;
}

/* Check one entry by itself: its tensor, box, sizes and offset. */
static tp_status check_chunk(const struct shard_reader *r, int64_t row, const struct chunk_entry *c,
                             struct tp_err *err)
{
    const struct tensor *t;
    int64_t elements = 1;

    if (c->tensor >= r->layout->n_tensors)
        return bad_row(r, row, "has a tensor id that is not in the manifest", err);
    t = &r->layout->tensors[c->tensor];
    if (c->box.ndim != t->ndim)
        return bad_row(r, row, "has another number of axes than its tensor", err);
    for (int d = 0; d < t->ndim; d++) {
        const int64_t lo = c->box.lo[d], len = c->box.len[d];

        if (len < 1 || len > t->shape[d] || lo > t->shape[d] - len)
            return bad_row(r, row, "has a box outside its tensor", err);
        if (__builtin_mul_overflow(elements, len, &elements) || elements > CHUNK_BYTES_MAX)
            return bad_row(r, row, "is larger than the most a chunk may have", err);
    }
    if (c->codec >= CODECS || (c->codec != CODEC_RAW && !r->info.chunked))
        return bad_row(r, row, "has a codec that this version does not support", err);
    if (c->raw_bytes != elements * dtype_bytes(t->dtype) || c->raw_bytes > CHUNK_BYTES_MAX ||
        (c->codec == CODEC_RAW && c->stored_bytes != c->raw_bytes))
        return bad_row(r, row, "has another number of bytes than its box", err);
    if (c->codec != CODEC_RAW && (c->stored_bytes < 1 || c->stored_bytes > CODEC_STORED_MAX))
        return bad_row(r, row, "has more stored bytes than a frame of 4 MiB, or none", err);
    if (c->offset > r->info.size_bytes - c->stored_bytes)
        return bad_row(r, row, "ends after the end of the file", err);
    if (c->digest.d[0] >= DIGEST_PRIME || c->digest.d[1] >= DIGEST_PRIME)
        return bad_row(r, row, "has a digest that is out of range", err);
    return TP_OK;
}

static tp_status append_chunk(struct shard_reader *r, const struct chunk_entry *chunk,
                              struct tp_err *err)
{
    if (r->n_chunks == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 64;
        struct chunk_entry *chunks;

        if (capacity > r->info.index_rows)
            capacity = r->info.index_rows;
        chunks = realloc(r->chunks, (size_t)capacity * sizeof *chunks);
        if (!chunks)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", r->path);
        r->chunks = chunks;
        r->capacity = capacity;
    }
    r->chunks[r->n_chunks++] = *chunk;
    return TP_OK;
}

static tp_status decode_index(struct shard_reader *r, unsigned char *buf, struct tp_err *err)
{
    tp_status st = TP_OK;
    int64_t n = 0;

    for (int64_t from = 0; from < r->info.index_rows; from += n) {
        TP_TRY(read_index(r, from, buf, &n, err));
        for (int64_t i = 0; i < n; i++) {
            struct chunk_entry chunk;

            if (!chunk_entry_decode(&chunk, buf + i * CHUNK_ENTRY_BYTES))
                return bad_row(r, from + i,
                               "has a negative number, or unused fields that are not zero", err);
            TP_TRY(check_chunk(r, from + i, &chunk, err));
            TP_TRY(append_chunk(r, &chunk, err));
        }
    }
done:
    return st;
}

/* ---- the entries together ---- */

/* Entries from .. to - 1 belong to one dataset: they must be the chunks of one box, in order, and
 * contiguous in the file if the dataset is. *box receives that box. */
static tp_status check_dataset(struct shard_reader *r, int64_t from, int64_t to, struct box *box,
                               struct tp_err *err)
{
    const struct chunk_entry *first = &r->chunks[from], *last = &r->chunks[to - 1];
    int64_t at = 0;

    *box = first->box;
    for (int d = 0; d < box->ndim; d++) {
        box->len[d] = last->box.lo[d] + last->box.len[d] - box->lo[d];
        if (box->len[d] < 1)
            return bad_row(r, to - 1, "begins before the first row of its dataset", err);
    }
    for (int64_t i = from; i < to; i++) {
        struct chunk_entry *c = &r->chunks[i];

        c->frame_bytes = first->raw_bytes;
        if (c->codec != CODEC_RAW && c->raw_bytes > c->frame_bytes)
            return bad_row(r, i, "is larger than the first chunk of its dataset", err);
        if (!box_contains(box, &c->box) || !box_is_run_in(box, &c->box) ||
            box_offset_in(box, &c->box) != at)
            return bad_row(r, i, "is not the next chunk of its dataset", err);
        at += box_elements(&c->box);
        if (i > from && !r->info.chunked && c->offset != c[-1].offset + c[-1].stored_bytes)
            return bad_row(r, i, "does not follow the row before it in the file", err);
    }
    if (at != box_elements(box))
        return bad_row(r, from, "begins a dataset with too few chunks", err);
    return TP_OK;
}

/* Datasets ascend by tensor, then part; the boxes of one tensor do not overlap. */
static tp_status check_datasets(struct shard_reader *r, struct tp_err *err)
{
    struct box boxes[SHARD_PARTS_MAX], overlap;
    int64_t from = 0, to;
    int tensor = -1, part = -1, n_parts = 0;
    tp_status st = TP_OK;

    for (; from < r->n_chunks; from = to) {
        const struct chunk_entry *first = &r->chunks[from];

        if (first->tensor < tensor || (first->tensor == tensor && first->part <= part))
            return bad_row(r, from, "is out of order", err);
        if (first->part >= SHARD_PARTS_MAX)
            return bad_row(r, from, "has a part number that is too high", err);
        if (first->tensor > tensor)
            n_parts = 0;
        tensor = first->tensor;
        part = first->part;
        for (to = from + 1;
             to < r->n_chunks && r->chunks[to].tensor == tensor && r->chunks[to].part == part;)
            to++;
        TP_TRY(check_dataset(r, from, to, &boxes[n_parts], err));
        for (int p = 0; p < n_parts; p++)
            if (box_meet(&overlap, &boxes[p], &boxes[n_parts]))
                return bad_row(r, from, "begins a box that overlaps another box of its tensor",
                               err);
        n_parts++;
    }
done:
    return st;
}

/* No payload overlaps another payload or /index. */
static tp_status check_overlap(const struct shard_reader *r, struct tp_err *err)
{
    const int64_t index_end = r->info.index_offset + r->info.index_rows * CHUNK_ENTRY_BYTES;
    struct chunk_range *ranges = NULL;
    tp_status st = chunks_sort_ranges(&ranges, r->chunks, r->n_chunks, err);

    for (int64_t i = 0; i < r->n_chunks && !st; i++) {
        if (i > 0 && ranges[i].offset < ranges[i - 1].end)
            st = tp_fail(err, TP_E_CORRUPT,
                         "%s: the payloads of two rows of /index overlap at "
                         "byte %lld",
                         r->path, (long long)ranges[i].offset);
        else if (ranges[i].offset < index_end && ranges[i].end > r->info.index_offset)
            st = tp_fail(err, TP_E_CORRUPT, "%s: the payload of a row of /index overlaps /index",
                         r->path);
    }
    free(ranges);
    return st;
}

tp_status shard_open(struct shard_reader **out, const char *dir, const struct shard_info *info,
                     const struct layout *layout, struct tp_err *err)
{
    struct shard_reader *r = calloc(1, sizeof *r);
    unsigned char *buf = malloc((size_t)ENTRIES_AT_ONCE * CHUNK_ENTRY_BYTES);
    tp_status st = TP_OK;

    if (!r || !buf) {
        free(r);
        r = NULL;
        st = tp_fail(err, TP_E_NOMEM, "no memory to open %s", info->file);
        goto done;
    }
    r->object = OBJECT_NONE;
    r->info = *info;
    r->layout = layout;
    TP_TRY(open_file(r, dir, err));
    TP_TRY(check_index_hash(r, buf, err));
    TP_TRY(decode_index(r, buf, err));
    TP_TRY(check_datasets(r, err));
    TP_TRY(check_overlap(r, err));
    *out = r;
    r = NULL;
done:
    free(buf);
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
