/*
 * ckpt/row_sums.h - the sums of a shard's rows while they are written: CRC, digest, and a proof
 * that every byte was written once.
 *
 * ROW_SUM_WORDS words a row, so that processes can send each other what they have and a journal can
 * keep it. Parts of a row are added in any order, by any thread or process. The first word has two
 * halves: below, the exclusive or of the parts' CRCs (crc32c_part); above, a trace of what was
 * written: each piece [from, to) of the row adds mark(from) ^ mark(to), which telescopes to
 * mark(0) ^ mark(end) when pieces tile the row. The other two are the digest.
 */
#ifndef CKPT_ROW_SUMS_H
#define CKPT_ROW_SUMS_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest.h"

enum { ROW_SUM_WORDS = 3 };

/* The sums of n bytes at `skip` of a row of row_bytes, which have this digest. */
void row_sums_of(uint64_t sum[ROW_SUM_WORDS], const void *data, int64_t skip, int64_t n,
                 int64_t row_bytes, struct digest digest);

/* Add sums of other parts; n words, of whole rows. */
void row_sums_add(uint64_t *into, const uint64_t *from, int64_t n);

/* The digest of a row, or of what was written of it so far. */
struct digest row_sum_digest(const uint64_t *sum);

/* The CRC of a row of row_bytes. False: not every byte of it was written once. */
bool row_sum_crc(uint32_t *crc32c, const uint64_t *sum, int64_t row_bytes);

#endif
