/*
 * reshard/port_ckpt.h - a checkpoint's shards as a source or a target of the engine.
 */
#ifndef RESHARD_PORT_CKPT_H
#define RESHARD_PORT_CKPT_H

#include "ckpt/commit.h"
#include "reshard/engine.h"
#include "reshard/move_journal.h"

/* ---- source: tensors of a manifest, chosen and numbered by the caller ---- */

struct ckpt_source;

/* Open the shards of dir that hold any of `ids` (manifest tensor ids); engine tensor i is ids[i],
 * a region is a stored box. The checksums of chunks are added up as their parts are read, in any
 * order; the port's `check` compares those of chunks that were read whole (by all processes of comm
 * together, when it is not NULL) and reads the rest of those that were read in part.
 * TP_E_CORRUPT: a shard is missing or damaged, or its chunks do not make up a box. */
tp_status ckpt_source_open(struct ckpt_source **out, const char *dir, const struct manifest *m,
                           const int *ids, int n_ids, struct comm *comm, struct tp_err *err);
const struct reshard_endpoint *ckpt_source_port(const struct ckpt_source *s);

/* Chunks in the shards that are read: rows of their tables. */
int64_t ckpt_source_rows(const struct ckpt_source *s);

/* What has been added up of the chunks that were read, an array a shard: with them, a later run
 * goes on as if it had read those parts itself. `sums` has room for them, or is NULL. Returns how
 * many arrays. */
int ckpt_source_sums(const struct ckpt_source *s, struct sums *sums);

/* Bytes that were read besides what was asked for: the shards' tables, and the rest of chunks that
 * were read in part, which `check` reads. */
int64_t ckpt_source_other_bytes(const struct ckpt_source *s);

/* Whether what was written of an engine tensor has the digest that the shards' indexes give for it,
 * however both are cut; types must be the same. TP_E_CORRUPT names the tensor as `name`. */
tp_status ckpt_source_compare(const struct ckpt_source *s, int tensor, const char *name,
                              const struct digest *written, struct tp_err *err);
void ckpt_source_close(struct ckpt_source *s);

/* ---- target: a new step with a layout, in a transaction ---- */

struct ckpt_target;

/* A target for planning: nothing is created yet. Engine tensor i is layout->tensors[i], a region is
 * a box that some rank writes. layout and comm (NULL: this process alone) outlive it. */
tp_status ckpt_target_plan(struct ckpt_target **out, const struct layout *layout, struct comm *comm,
                           struct tp_err *err);

/* Create the shards in txn->tmp; now the port can be written to. Collective over comm: rank 0
 * creates, the others join; they need only txn->tmp. All get the same status. */
tp_status ckpt_target_create(struct ckpt_target *t, const struct ckpt_txn *txn, struct tp_err *err);

/* ---- going on, in one process (comm is NULL) ---- */

/* As ckpt_target_create, for shards that a dead process created in txn->tmp. */
tp_status ckpt_target_recreate(struct ckpt_target *t, const struct ckpt_txn *txn,
                               struct tp_err *err);

/* Forget the shards; then they can be created again elsewhere. */
void ckpt_target_reset(struct ckpt_target *t);

/* What has been added up of what was written; as ckpt_source_sums. After create or recreate. */
int ckpt_target_sums(const struct ckpt_target *t, struct sums *sums);

/* SHA-256 of what lies where in the shards. After create or recreate. */
tp_status ckpt_target_places(const struct ckpt_target *t, char sha256[JOURNAL_SHA_TEXT],
                             struct tp_err *err);

/* Return when all that was written so far lasts. */
tp_status ckpt_target_sync(const struct ckpt_target *t, struct tp_err *err);

const struct reshard_endpoint *ckpt_target_port(const struct ckpt_target *t);

/* Bytes of tensors that a rank's file will hold; 0: it has none. */
int64_t ckpt_target_rank_bytes(const struct ckpt_target *t, int rank);

/* Chunks in all files: rows of their tables. */
int64_t ckpt_target_rows(const struct ckpt_target *t);

/* After move_execute: combine checksums over processes, finish every shard (its index, fsync);
 * m->shards (in the arena) is filled on rank 0. Collective; all get the same status. */
tp_status ckpt_target_finish(struct ckpt_target *t, struct manifest *m, struct arena *arena,
                             struct tp_err *err);

/* What was written, per engine tensor; on rank 0, after ckpt_target_finish. */
struct digest ckpt_target_digest(const struct ckpt_target *t, int tensor);
void ckpt_target_close(struct ckpt_target *t);

#endif
