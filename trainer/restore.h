/*
 * trainer/restore.h - the state that a run begins with: the newest checkpoint, of any layout, or a
 * folder of safetensors, or random weights. Each rank reads only the boxes that it holds.
 */
#ifndef TRAINER_RESTORE_H
#define TRAINER_RESTORE_H

#include <limits.h>
#include <stdbool.h>

#include "trainer/resume_diff.h"
#include "trainer/trainer.h"

enum restore_kind { RESTORE_RANDOM, RESTORE_SAFETENSORS, RESTORE_CKPT };

struct restore_report {
    enum restore_kind kind;
    bool root_was_empty; /* --resume=auto found nothing, so the run starts from the beginning */
    char from[PATH_MAX]; /* step directory, or folder of safetensors */
    char layout[SPEC_TEXT_MAX];               /* of the checkpoint */
    int64_t bytes_read, bytes_needed;         /* by this rank: read from files; needed */
    int64_t all_bytes_read, all_bytes_needed; /* by all ranks */
    char warning[RESUME_DIFF_MAX];            /* differences from the run that saved it, or "" */
    char damaged[NAME_MAX + 1]; /* rank 0: a newer, damaged step that is skipped, or "" */
};

/* Fill weights, moments and position of t. Collective; on failure every rank gets the message.
 * TP_E_EXISTS: no --resume, but the root has checkpoints. TP_E_NOTFOUND: --resume=must, but there
 * is no checkpoint. TP_E_USAGE: the checkpoint is of another model. */
tp_status restore_start(struct trainer *t, struct restore_report *r, struct tp_err *err);

#endif
