/*
 * trainer/snapshot.h - saving while training continues.
 *
 * At a step boundary every rank queues copies of its state to pinned memory, on a queue of its
 * own. The next update of the weights waits for these copies. When they are done, a thread writes
 * the files. When the threads of all ranks are done, rank 0 commits at the next step boundary, in
 * another thread. There is only one save at a time: the next one waits for it.
 *
 *     begin -> COPYING -- poll --> WRITING -- all done, advance --> COMMITTING -- advance --> IDLE
 *
 * In a store a phase comes before the commit, in which the shards of all ranks appear.
 */
#ifndef TRAINER_SNAPSHOT_H
#define TRAINER_SNAPSHOT_H

#include <stdbool.h>

#include "ckpt/root_lock.h"
#include "trainer/trainer.h"

struct snapshot;

/* Begin to open, before the state of t is restored: one rank alone pins memory for the copies in a
 * thread, if its device can, which takes 0.3 s for each GiB. Not collective. NULL: no memory, which
 * snapshot_open reports, as any other failure. Free with snapshot_close. */
struct snapshot *snapshot_prepare(const struct trainer *t);

/* Claim the root's next epoch, and get the pinned memory. Collective. force: replace a step that
 * exists (a resumed run). An epoch in the configuration was claimed by an orchestrator for this
 * launch, and is used. `wait` says what happens while another process holds the root's lock; saves
 * wait in the same way, in any thread. TP_E_STALE: a newer job has claimed the root since. */
tp_status snapshot_open(struct snapshot *s, const struct trainer *t, bool force,
                        const struct root_lock_wait *wait, struct tp_err *err);

/* Whether a save is in progress; the same on every rank. */
bool snapshot_is_pending(const struct snapshot *s);

/* Start the thread that writes if the copies are done. Returns whether this rank still has work in
 * this phase. */
bool snapshot_poll(struct snapshot *s);

/* Begin to save the present state of t, after the end of a save in progress. Collective. */
tp_status snapshot_begin(struct snapshot *s, const struct trainer *t, struct tp_err *err);

/* Wait for this phase's threads and begin the next phase. Call it when no rank is busy; then it
 * does not wait. Collective. After a failure there is no new checkpoint, and the unfinished one is
 * removed. */
tp_status snapshot_advance(struct snapshot *s, struct tp_err *err);

/* Advance until no save is pending. Collective. */
tp_status snapshot_wait(struct snapshot *s, struct tp_err *err);

/* From this step on, at the earliest, checkpoints are useless, because a loss is NaN: --keep does
 * not count or remove those before it. The first call counts. */
void snapshot_spare_before(struct snapshot *s, int64_t step);

/* The newest committed step; -1: none yet. */
int64_t snapshot_newest_step(const struct snapshot *s);

/* Free. A save in progress is aborted and removed. s may be NULL. Not collective. */
void snapshot_close(struct snapshot *s);

#endif
