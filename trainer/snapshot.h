/*
 * trainer/snapshot.h - saving while training goes on.
 *
 * At a step boundary every rank queues copies of what it has to write to pinned memory, on a queue
 * of its own; the next update of the weights waits for them. Once they are done, a thread writes
 * the files. At later boundaries, once all ranks' threads are done, rank 0 commits (another
 * thread), and once that is done the save is over. One save at a time: a further one waits for it.
 *
 *     begin -> COPYING -- poll --> WRITING -- all done, advance --> COMMITTING -- advance --> IDLE
 */
#ifndef TRAINER_SNAPSHOT_H
#define TRAINER_SNAPSHOT_H

#include <stdbool.h>

#include "trainer/trainer.h"

struct snapshot;

/* Take the root's next epoch and allocate the pinned memory. Collective. force: a step that exists
 * is replaced (a resumed run). When the configuration has an epoch, which an orchestrator took for
 * this launch, that one is used, and TP_E_STALE is returned when a newer job has taken the root. */
tp_status snapshot_open(struct snapshot **out, const struct trainer *t, bool force,
                        struct tp_err *err);

/* Whether a save is under way; the same on every rank. */
bool snapshot_is_pending(const struct snapshot *s);

/* Start the thread if the copies are done. Whether this rank has still work to do in this phase. */
bool snapshot_poll(struct snapshot *s);

/* Begin to save t as it is; waits for a save under way. Collective. */
tp_status snapshot_begin(struct snapshot *s, const struct trainer *t, struct tp_err *err);

/* Go on to the next phase, waiting for this one's threads: call it at once when no rank is busy.
 * Collective. After a failure nothing has appeared and what was begun is removed. */
tp_status snapshot_advance(struct snapshot *s, struct tp_err *err);

/* Advance until no save is pending. Collective. */
tp_status snapshot_wait(struct snapshot *s, struct tp_err *err);

/* The newest committed step, -1 so far. */
int64_t snapshot_newest_step(const struct snapshot *s);

/* Free; a save under way is given up and removed. s may be NULL. Not collective. */
void snapshot_close(struct snapshot *s);

#endif
