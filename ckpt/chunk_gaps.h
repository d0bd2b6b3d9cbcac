/*
 * ckpt/chunk_gaps.h - SHA-256 of the bytes of a shard outside payloads: the HDF5 structures, and
 * /index. It can be computed while the payloads are read, so that a file is read once, from its
 * beginning to its end.
 */
#ifndef CKPT_CHUNK_GAPS_H
#define CKPT_CHUNK_GAPS_H

#include <stdbool.h>

#include "ckpt/chunk.h"
#include "ckpt/sha256.h"
#include "storage/object.h"

/* An open shard: size bytes, of which n chunks are payload. */
struct chunk_file {
    const struct object *object;
    const char *path; /* for messages */
    int64_t size;
    const struct chunk_entry *chunks; /* in any order; inside the file, without overlaps */
    int64_t n;
};

/* A gap is what is before a payload and after the one before it, or after the last one. */
struct chunk_gaps;

/* The file is copied, what it points to is borrowed. */
tp_status chunk_gaps_new(struct chunk_gaps **out, const struct chunk_file *file,
                         struct tp_err *err);
void chunk_gaps_free(struct chunk_gaps *g);

/* The chunk whose payload is number `position` in the file. */
int64_t chunk_gaps_chunk(const struct chunk_gaps *g, int64_t position);

/* This payload was read, once: hash the gaps before it, unless a payload before those was not read
 * yet. *all: it was the last payload to be read. Thread safe. */
tp_status chunk_gaps_passed(struct chunk_gaps *g, int64_t position, bool *all, struct tp_err *err);

/* The hash: all gaps that are left are read. */
tp_status chunk_gaps_end(struct chunk_gaps *g, char out[SHA256_TEXT], struct tp_err *err);

/* After chunk_gaps_end: whether the first gap begins with these bytes, at most 8. */
bool chunk_gaps_begin_with(const struct chunk_gaps *g, const void *bytes, size_t n);

/* Hash all gaps, and nothing else. */
tp_status chunks_hash_outside(char out[SHA256_TEXT], const struct chunk_file *file,
                              struct tp_err *err);

#endif
