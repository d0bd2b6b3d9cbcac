/*
 * reshard/formats/checkpoint/shard_parts.h - a shard of which parts of chunks are read.
 *
 * Checksums cover whole chunks. So the checksums of the parts are added up while they are read, in
 * any order and by any thread or process, and compared at the end.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_SHARD_PARTS_H
#define RESHARD_FORMATS_CHECKPOINT_SHARD_PARTS_H

#include "ckpt/shard.h"
#include "comm/control.h"
#include "reshard/formats/checkpoint/chunk_cache.h"

/* What was read of a chunk: its words in `sums`. */
enum { PART_SUM_CRC, PART_SUM_BYTES, PART_SUM_WORDS };

struct shard_parts {
    const char *dir;             /* of the shard, for messages; borrowed */
    struct shard_reader *reader; /* NULL: nothing of this shard is wanted */
    const struct chunk_entry *chunks;
    int64_t n_chunks;
    struct chunk_cache *cache;        /* for compressed chunks; borrowed */
    uint64_t *sums;                   /* [n_chunks * PART_SUM_WORDS] */
    struct shard_parts_range *ranges; /* [n_chunks] */
};

/* Allocate sums for p's chunks. */
tp_status shard_parts_begin(struct shard_parts *p, struct tp_err *err);

/* Read n bytes at offset `skip` of a chunk and add to its sums. A compressed chunk is checked now,
 * and has no sums. Thread safe. */
tp_status shard_parts_read(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf, int64_t n,
                           struct tp_err *err);

/* Say that this will be read (object_will_read). Of a compressed chunk, all is read when its first
 * byte is. Thread safe. */
void shard_parts_will_read(struct shard_parts *p, int64_t chunk, int64_t skip, int64_t n);

/* The same in two steps: read without checksums; and add what was read, whose crc32c_part is `crc`.
 * Nothing is added for a compressed chunk, which the first step has checked. */
tp_status shard_parts_read_unsummed(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf,
                                    int64_t n, struct tp_err *err);
void shard_parts_add(struct shard_parts *p, int64_t chunk, int64_t skip, int64_t n, uint32_t crc);

/* The sums are those of an earlier process, so it is unknown which ranges of the chunks they cover:
 * chunks that are incomplete in the end are read again as a whole. */
void shard_parts_resumed(struct shard_parts *p);

/* Compare the checksums of the chunks of which anything was read; what is missing of a chunk is
 * read now. With control, all processes together: collective, and rank 0 compares. *buf is NULL or
 * the buffer of an earlier call, which the caller frees. *more_bytes grows by what was read here.
 * TP_E_CORRUPT names file, tensor, box and both checksums. */
tp_status shard_parts_check(struct shard_parts *p, struct comm_control *control, char **buf,
                            int64_t *more_bytes, struct tp_err *err);

void shard_parts_close(struct shard_parts *p);

#endif
