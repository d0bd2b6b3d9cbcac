/* ckpt/chunk.c - see ckpt/chunk.h. */
#include "ckpt/chunk.h"

#include <endian.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"

/* ---- sizes ---- */

enum {
    PARTS = 16, /* of a tensor's rows: cuts to 2, 4, 8 and 16 ranks fall between them */
    DIVISORS_TRIED = 64,
    CHUNK_BYTES_MIN = 64 << 10,
    UNALIGNED_BYTES = 1 << 20, /* of a chunk where cuts cannot fall between chunks: small, so that a
                                  reader of a part reads little else */
};

/* Rows per part when `rows` is divided into equal parts of at most `most` rows, as few parts as
 * possible; 0: no number of parts near the fewest divides the rows. */
static int64_t divide_evenly(int64_t rows, int64_t most)
{
    int64_t fewest = (rows + most - 1) / most;

    for (int64_t parts = fewest; parts < fewest + DIVISORS_TRIED; parts++)
        if (rows % parts == 0)
            return rows / parts;
    return 0;
}

/* Rows of a chunk of a tensor that has tensor_rows. */
static int64_t chunk_rows(int64_t tensor_rows, int64_t row_bytes)
{
    int64_t parts = PARTS, rows, most = CHUNK_BYTES_MAX / row_bytes;

    while (parts > 1 && (tensor_rows % parts || tensor_rows / parts * row_bytes < CHUNK_BYTES_MIN))
        parts /= 2;
    rows = tensor_rows / parts;
    if (rows <= most)
        return rows;
    rows = divide_evenly(rows, most);
    if (rows * row_bytes < UNALIGNED_BYTES)
        rows = row_bytes < UNALIGNED_BYTES ? UNALIGNED_BYTES / row_bytes : 1;
    return rows;
}

int64_t chunk_elements(const struct tensor *t, const struct box *b)
{
    int64_t elem = dtype_bytes(t->dtype), most = CHUNK_BYTES_MAX / elem, width, rows;

    if (b->ndim == 0 || box_is_empty(b))
        return most;
    width = box_elements(b) / b->len[0];
    if (width > most)
        return most; /* a row is larger than a chunk may be */
    rows = t->shape[0];
    if (t->placement.dim == 0 && t->placement.blocks > 1)
        rows = tensor_block_of(t, t->placement.blocks - 1).len;
    return chunk_rows(rows, width * elem) * width;
}

/* Elements of the whole tensor for each index of axis `axis`. */
static int64_t elements_after(const struct tensor *t, int axis)
{
    int64_t n = 1;

    for (int d = axis + 1; d < t->ndim; d++)
        n *= t->shape[d];
    return n;
}

int64_t chunk_elements_packed(const struct tensor *t, const struct box *b)
{
    const int64_t most = CHUNK_BYTES_MAX / dtype_bytes(t->dtype);
    int64_t usual = chunk_elements(t, b), width = 1, rows;
    int axis = 0;

    if (b->ndim == 0 || box_is_empty(b))
        return usual;
    while (axis < b->ndim - 1 && elements_after(t, axis) > most)
        axis++;
    for (int d = axis + 1; d < b->ndim; d++)
        width *= b->len[d];
    rows = most / elements_after(t, axis);
    if (axis == 0 && usual > rows * width && usual % width == 0) {
        int64_t even = divide_evenly(usual / width, rows);

        rows = even > rows / 2 ? even : rows;
    }
    return usual < rows * width ? usual : rows * width;
}

/* ---- entries ---- */

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

void chunk_entry_encode(unsigned char *out, const struct chunk_entry *entry)
{
    memset(out, 0, CHUNK_ENTRY_BYTES);
    put32(out, (uint32_t)entry->tensor);
    put32(out + 4, (uint32_t)entry->part);
    put32(out + 8, (uint32_t)entry->box.ndim);
    put32(out + 12, (uint32_t)entry->codec);
    for (int d = 0; d < entry->box.ndim; d++) {
        put64(out + AT_LO + 8 * d, (uint64_t)entry->box.lo[d]);
        put64(out + AT_LEN + 8 * d, (uint64_t)entry->box.len[d]);
    }
    put64(out + AT_OFFSET, (uint64_t)entry->offset);
    put64(out + AT_OFFSET + 8, (uint64_t)entry->stored_bytes);
    put64(out + AT_OFFSET + 16, (uint64_t)entry->raw_bytes);
    put32(out + AT_CRC, entry->crc32c);
    put64(out + AT_DIGEST, entry->digest.d[0]);
    put64(out + AT_DIGEST + 8, entry->digest.d[1]);
}

/* False: the number does not fit an int. */
static bool get_int(int *out, const unsigned char *p)
{
    uint32_t v = get32(p);

    *out = (int)v;
    return v <= INT32_MAX;
}

/* False: the number is negative. */
static bool get_count(int64_t *out, const unsigned char *p)
{
    uint64_t v = get64(p);

    *out = (int64_t)v;
    return v <= INT64_MAX;
}

bool chunk_entry_decode(struct chunk_entry *out, const unsigned char *in)
{
    struct chunk_entry e = { 0 };
    bool ok = get_int(&e.tensor, in) && get_int(&e.part, in + 4) && get_int(&e.box.ndim, in + 8) &&
              get_int(&e.codec, in + 12) && get_count(&e.offset, in + AT_OFFSET) &&
              get_count(&e.stored_bytes, in + AT_OFFSET + 8) &&
              get_count(&e.raw_bytes, in + AT_OFFSET + 16) && get32(in + AT_RESERVED) == 0 &&
              e.box.ndim <= BOX_NDIM_MAX;

    for (int d = 0; d < BOX_NDIM_MAX && ok; d++) {
        int64_t lo = 0, len = 0;

        ok = get_count(&lo, in + AT_LO + 8 * d) && get_count(&len, in + AT_LEN + 8 * d);
        if (d < e.box.ndim) {
            e.box.lo[d] = lo;
            e.box.len[d] = len;
        } else {
            ok = ok && lo == 0 && len == 0;
        }
    }
    e.crc32c = get32(in + AT_CRC);
    e.digest.d[0] = get64(in + AT_DIGEST);
    e.digest.d[1] = get64(in + AT_DIGEST + 8);
    *out = e;
    return ok;
}

/* ---- payloads ---- */

static int by_offset(const void *a, const void *b)
{
    const struct chunk_range *x = a, *y = b;

    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

tp_status chunks_sort_ranges(struct chunk_range **out, const struct chunk_entry *chunks, int64_t n,
                             struct tp_err *err)
{
    struct chunk_range *ranges = calloc((size_t)n + 1, sizeof *ranges);

    if (!ranges)
        return tp_fail(err, TP_E_NOMEM, "no memory for an index of %lld chunks", (long long)n);
    for (int64_t i = 0; i < n; i++) {
        ranges[i].offset = chunks[i].offset;
        ranges[i].end = chunks[i].offset + chunks[i].stored_bytes;
    }
    qsort(ranges, (size_t)n, sizeof *ranges, by_offset);
    *out = ranges;
    return TP_OK;
}
