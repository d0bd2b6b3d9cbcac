/*
 * ckpt/shard_row.h - rows of /index: bytes, and which rows a box has. Inside ckpt/ only.
 */
#ifndef CKPT_SHARD_ROW_H
#define CKPT_SHARD_ROW_H

#include "ckpt/hash.h"
#include "ckpt/shard.h"

/* A row as the SHARD_ROW_BYTES bytes of the file, little-endian. */
void row_encode(unsigned char *out, const struct shard_row *row);

/* The inverse. False: reserved bytes or unused axes are not zero, or a number is negative. */
bool row_decode(struct shard_row *out, const unsigned char *in);

/* SHA-256 of all bytes of the file (size bytes) that belong to no row's payload. rows are in any
 * order, inside the file, and do not overlap. */
tp_status rows_hash_rest(char out[HASH_TEXT], int fd, const char *path, int64_t size,
                         const struct shard_row *rows, int64_t n_rows, struct tp_err *err);

/* The extents that rows occupy, sorted by offset; malloc'ed. */
struct row_span {
    int64_t offset, end;
};
tp_status rows_sort_spans(struct row_span **out, const struct shard_row *rows, int64_t n_rows,
                          struct tp_err *err);

#endif
