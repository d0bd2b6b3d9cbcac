/*
 * trainer/restore.h - the state that a run begins with: a checkpoint of any layout (the newest
 * intact one, or that of --step), or a folder of safetensors, or random weights. Each rank reads
 * only the boxes that it holds.
 */
#ifndef TRAINER_RESTORE_H
#define TRAINER_RESTORE_H

#include <limits.h>
#include <stdbool.h>

#include "reshard/unknown_tensors.h"
#include "trainer/resume_diff.h"
#include "trainer/resume_step.h"
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
    struct resume_step chosen;                /* the step, and the damaged ones that were skipped */
    struct unknown_tensors left_out;          /* rank 0: tensors of the folder that are not used */
    int dequantized;                          /* rank 0: weights of the folder in FP8 or MXFP4 */
    bool new_optimizer;                       /* from a checkpoint, but the moments are zero */
};

/* Fill weights, moments and position of t. A step whose damage is noticed while it is read is
 * skipped for the next older one, except with --step. Collective; on failure every rank gets the
 * message. Errors as resume_step_choose. TP_E_USAGE: the checkpoint is of another model. */
tp_status restore_start(struct trainer *t, struct restore_report *r, struct tp_err *err);

#endif
