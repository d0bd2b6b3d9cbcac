/*
 * reshard/formats/checkpoint/checkpoint.h - a checkpoint's shards as the source or the target of a
 * transfer.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_CHECKPOINT_H
#define RESHARD_FORMATS_CHECKPOINT_CHECKPOINT_H

#include "ckpt/root.h"
#include "ckpt/shard_clone.h"
#include "comm/control.h"
#include "layout/stored_box.h"
#include "reshard/engine/endpoint.h"

/* ---- source ---- */

struct checkpoint_source;

/* Open the shards of a step that hold any of its manifest's tensors `ids`; tensor i of the transfer
 * is ids[i], and an extent is a stored box. The checksums of chunks are added up while parts of
 * them are read, in any order. The endpoint's `check` compares them, and first reads the rest of
 * chunks that were read in part; with control, all processes together. Everything is borrowed.
 * TP_E_CORRUPT: a shard is missing or damaged, its chunks do not make up a box, or the boxes of any
 * tensor of the manifest do not hold each of its elements once. TP_E_IO also when another program
 * removed or replaced the step. */
tp_status checkpoint_source_open(struct checkpoint_source **out, const struct ckpt_found *step,
                                 const int *ids, int n_ids, struct comm_control *control,
                                 struct tp_err *err);
void checkpoint_source_close(struct checkpoint_source *s);
const struct reshard_endpoint *checkpoint_source_endpoint(const struct checkpoint_source *s);

/* What reading with this many threads needs besides tables and buffers: decompressed chunks. */
int64_t checkpoint_source_memory(const struct checkpoint_source *s, int threads);

/* Bytes that were read in addition to the requested ones: the indexes of the shards, and the rest
 * of chunks that were read in part. */
int64_t checkpoint_source_other_bytes(const struct checkpoint_source *s);

/* The chunks of an extent. Their reader is the source's. */
struct shard_clone checkpoint_source_dataset(const struct checkpoint_source *s, int extent);

/* ---- target: a new step ---- */

struct checkpoint_target;

/* A target for planning; no file is created yet. Tensor i of the transfer is layout->tensors[i],
 * and an extent is a box that some rank stores. layout and control (NULL: this process alone) are
 * borrowed. */
tp_status checkpoint_target_plan(struct checkpoint_target **out, const struct layout *layout,
                                 struct comm_control *control, struct tp_err *err);

/* Before the files are created: compress with this level, on this many threads. Such a target is
 * not cloned into. With control each shard is then written by one of the processes
 * (checkpoint_target_mine), and the files are the same as those of one process. Such a source is
 * opened without control, because several processes may read the same part of it. */
tp_status checkpoint_target_compress(struct checkpoint_target *t, int level, int threads,
                                     struct tp_err *err);

enum { CHECKPOINT_COLLECT_MIN = 4 << 20 };

/* Collect about so many bytes before they are compressed, instead of CHECKPOINT_COLLECT_MIN. */
void checkpoint_target_collect(struct checkpoint_target *t, int64_t flush_bytes);

/* [extents] those that this process writes, for struct transfer. NULL: processes share all. */
const bool *checkpoint_target_mine(const struct checkpoint_target *t);

/* How many processes have no shard to write, because there are fewer shards. */
int checkpoint_target_idle(const struct checkpoint_target *t);

/* What writing needs besides buffers and the entries of chunks; 0: nothing is compressed. */
int64_t checkpoint_target_memory(const struct checkpoint_target *t);

/* Bytes of payload in the files; less than the bytes of the tensors when they are compressed. */
int64_t checkpoint_target_stored_bytes(const struct checkpoint_target *t);
void checkpoint_target_close(struct checkpoint_target *t);
const struct reshard_endpoint *checkpoint_target_endpoint(const struct checkpoint_target *t);

/* Payload bytes of the file of a rank; 0: the rank has no file. */
int64_t checkpoint_target_rank_bytes(const struct checkpoint_target *t, int rank);

/* Chunks in all files. */
int64_t checkpoint_target_chunks(const struct checkpoint_target *t);

/* Create the shards in the directory `dir`, a transaction's; the endpoint can then be written.
 * Collective over control: rank 0 creates the files, the others open them; if each shard belongs
 * to one process, this one creates it. */
tp_status checkpoint_target_create(struct checkpoint_target *t, const char *dir,
                                   struct tp_err *err);

/* Make the chunks of another shard part of an extent; as shard_clone. */
tp_status checkpoint_target_clone(struct checkpoint_target *t, int extent,
                                  const struct shard_clone *chunks, bool *cloned,
                                  struct tp_err *err);

/* After the transfer: combine the checksums of all processes and finish every shard (index, fsync).
 * Collective; m->shards (in the arena) and the digests are filled in on rank 0. */
tp_status checkpoint_target_finish(struct checkpoint_target *t, struct manifest *m,
                                   struct arena *arena, struct tp_err *err);

/* All boxes, ordered by rank, then tensor. Borrowed. */
const struct stored_box *checkpoint_target_boxes(const struct checkpoint_target *t, int *n);

/* After checkpoint_target_finish, for a directory in a store: make all shards appear, on rank 0.
 * Not collective, unless each shard belongs to one process (checkpoint_target_mine): then all call
 * it. After a failure some may have: the caller removes them if they are its own. */
tp_status checkpoint_target_appear(struct checkpoint_target *t, struct tp_err *err);

/* From now on writing and finishing end with TP_E_STOPPED when a signal asks to stop
 * (core/stop.h). */
void checkpoint_target_stops(struct checkpoint_target *t);

/* Remove the shards that this process made to appear in a store, as far as it answers. */
void checkpoint_target_remove(struct checkpoint_target *t);

/* ---- resuming an interrupted transfer; one process only, without comm ----
 *
 * What else it needs is the endpoint's `resumable`. */

/* As checkpoint_target_create, for shards that a process created which died. */
tp_status checkpoint_target_recreate(struct checkpoint_target *t, const char *dir,
                                     struct tp_err *err);

/* Forget the shards; they can then be created in another directory. */
void checkpoint_target_reset(struct checkpoint_target *t);

#endif
