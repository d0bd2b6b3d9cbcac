/*
 * reshard/formats/checkpoint.h - a checkpoint's shards as a source or a target of the engine.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_H
#define RESHARD_FORMATS_CHECKPOINT_H

#include "ckpt/commit.h"
#include "ckpt/hash.h"
#include "reshard/engine/transfer.h"

/* ---- source: tensors of a manifest, chosen and numbered by the caller ---- */

struct checkpoint_source;

/* Open the shards of dir that hold any of `ids` (manifest tensor ids); engine tensor i is ids[i],
 * a extent is a stored box. The checksums of chunks are added up as their parts are read, in any
 * order; the endpoint's `check` compares those of chunks that were read whole (by all processes of
 * comm together, when it is not NULL) and reads the rest of those that were read in part.
 * TP_E_CORRUPT: a shard is missing or damaged, or its chunks do not make up a box. */
tp_status checkpoint_source_open(struct checkpoint_source **out, const char *dir,
                                 const struct manifest *m, const int *ids, int n_ids,
                                 struct comm *comm, struct tp_err *err);
const struct reshard_endpoint *checkpoint_source_endpoint(const struct checkpoint_source *s);

/* Chunks in the shards that are read: rows of their tables. */
int64_t checkpoint_source_rows(const struct checkpoint_source *s);

/* What has been added up of the chunks that were read, an array a shard: with them, a later run
 * goes on as if it had read those parts itself. `sums` has room for them, or is NULL. Returns how
 * many arrays. */
int checkpoint_source_sums(const struct checkpoint_source *s, struct reshard_sums *sums);

/* Bytes that were read besides what was asked for: the shards' tables, and the rest of chunks that
 * were read in part, which `check` reads. */
int64_t checkpoint_source_other_bytes(const struct checkpoint_source *s);

/* Whether what was written of an engine tensor has the digest that the shards' indexes give for it,
 * however both are cut; types must be the same. TP_E_CORRUPT names the tensor as `name`. */
tp_status checkpoint_source_compare(const struct checkpoint_source *s, int tensor, const char *name,
                                    const struct digest *written, struct tp_err *err);
void checkpoint_source_close(struct checkpoint_source *s);

/* ---- target: a new step with a layout, in a transaction ---- */

struct checkpoint_target;

/* A target for planning: nothing is created yet. Engine tensor i is layout->tensors[i], a extent is
 * a box that some rank writes. layout and comm (NULL: this process alone) outlive it. */
tp_status checkpoint_target_plan(struct checkpoint_target **out, const struct layout *layout,
                                 struct comm *comm, struct tp_err *err);

/* Create the shards in txn->tmp; now the endpoint can be written to. Collective over comm: rank 0
 * creates, the others join; they need only txn->tmp. All get the same status. */
tp_status checkpoint_target_create(struct checkpoint_target *t, const struct ckpt_txn *txn,
                                   struct tp_err *err);

/* ---- going on, in one process (comm is NULL) ---- */

/* As checkpoint_target_create, for shards that a dead process created in txn->tmp. */
tp_status checkpoint_target_recreate(struct checkpoint_target *t, const struct ckpt_txn *txn,
                                     struct tp_err *err);

/* Forget the shards; then they can be created again elsewhere. */
void checkpoint_target_reset(struct checkpoint_target *t);

/* What has been added up of what was written; as checkpoint_source_sums. After create or recreate.
 */
int checkpoint_target_sums(const struct checkpoint_target *t, struct reshard_sums *sums);

/* SHA-256 of what lies where in the shards. After create or recreate. */
tp_status checkpoint_target_places(const struct checkpoint_target *t, char sha256[HASH_TEXT],
                                   struct tp_err *err);

/* Return when all that was written so far lasts. */
tp_status checkpoint_target_sync(const struct checkpoint_target *t, struct tp_err *err);

const struct reshard_endpoint *checkpoint_target_endpoint(const struct checkpoint_target *t);

/* Bytes of tensors that a rank's file will hold; 0: it has none. */
int64_t checkpoint_target_rank_bytes(const struct checkpoint_target *t, int rank);

/* Chunks in all files: rows of their tables. */
int64_t checkpoint_target_rows(const struct checkpoint_target *t);

/* After transfer_execute: combine checksums over processes, finish every shard (its index, fsync);
 * m->shards (in the arena) is filled on rank 0. Collective; all get the same status. */
tp_status checkpoint_target_finish(struct checkpoint_target *t, struct manifest *m,
                                   struct arena *arena, struct tp_err *err);

/* What was written, per engine tensor; on rank 0, after checkpoint_target_finish. */
struct digest checkpoint_target_digest(const struct checkpoint_target *t, int tensor);
void checkpoint_target_close(struct checkpoint_target *t);

#endif
