/*
 * ckpt/chunk.h - chunks: the parts of a stored box that have a checksum each, and their entries in
 * the table /index of a shard. docs/FORMAT.md specifies the bytes.
 */
#ifndef CKPT_CHUNK_H
#define CKPT_CHUNK_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/codec.h"
#include "ckpt/digest.h"
#include "ckpt/sha256.h"
#include "core/err.h"
#include "layout/layout.h"
#include "storage/object.h"

enum {
    CHUNK_BYTES_MAX = CODEC_RAW_MAX, /* of a chunk, before compression */
    CHUNK_ENTRY_BYTES = 160,         /* of an entry in the file */
};

/* One entry of /index. */
struct chunk_entry {
    int tensor; /* id: index in the manifest's tensors */
    int part;   /* dataset /GROUP/NAME@part (no suffix for 0) */
    struct box box;
    int64_t offset, stored_bytes,
        raw_bytes;       /* of the payload; stored and raw are equal for codec 0 */
    int64_t frame_bytes; /* raw_bytes of the first chunk of the dataset: what a compressed payload
                            decodes to, with zeros after raw_bytes. Not in the file */
    int codec;           /* enum codec_kind */
    uint32_t crc32c;     /* of the stored bytes */
    struct digest digest;
};

/* Elements of a chunk of b, a box of tensor t: the writer cuts b by box_run with this number. It is
 * chosen so that likely cuts of the tensor's rows, to 2, 4, 8 or 16 ranks, fall between chunks, and
 * a rank that reads its part reads little else. Readers accept any cut. */
int64_t chunk_elements(const struct tensor *t, const struct box *b);

/* The same for a dataset that is compressed. Its chunks are also so small that all chunks of the
 * same rows of the tensor, in all of its boxes, have 4 MiB at most (but never less than a row): a
 * tensor that is written row by row then has few chunks at a time that are complete in part. */
int64_t chunk_elements_packed(const struct tensor *t, const struct box *b);

/* Write an entry as the CHUNK_ENTRY_BYTES bytes of the file. */
void chunk_entry_encode(unsigned char *out, const struct chunk_entry *entry);

/* The inverse. False: a reserved field or an unused axis is not zero, or a number is negative. */
bool chunk_entry_decode(struct chunk_entry *out, const unsigned char *in);

/* ---- the payloads of several chunks ---- */

struct chunk_range {
    int64_t offset, end; /* bytes in the file */
};

/* The payload ranges of n chunks, ascending by offset; malloc'ed. */
tp_status chunks_sort_ranges(struct chunk_range **out, const struct chunk_entry *chunks, int64_t n,
                             struct tp_err *err);

#endif
