/*
 * reshard/linked_shards.h - a step at another layout that consists of the source's files: hard
 * links, and a manifest of its own.
 *
 * Which rank's file stores a box is the writer's choice (docs/FORMAT.md, section 3). So when tensor
 * parallelism cuts as before and the new layout has a rank for every file, all files can stay as
 * they are, whatever happens to pp, vpp, dp, cp, sp and zero. Payload is neither read nor written.
 */
#ifndef RESHARD_LINKED_SHARDS_H
#define RESHARD_LINKED_SHARDS_H

#include "ckpt/root.h"
#include "core/err.h"

enum { LINKED_SHARDS_TEXT = 160 };

/* Whether the files of step `from` can be those of layout `to`, whose tensor i is the source's
 * tensor ids[i], in the root `out`, which may not exist yet. False: `why` says why not. */
bool linked_shards_possible(const struct ckpt_found *from, const struct layout *to, const int *ids,
                            const char *out, char why[LINKED_SHARDS_TEXT]);

/* Check everything of the files but payload: sizes, indexes, HDF5 structures. rank_bytes[rank],
 * which must be 0, receives the payload of each rank's file. TP_E_CORRUPT: a shard is damaged. */
tp_status linked_shards_check(const struct ckpt_found *from, int64_t *rank_bytes,
                              struct tp_err *err);

/* Link the files into the directory `dir`, a transaction's, and fsync them. */
tp_status linked_shards_make(const struct ckpt_found *from, const char *dir, struct tp_err *err);

#endif
