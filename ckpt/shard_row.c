/* ckpt/shard_row.c - see ckpt/shard_row.h. The bytes are specified in docs/FORMAT.md. */
#include "ckpt/shard_row.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

enum { AT_LO = 16, AT_LEN = 64, AT_OFFSET = 112, AT_CRC = 136, AT_RESERVED = 140, AT_DIGEST = 144 };

static void put32(unsigned char *p, uint32_t v)
{
    v = htole32(v);
    memcpy(p, &v, 4);
}

static void put64(unsigned char *p, uint64_t v)
{
    v = htole64(v);
    memcpy(p, &v, 8);
}

static uint32_t get32(const unsigned char *p)
{
    uint32_t v;

    memcpy(&v, p, 4);
    return le32toh(v);
}

static uint64_t get64(const unsigned char *p)
{
    uint64_t v;

    memcpy(&v, p, 8);
    return le64toh(v);
}

void row_encode(unsigned char *out, const struct shard_row *row)
{
    memset(out, 0, SHARD_ROW_BYTES);
    put32(out, (uint32_t)row->tensor);
    put32(out + 4, (uint32_t)row->part);
    put32(out + 8, (uint32_t)row->box.ndim);
    put32(out + 12, (uint32_t)row->codec);
    for (int d = 0; d < row->box.ndim; d++) {
        put64(out + AT_LO + 8 * d, (uint64_t)row->box.lo[d]);
        put64(out + AT_LEN + 8 * d, (uint64_t)row->box.len[d]);
    }
    put64(out + AT_OFFSET, (uint64_t)row->offset);
    put64(out + AT_OFFSET + 8, (uint64_t)row->stored_bytes);
    put64(out + AT_OFFSET + 16, (uint64_t)row->raw_bytes);
    put32(out + AT_CRC, row->crc32c);
    put64(out + AT_DIGEST, row->digest.d[0]);
    put64(out + AT_DIGEST + 8, row->digest.d[1]);
}

/* A number that must fit int. */
static bool get_int(int *out, const unsigned char *p)
{
    uint32_t v = get32(p);

    *out = (int)v;
    return v <= INT32_MAX;
}

/* A number that must not be negative. */
static bool get_count(int64_t *out, const unsigned char *p)
{
    uint64_t v = get64(p);

    *out = (int64_t)v;
    return v <= INT64_MAX;
}

bool row_decode(struct shard_row *out, const unsigned char *in)
{
    struct shard_row r = { 0 };
    bool ok = get_int(&r.tensor, in) && get_int(&r.part, in + 4) && get_int(&r.box.ndim, in + 8) &&
              get_int(&r.codec, in + 12) && get_count(&r.offset, in + AT_OFFSET) &&
              get_count(&r.stored_bytes, in + AT_OFFSET + 8) &&
              get_count(&r.raw_bytes, in + AT_OFFSET + 16) && get32(in + AT_RESERVED) == 0 &&
              r.box.ndim <= BOX_NDIM_MAX;

    for (int d = 0; d < BOX_NDIM_MAX && ok; d++) {
        int64_t lo = 0, len = 0;

        ok = get_count(&lo, in + AT_LO + 8 * d) && get_count(&len, in + AT_LEN + 8 * d);
        if (d < r.box.ndim) {
            r.box.lo[d] = lo;
            r.box.len[d] = len;
        } else {
            ok = ok && lo == 0 && len == 0;
        }
    }
    r.crc32c = get32(in + AT_CRC);
    r.digest.d[0] = get64(in + AT_DIGEST);
    r.digest.d[1] = get64(in + AT_DIGEST + 8);
    *out = r;
    return ok;
}

static int by_offset(const void *a, const void *b)
{
    const struct row_span *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

tp_status rows_sort_spans(struct row_span **out, const struct shard_row *rows, int64_t n_rows,
                          struct tp_err *err)
{
    struct row_span *spans = calloc((size_t)n_rows + 1, sizeof *spans);

    if (!spans)
        return tp_fail(err, TP_E_NOMEM, "no memory for %lld rows of an index", (long long)n_rows);
    for (int64_t i = 0; i < n_rows; i++) {
        spans[i].offset = rows[i].offset;
        spans[i].end = rows[i].offset + rows[i].stored_bytes;
    }
    qsort(spans, (size_t)n_rows, sizeof *spans, by_offset);
    *out = spans;
    return TP_OK;
}

static tp_status hash_range(struct hash *h, int fd, const char *path, int64_t from, int64_t to,
                            unsigned char *buf, int64_t buf_bytes, struct tp_err *err)
{
    while (from < to) {
        int64_t n = to - from < buf_bytes ? to - from : buf_bytes;
        tp_status st = file_read_at(fd, path, from, buf, (size_t)n, err);

        if (st)
            return st;
        hash_add(h, buf, (size_t)n);
        from += n;
    }
    return TP_OK;
}

tp_status rows_hash_rest(char out[HASH_TEXT], int fd, const char *path, int64_t size,
                         const struct shard_row *rows, int64_t n_rows, struct tp_err *err)
{
    enum { BUFFER = 256 << 10 };
    unsigned char *buf = malloc(BUFFER);
    struct row_span *spans = NULL;
    struct hash *h = NULL;
    char text[HASH_TEXT];
    int64_t from = 0;
    tp_status st = TP_OK;

    if (!buf) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", path);
        goto done;
    }
    TP_TRY(rows_sort_spans(&spans, rows, n_rows, err));
    TP_TRY(hash_new(&h, err));
    for (int64_t i = 0; i < n_rows; i++) {
        TP_TRY(hash_range(h, fd, path, from, spans[i].offset, buf, BUFFER, err));
        from = spans[i].end;
    }
    TP_TRY(hash_range(h, fd, path, from, size, buf, BUFFER, err));
done:
    if (h)
        hash_text(h, text);
    if (!st)
        memcpy(out, text, HASH_TEXT);
    free(spans);
    free(buf);
    return st;
}
