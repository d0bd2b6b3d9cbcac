/*
 * trainer/restore.h - where a run begins: the newest checkpoint whatever layout wrote it, or a
 * folder of safetensors, or random weights. Each rank reads just the boxes it holds.
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
    bool root_was_empty;              /* --resume=auto found nothing and began from the start */
    char from[PATH_MAX];              /* step directory, or folder of safetensors */
    char layout[SPEC_TEXT_MAX];       /* that wrote the checkpoint */
    int64_t bytes_read, bytes_needed; /* by this rank: from files; of what it asked for */
    int64_t all_bytes_read, all_bytes_needed; /* by all ranks */
    char warning[DRIFT_TEXT_MAX];             /* what differs from the run that was saved, or "" */
    char damaged[NAME_MAX + 1];               /* rank 0: a newer step that was passed over, or "" */
};

/* Fill weights, moments and position of t. Collective; on failure every rank gets the sentence.
 * TP_E_EXISTS: no --resume, but the root has checkpoints. TP_E_NOTFOUND: --resume=must and none.
 * TP_E_USAGE: the checkpoint is of another model. */
tp_status restore_start(struct trainer *t, struct restore_report *r, struct tp_err *err);

#endif
