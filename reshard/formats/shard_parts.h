/*
 * reshard/formats/shard_parts.h - a shard that is read in parts of its rows, and checked
 * afterwards: its checksums are of whole rows, so those of parts are added up as they are read, in
 * any order and from any thread or process.
 */
#ifndef RESHARD_FORMATS_SHARD_PARTS_H
#define RESHARD_FORMATS_SHARD_PARTS_H

#include "ckpt/shard.h"
#include "comm/comm.h"

/* What was read of a row: words of `sums`. */
enum { PART_SUM_CRC, PART_SUM_BYTES, PART_SUM_WORDS };

struct shard_parts {
    const char *dir;             /* of the shard, for messages; borrowed */
    struct shard_reader *reader; /* NULL: the shard is not read from */
    const struct shard_row *rows;
    int64_t n_rows;
    uint64_t *sums;            /* [n_rows * PART_SUM_WORDS] */
    struct part_range *ranges; /* [n_rows] */
};

/* Make room for the sums of p's rows. The rest of p is zero. */
tp_status shard_parts_begin(struct shard_parts *p, struct tp_err *err);

/* Read n bytes at `skip` of a row, and add to its sums. Thread safe. */
tp_status shard_parts_read(struct shard_parts *p, int64_t row, int64_t skip, void *buf, int64_t n,
                           struct tp_err *err);

/* Compare the checksums of rows of which anything was read, by all processes of comm together when
 * it is not NULL (collective; rank 0 compares); what is missing of a row is read. *buf is NULL or a
 * buffer of an earlier call; the caller frees it. *more_bytes grows by what was read here.
 * TP_E_CORRUPT names file, tensor, box and both checksums. */
tp_status shard_parts_check(struct shard_parts *p, struct comm *comm, char **buf,
                            int64_t *more_bytes, struct tp_err *err);

void shard_parts_close(struct shard_parts *p);

#endif
