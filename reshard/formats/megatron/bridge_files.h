/*
 * reshard/formats/megatron/bridge_files.h - the files of Megatron-Bridge beside a torch_dist
 * checkpoint: run_config.yaml, and train_state.pt with step and consumed samples. A target of the
 * same format gets them as extras (reshard/formats/pieces/piece.h).
 */
#ifndef RESHARD_FORMATS_MEGATRON_BRIDGE_FILES_H
#define RESHARD_FORMATS_MEGATRON_BRIDGE_FILES_H

#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/pieces/piece.h"

/* Numbers of train_state.pt; negative: it has none. */
struct bridge_files_counters {
    int64_t step, train_samples, skipped_samples, valid_samples;
};

/* Whether this is the name of one of these extras, which are no entries of common.pt. */
bool bridge_files_is(const char *name);

/* Note the files that the folder `dir` has, and read the counters. TP_E_CORRUPT: one is damaged. */
tp_status bridge_files_read(struct bridge_files_counters *out, struct piece_source *s,
                            const char *dir, struct tp_err *err);

/* Say that they are not written, in a format that has no place for them. */
void bridge_files_leave(const struct export_contents *q);

/* Write those that q->extras has into the folder `dir`: run_config.yaml with the sizes of the
 * target, and without the random state, which Bridge would else ask for; train_state.pt as it is,
 * where it is of q->step. */
tp_status bridge_files_write(const struct export_contents *q, const char *dir,
                             const struct megatron_args_sizes *sizes, struct tp_err *err);

#endif
