/*
 * ckpt/step_cleaner.h - ROOT/step-N/cleaner in a store: who last removed objects of a step. Inside
 * ckpt/ only.
 *
 * A store has no locks. A program that removes shards which have no manifest, or a whole step,
 * could take the shards of a writer that is alive for them. So it says before that it does: it
 * writes its id to `cleaner`, and then looks whether there is a manifest that it must not remove. A
 * writer creates its manifest, and then looks whether there is another cleaner than when it began.
 * Whatever the order of the four, one of the two notices the other.
 */
#ifndef CKPT_STEP_CLEANER_H
#define CKPT_STEP_CLEANER_H

#include <stdbool.h>

#include "ckpt/manifest.h"
#include "core/err.h"
#include "storage/folder_entry.h"

#define STEP_CLEANER_FILE "cleaner"

/* The id of the last cleaner of the step in dir; "": there was none. */
tp_status step_cleaner_read(char id[SAVE_ID_TEXT], const char *dir, struct tp_err *err);
tp_status step_cleaner_write(const char *dir, const char *id, struct tp_err *err);

/* Whether an entry of a step is a shard. */
bool step_cleaner_is_shard(const struct folder_entry *entry);

/* Delete the shards among the entries of the step in dir, several at a time. */
tp_status step_cleaner_remove_shards(const char *dir, const struct folder_entry *entries, int n,
                                     struct tp_err *err);

#endif
