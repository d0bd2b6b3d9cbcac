/*
 * ckpt/shard_read_back.h - reads what a process that died wrote into a shard, and compares it with
 * the checksums of what that process wanted to write (shard_sums).
 *
 *     read each run that was written; compare. Chunks that differ stay suspect: write their runs
 *     again, restore shard_sums, which counted them twice; read and compare again.
 */
#ifndef CKPT_SHARD_READ_BACK_H
#define CKPT_SHARD_READ_BACK_H

#include "ckpt/shard.h"

struct shard_read_back;

/* Begin with every chunk that has been written to, fully or in part, as suspect. w is borrowed. */
tp_status shard_read_back_begin(struct shard_read_back **out, struct shard_writer *w,
                                struct tp_err *err);
void shard_read_back_end(struct shard_read_back *b);

/* Whether a run of box number `box` has bytes of a suspect chunk. */
bool shard_read_back_wants(const struct shard_read_back *b, int box, const struct box *run);

/* Read the suspect chunks' bytes of a run that was written, and add up their checksums. Each run
 * once before each comparison. buf has room for the run. Thread safe. */
tp_status shard_read_back_run(struct shard_read_back *b, int box, const struct box *run, void *buf,
                              struct tp_err *err);

/* Compare: chunks whose checksums are those of what was written are no longer suspect. Returns how
 * many are left; they can be read again. */
int64_t shard_read_back_compare(struct shard_read_back *b);

#endif
