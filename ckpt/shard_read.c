/*
 * ckpt/shard_read.c - the reading half of ckpt/shard.h.
 *
 * Nothing in the file or the info is believed before it is checked, and memory grows only with rows
 * that have been found valid. libhdf5 is not used.
 */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/crc.h"
#include "ckpt/shard.h"
#include "ckpt/shard_row.h"
#include "core/file.h"

#define DIGEST_PRIME ((UINT64_C(1) << 61) - 1)

enum { ROWS_AT_ONCE = 512 };

struct shard_reader {
    char path[PATH_MAX];
    int fd;
    struct shard_info info;
    const struct tensor *tensors; /* the manifest's; borrowed */
    int n_tensors;
    struct shard_row *rows;
    int64_t n_rows, capacity;
};

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
        return tp_fail(err, TP_E_CORRUPT, "%s: '%s' is no plain file name", dir, info->file);
    if (snprintf(r->path, sizeof r->path, "%s/%s", dir, info->file) >= (int)sizeof r->path)
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", dir);
    st = file_open_own(&r->fd, &size, r->path, err);
    if (st == TP_E_NOTFOUND)
        return tp_fail(err, TP_E_CORRUPT, "%s: the shard of rank %d is missing", r->path,
                       info->rank);
    if (st)
        return st;
    if (size != info->size_bytes)
        return tp_fail(err, TP_E_CORRUPT, "%s: has %lld bytes, the manifest says %lld", r->path,
                       (long long)size, (long long)info->size_bytes);
    if (info->index_rows < 1 || info->index_rows > SHARD_ROWS_MAX)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: the manifest says /index has %lld rows, expected 1 "
                       "to %d",
                       r->path, (long long)info->index_rows, SHARD_ROWS_MAX);
    index_bytes = info->index_rows * SHARD_ROW_BYTES;
    if (info->index_offset < 0 || index_bytes > size || info->index_offset > size - index_bytes)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: the manifest says /index is %lld bytes at offset "
                       "%lld, beyond the file's %lld",
                       r->path, (long long)index_bytes, (long long)info->index_offset,
                       (long long)size);
    return TP_OK;
}

/* Call for the index in pieces: once to hash it, once to take its rows. */
static tp_status read_index(struct shard_reader *r, int64_t from, unsigned char *buf, int64_t *n,
                            struct tp_err *err)
{
    *n = r->info.index_rows - from < ROWS_AT_ONCE ? r->info.index_rows - from : ROWS_AT_ONCE;
    return file_read_at(r->fd, r->path, r->info.index_offset + from * SHARD_ROW_BYTES, buf,
                        (size_t)*n * SHARD_ROW_BYTES, err);
}

static tp_status check_index_hash(struct shard_reader *r, unsigned char *buf, struct tp_err *err)
{
    char found[HASH_TEXT];
    struct hash *h = NULL;
    tp_status st = hash_new(&h, err);
    int64_t n = 0;

    if (st)
        return st;
    for (int64_t from = 0; from < r->info.index_rows && !st; from += n) {
        st = read_index(r, from, buf, &n, err);
        if (!st)
            hash_add(h, buf, (size_t)n * SHARD_ROW_BYTES);
    }
    hash_text(h, found);
    if (!st && strcmp(found, r->info.index_sha256) != 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: /index has SHA-256 %.16s..., the manifest says "
                     "%.16s...: the file is damaged or of another save",
                     r->path, found, r->info.index_sha256);
    return st;
}

/* Whether a row by itself makes sense: its tensor, box, sizes and place. */
static tp_status check_row(const struct shard_reader *r, int64_t number,
                           const struct shard_row *row, struct tp_err *err)
{
    const struct tensor *t;
    int64_t elements = 1;

    if (row->tensor >= r->n_tensors)
        return bad_row(r, number, "has a tensor that the manifest does not know", err);
    t = &r->tensors[row->tensor];
    if (row->box.ndim != t->ndim)
        return bad_row(r, number, "has not as many axes as its tensor", err);
    for (int d = 0; d < t->ndim; d++) {
        const int64_t lo = row->box.lo[d], len = row->box.len[d];

        if (len < 1 || len > t->shape[d] || lo > t->shape[d] - len)
            return bad_row(r, number, "has a box outside its tensor", err);
        if (__builtin_mul_overflow(elements, len, &elements) || elements > SHARD_CHUNK_BYTES)
            return bad_row(r, number, "is larger than a chunk may be", err);
    }
    if (row->codec != 0)
        return bad_row(r, number, "has a codec that this version does not know", err);
    if (row->raw_bytes != elements * dtype_bytes(t->dtype) || row->stored_bytes != row->raw_bytes ||
        row->raw_bytes > SHARD_CHUNK_BYTES)
        return bad_row(r, number, "has not as many bytes as its box", err);
    if (row->offset > r->info.size_bytes - row->stored_bytes)
        return bad_row(r, number, "lies beyond the end of the file", err);
    if (row->digest.d[0] >= DIGEST_PRIME || row->digest.d[1] >= DIGEST_PRIME)
        return bad_row(r, number, "has an impossible digest", err);
    return TP_OK;
}

static tp_status append_row(struct shard_reader *r, const struct shard_row *row, struct tp_err *err)
{
    if (r->n_rows == r->capacity) {
        int64_t capacity = r->capacity ? 2 * r->capacity : 64;
        struct shard_row *rows = realloc(r->rows, (size_t)capacity * sizeof *rows);

        if (!rows)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", r->path);
        r->rows = rows;
        r->capacity = capacity;
    }
    r->rows[r->n_rows++] = *row;
    return TP_OK;
}

static tp_status take_rows(struct shard_reader *r, unsigned char *buf, struct tp_err *err)
{
    tp_status st = TP_OK;
    int64_t n = 0;

    for (int64_t from = 0; from < r->info.index_rows; from += n) {
        TP_TRY(read_index(r, from, buf, &n, err));
        for (int64_t i = 0; i < n; i++) {
            struct shard_row row;

            if (!row_decode(&row, buf + i * SHARD_ROW_BYTES))
                return bad_row(r, from + i, "has negative or misplaced numbers", err);
            TP_TRY(check_row(r, from + i, &row, err));
            TP_TRY(append_row(r, &row, err));
        }
    }
done:
    return st;
}

/* ---- the rows together ---- */

/* Rows from .. to - 1 are those of one dataset: they must be the chunks of one box, in order, and
 * follow one another in the file. *box gets that box. */
static tp_status check_dataset(const struct shard_reader *r, int64_t from, int64_t to,
                               struct box *box, struct tp_err *err)
{
    const struct shard_row *first = &r->rows[from], *last = &r->rows[to - 1];
    int64_t at = 0;

    *box = first->box;
    for (int d = 0; d < box->ndim; d++) {
        box->len[d] = last->box.lo[d] + last->box.len[d] - box->lo[d];
        if (box->len[d] < 1)
            return bad_row(r, to - 1, "is before the first of its dataset", err);
    }
    for (int64_t i = from; i < to; i++) {
        const struct box *b = &r->rows[i].box;

        if (!box_contains(box, b) || !box_is_run_in(box, b) || box_offset_in(box, b) != at)
            return bad_row(r, i, "is not the chunk that its place says", err);
        at += box_elements(b);
        if (i > from && r->rows[i].offset != r->rows[i - 1].offset + r->rows[i - 1].stored_bytes)
            return bad_row(r, i, "does not follow the row before it in the file", err);
    }
    if (at != box_elements(box))
        return bad_row(r, from, "begins a box with too few chunks", err);
    return TP_OK;
}

/* Datasets ascend by tensor, then part; boxes of one tensor do not meet. */
static tp_status check_datasets(const struct shard_reader *r, struct tp_err *err)
{
    struct box boxes[SHARD_PARTS_MAX], meet;
    int64_t from = 0, to;
    int tensor = -1, part = -1, n_parts = 0;
    tp_status st = TP_OK;

    for (; from < r->n_rows; from = to) {
        const struct shard_row *first = &r->rows[from];

        if (first->tensor < tensor || (first->tensor == tensor && first->part <= part))
            return bad_row(r, from, "is out of order", err);
        if (first->part >= SHARD_PARTS_MAX)
            return bad_row(r, from, "has a part number that is too high", err);
        if (first->tensor > tensor)
            n_parts = 0;
        tensor = first->tensor;
        part = first->part;
        for (to = from + 1;
             to < r->n_rows && r->rows[to].tensor == tensor && r->rows[to].part == part;)
            to++;
        TP_TRY(check_dataset(r, from, to, &boxes[n_parts], err));
        for (int p = 0; p < n_parts; p++)
            if (box_meet(&meet, &boxes[p], &boxes[n_parts]))
                return bad_row(r, from, "begins a box that overlaps another of its tensor", err);
        n_parts++;
    }
done:
    return st;
}

/* No payload overlaps another or /index. */
static tp_status check_overlap(const struct shard_reader *r, struct tp_err *err)
{
    const int64_t index_end = r->info.index_offset + r->info.index_rows * SHARD_ROW_BYTES;
    struct row_span *spans = NULL;
    tp_status st = rows_sort_spans(&spans, r->rows, r->n_rows, err);

    for (int64_t i = 0; i < r->n_rows && !st; i++) {
        if (i > 0 && spans[i].offset < spans[i - 1].end)
            st = tp_fail(err, TP_E_CORRUPT, "%s: two rows of /index claim byte %lld", r->path,
                         (long long)spans[i].offset);
        else if (spans[i].offset < index_end && spans[i].end > r->info.index_offset)
            st = tp_fail(err, TP_E_CORRUPT, "%s: a row of /index claims bytes of /index itself",
                         r->path);
    }
    free(spans);
    return st;
}

tp_status shard_open(struct shard_reader **out, const char *dir, const struct shard_info *info,
                     const struct tensor *tensors, int n_tensors, struct tp_err *err)
{
    struct shard_reader *r = calloc(1, sizeof *r);
    unsigned char *buf = malloc((size_t)ROWS_AT_ONCE * SHARD_ROW_BYTES);
    tp_status st = TP_OK;

    if (!r || !buf) {
        free(r);
        r = NULL;
        st = tp_fail(err, TP_E_NOMEM, "no memory to open %s", info->file);
        goto done;
    }
    r->fd = -1;
    r->info = *info;
    r->tensors = tensors;
    r->n_tensors = n_tensors;
    TP_TRY(open_file(r, dir, err));
    TP_TRY(check_index_hash(r, buf, err));
    TP_TRY(take_rows(r, buf, err));
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
    if (r->fd >= 0)
        close(r->fd);
    free(r->rows);
    free(r);
}

/* ---- reading ---- */

const struct shard_row *shard_rows(const struct shard_reader *r, int64_t *n)
{
    *n = r->n_rows;
    return r->rows;
}

tp_status shard_read(const struct shard_reader *r, int64_t row, int64_t skip, void *buf, int64_t n,
                     struct tp_err *err)
{
    if (row < 0 || row >= r->n_rows || skip < 0 || n < 0 || skip > r->rows[row].raw_bytes - n)
        return tp_fail(err, TP_E_INTERNAL, "%s: %lld bytes at %lld of row %lld", r->path,
                       (long long)n, (long long)skip, (long long)row);
    return file_read_at(r->fd, r->path, r->rows[row].offset + skip, buf, (size_t)n, err);
}

tp_status shard_read_row(const struct shard_reader *r, int64_t row, void *buf, struct tp_err *err)
{
    int64_t n = row >= 0 && row < r->n_rows ? r->rows[row].raw_bytes : 0;
    tp_status st = shard_read(r, row, 0, buf, n, err);
    uint32_t crc;

    if (st)
        return st;
    crc = crc32c(buf, (size_t)n);
    return crc == r->rows[row].crc32c ? TP_OK : shard_fail_crc(r, row, crc, err);
}

tp_status shard_fail_crc(const struct shard_reader *r, int64_t row, uint32_t found,
                         struct tp_err *err)
{
    const struct shard_row *e = &r->rows[row];
    char text[BOX_TEXT_MAX];

    return tp_fail(err, TP_E_CORRUPT,
                   "%s: tensor %s/%s, box %s, %lld bytes at offset %lld: CRC32C "
                   "is %08x, expected %08x: the bytes are damaged",
                   r->path, r->tensors[e->tensor].group, r->tensors[e->tensor].name,
                   box_format(text, &e->box), (long long)e->raw_bytes, (long long)e->offset, found,
                   e->crc32c);
}

tp_status shard_check_meta(const struct shard_reader *r, struct tp_err *err)
{
    char found[HASH_TEXT];
    tp_status st =
        rows_hash_rest(found, r->fd, r->path, r->info.size_bytes, r->rows, r->n_rows, err);

    if (!st && strcmp(found, r->info.meta_sha256) != 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: the bytes outside payloads have SHA-256 %.16s..., the "
                     "manifest says %.16s...: HDF5's own structures are damaged",
                     r->path, found, r->info.meta_sha256);
    return st;
}
