/*
 * ckpt/chunk_sums.h - checksums of chunks while they are written.
 *
 * A chunk may be written in parts, in any order, by any thread or process. Each chunk has
 * CHUNK_SUM_WORDS words that add up over its parts, so processes can send them to each other and a
 * journal can keep them. They give the chunk's CRC32C and digest, and show whether every byte was
 * written exactly once:
 *   word 0, lower half: the exclusive or of the CRCs of the parts (crc32c_part);
 *   word 0, upper half: a trace. A part [from, to) adds mark(from) ^ mark(to). When the parts tile
 *     the chunk, the marks of all inner edges cancel, and mark(0) ^ mark(chunk_bytes) is left;
 *   words 1 and 2: the digest.
 */
#ifndef CKPT_CHUNK_SUMS_H
#define CKPT_CHUNK_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest.h"

enum { CHUNK_SUM_WORDS = 3 };

/* The n bytes at offset `skip` of a chunk; digest is that of their elements. */
struct chunk_part {
    const void *data;
    int64_t skip, n;
    struct digest digest;
};

/* The sums of one part of a chunk that has chunk_bytes. */
void chunk_sums_of(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part,
                   int64_t chunk_bytes);

/* The same for a part whose usual CRC32C is known; part->data is not used. */
void chunk_sums_known(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part, uint32_t crc32c,
                      int64_t chunk_bytes);

/* The same for a part whose crc32c_part is known. */
void chunk_sums_given(uint64_t sum[CHUNK_SUM_WORDS], const struct chunk_part *part, uint32_t crc);

/* Add the sums of other parts. n counts words, of whole chunks. */
void chunk_sums_add(uint64_t *into, const uint64_t *from, int64_t n);

/* The digest of what was written of a chunk so far. */
struct digest chunk_sums_digest(const uint64_t *sum);

/* The CRC32C of a chunk that has chunk_bytes. False: not every byte was written exactly once. */
bool chunk_sums_crc(uint32_t *crc32c, const uint64_t *sum, int64_t chunk_bytes);

#endif
