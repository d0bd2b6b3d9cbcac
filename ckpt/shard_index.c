/* ckpt/shard_index.c - see ckpt/shard_index.h. */
#include "ckpt/shard_index.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/chunk_gaps.h"

enum { ENTRIES_AT_ONCE = 512 };

struct entries {
    struct shard_index_input in;
    struct chunk_entry *chunks;
    int64_t n_chunks, capacity;
};

/* "PATH: row 3 of /index ...". */
static tp_status bad_row(const struct entries *x, int64_t row, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: row %lld of /index %s", x->in.path, (long long)row,
                   what);
}

/* Read the entries from number `from` on, as many as the buffer holds: *n. The index is read in
 * such pieces, once to hash it and once to decode it. */
static tp_status read_index(struct entries *x, int64_t from, unsigned char *buf, int64_t *n,
                            struct tp_err *err)
{
    *n = x->in.info->index_rows - from < ENTRIES_AT_ONCE ? x->in.info->index_rows - from
                                                         : ENTRIES_AT_ONCE;
    return object_read_at(x->in.object, x->in.path,
                          x->in.info->index_offset + from * CHUNK_ENTRY_BYTES, buf,
                          (size_t)*n * CHUNK_ENTRY_BYTES, err);
}

static tp_status check_index_hash(struct entries *x, unsigned char *buf, struct tp_err *err)
{
    char found[SHA256_TEXT];
    struct sha256 *h = NULL;
    tp_status st = sha256_new(&h, err);
    int64_t n = 0;

    if (st)
        return st;
    for (int64_t from = 0; from < x->in.info->index_rows && !st; from += n) {
        st = read_index(x, from, buf, &n, err);
        if (!st)
            sha256_add(h, buf, (size_t)n * CHUNK_ENTRY_BYTES);
    }
    sha256_end(h, found);
    if (!st && strcmp(found, x->in.info->index_sha256) != 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: /index has the SHA-256 %.16s..., but the manifest says %.16s...: the "
                     "file is damaged or belongs to another save",
                     x->in.path, found, x->in.info->index_sha256);
    return st;
}

/* Check one entry by itself: its tensor, box, sizes and offset. */
static tp_status check_chunk(const struct entries *x, int64_t row, const struct chunk_entry *c,
                             struct tp_err *err)
{
    const struct tensor *t;
    int64_t elements = 1;

    if (c->tensor >= x->in.layout->n_tensors)
        return bad_row(x, row, "has a tensor id that is not in the manifest", err);
    t = &x->in.layout->tensors[c->tensor];
    if (c->box.ndim != t->ndim)
        return bad_row(x, row, "has another number of axes than its tensor", err);
    for (int d = 0; d < t->ndim; d++) {
        const int64_t lo = c->box.lo[d], len = c->box.len[d];

        if (len < 1 || len > t->shape[d] || lo > t->shape[d] - len)
            return bad_row(x, row, "has a box outside its tensor", err);
        if (__builtin_mul_overflow(elements, len, &elements) || elements > CHUNK_BYTES_MAX)
            return bad_row(x, row, "is larger than the most a chunk may have", err);
    }
    if (c->codec >= CODECS || (c->codec != CODEC_RAW && !x->in.info->chunked))
        return bad_row(x, row, "has a codec that this version does not support", err);
    if (c->raw_bytes != elements * dtype_bytes(t->dtype) || c->raw_bytes > CHUNK_BYTES_MAX ||
        (c->codec == CODEC_RAW && c->stored_bytes != c->raw_bytes))
        return bad_row(x, row, "has another number of bytes than its box", err);
    if (c->codec != CODEC_RAW && (c->stored_bytes < 1 || c->stored_bytes > CODEC_STORED_MAX))
        return bad_row(x, row, "has more stored bytes than a frame of 4 MiB, or none", err);
    if (c->offset > x->in.info->size_bytes - c->stored_bytes)
        return bad_row(x, row, "ends after the end of the file", err);
    if (c->digest.d[0] >= DIGEST_PRIME || c->digest.d[1] >= DIGEST_PRIME)
        return bad_row(x, row, "has a digest that is out of range", err);
    return TP_OK;
}

static tp_status append_chunk(struct entries *x, const struct chunk_entry *chunk,
                              struct tp_err *err)
{
    if (x->n_chunks == x->capacity) {
        int64_t capacity = x->capacity ? 2 * x->capacity : 64;
        struct chunk_entry *chunks;

        if (capacity > x->in.info->index_rows)
            capacity = x->in.info->index_rows;
        chunks = realloc(x->chunks, (size_t)capacity * sizeof *chunks);
        if (!chunks)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", x->in.path);
        x->chunks = chunks;
        x->capacity = capacity;
    }
    x->chunks[x->n_chunks++] = *chunk;
    return TP_OK;
}

static tp_status decode_index(struct entries *x, unsigned char *buf, struct tp_err *err)
{
    tp_status st = TP_OK;
    int64_t n = 0;

    for (int64_t from = 0; from < x->in.info->index_rows; from += n) {
        TP_TRY(read_index(x, from, buf, &n, err));
        for (int64_t i = 0; i < n; i++) {
            struct chunk_entry chunk;

            if (!chunk_entry_decode(&chunk, buf + i * CHUNK_ENTRY_BYTES))
                return bad_row(x, from + i,
                               "has a negative number, or unused fields that are not zero", err);
            TP_TRY(check_chunk(x, from + i, &chunk, err));
            TP_TRY(append_chunk(x, &chunk, err));
        }
    }
done:
    return st;
}

/* ---- the entries together ---- */

/* Entries from .. to - 1 belong to one dataset: they must be the chunks of one box, in order, and
 * contiguous in the file if the dataset is. *box receives that box. */
static tp_status check_dataset(struct entries *x, int64_t from, int64_t to, struct box *box,
                               struct tp_err *err)
{
    const struct chunk_entry *first = &x->chunks[from], *last = &x->chunks[to - 1];
    int64_t at = 0;

    *box = first->box;
    for (int d = 0; d < box->ndim; d++) {
        box->len[d] = last->box.lo[d] + last->box.len[d] - box->lo[d];
        if (box->len[d] < 1)
            return bad_row(x, to - 1, "begins before the first row of its dataset", err);
    }
    for (int64_t i = from; i < to; i++) {
        struct chunk_entry *c = &x->chunks[i];

        c->frame_bytes = first->raw_bytes;
        if (c->codec != CODEC_RAW && c->raw_bytes > c->frame_bytes)
            return bad_row(x, i, "is larger than the first chunk of its dataset", err);
        if (!box_contains(box, &c->box) || !box_is_run_in(box, &c->box) ||
            box_offset_in(box, &c->box) != at)
            return bad_row(x, i, "is not the next chunk of its dataset", err);
        at += box_elements(&c->box);
        if (i > from && !x->in.info->chunked && c->offset != c[-1].offset + c[-1].stored_bytes)
            return bad_row(x, i, "does not follow the row before it in the file", err);
    }
    if (at != box_elements(box))
        return bad_row(x, from, "begins a dataset with too few chunks", err);
    return TP_OK;
}

/* Datasets ascend by tensor, then part; the boxes of one tensor do not overlap. */
static tp_status check_datasets(struct entries *x, struct tp_err *err)
{
    struct box boxes[SHARD_PARTS_MAX], overlap;
    int64_t from = 0, to;
    int tensor = -1, part = -1, n_parts = 0;
    tp_status st = TP_OK;

    for (; from < x->n_chunks; from = to) {
        const struct chunk_entry *first = &x->chunks[from];

        if (first->tensor < tensor || (first->tensor == tensor && first->part <= part))
            return bad_row(x, from, "is out of order", err);
        if (first->part >= SHARD_PARTS_MAX)
            return bad_row(x, from, "has a part number that is too high", err);
        if (first->tensor > tensor)
            n_parts = 0;
        tensor = first->tensor;
        part = first->part;
        for (to = from + 1;
             to < x->n_chunks && x->chunks[to].tensor == tensor && x->chunks[to].part == part;)
            to++;
        TP_TRY(check_dataset(x, from, to, &boxes[n_parts], err));
        for (int p = 0; p < n_parts; p++)
            if (box_meet(&overlap, &boxes[p], &boxes[n_parts]))
                return bad_row(x, from, "begins a box that overlaps another box of its tensor",
                               err);
        n_parts++;
    }
done:
    return st;
}

/* No payload overlaps another payload or /index. */
static tp_status check_overlap(const struct entries *x, struct tp_err *err)
{
    const int64_t index_end = x->in.info->index_offset + x->in.info->index_rows * CHUNK_ENTRY_BYTES;
    struct chunk_range *ranges = NULL;
    tp_status st = chunks_sort_ranges(&ranges, x->chunks, x->n_chunks, err);

    for (int64_t i = 0; i < x->n_chunks && !st; i++) {
        if (i > 0 && ranges[i].offset < ranges[i - 1].end)
            st = tp_fail(err, TP_E_CORRUPT,
                         "%s: the payloads of two rows of /index overlap at "
                         "byte %lld",
                         x->in.path, (long long)ranges[i].offset);
        else if (ranges[i].offset < index_end && ranges[i].end > x->in.info->index_offset)
            st = tp_fail(err, TP_E_CORRUPT, "%s: the payload of a row of /index overlaps /index",
                         x->in.path);
    }
    free(ranges);
    return st;
}

tp_status shard_index_read(struct chunk_entry **chunks, int64_t *n,
                           const struct shard_index_input *in, struct tp_err *err)
{
    struct entries x = { .in = *in };
    unsigned char *buf = malloc((size_t)ENTRIES_AT_ONCE * CHUNK_ENTRY_BYTES);
    tp_status st;

    if (!buf)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", in->path);
    TP_TRY(check_index_hash(&x, buf, err));
    TP_TRY(decode_index(&x, buf, err));
    TP_TRY(check_datasets(&x, err));
    TP_TRY(check_overlap(&x, err));
    *chunks = x.chunks;
    *n = x.n_chunks;
    x.chunks = NULL;
done:
    free(buf);
    free(x.chunks);
    return st;
}
