/*
 * reshard/port_ckpt.h - a checkpoint's shards as a source or a target of the engine.
 */
#ifndef RESHARD_PORT_CKPT_H
#define RESHARD_PORT_CKPT_H

#include "ckpt/commit.h"
#include "reshard/engine.h"

/* ---- source: tensors of a manifest, chosen and numbered by the caller ---- */

struct ckpt_source;

/* Open the shards of dir that hold any of `ids` (manifest tensor ids); engine tensor i is ids[i].
 * Every chunk that is read in part is read once by the engine when everything is moved; `check`
 * then compares the checksum of every chunk that was read whole, and rereads whole those that were
 * read in part. */
tp_status ckpt_source_open(struct ckpt_source **out, const char *dir, const struct manifest *m,
                           const int *ids, int n_ids, struct tp_err *err);
const struct port *ckpt_source_port(const struct ckpt_source *s);

/* Sum of the digests in the index, per engine tensor. */
struct digest ckpt_source_digest(const struct ckpt_source *s, int tensor);
void ckpt_source_close(struct ckpt_source *s);

/* ---- target: a new step with a layout, in a transaction ---- */

struct ckpt_target;

/* Create the shards of `layout` in t->tmp; engine tensor i is layout->tensors[i]. Collective over
 * comm when not NULL (rank 0 creates, the others join). */
tp_status ckpt_target_create(struct ckpt_target **out, const struct ckpt_txn *t,
                             const struct layout *layout, struct comm *comm, struct tp_err *err);
const struct port *ckpt_target_port(const struct ckpt_target *t);

/* After move_execute: combine checksums over processes, finish every shard; m->shards (in the
 * arena) is filled on rank 0. */
tp_status ckpt_target_finish(struct ckpt_target *t, struct manifest *m, struct arena *arena,
                             struct tp_err *err);
struct digest ckpt_target_digest(const struct ckpt_target *t, int tensor);
void ckpt_target_close(struct ckpt_target *t);

#endif
