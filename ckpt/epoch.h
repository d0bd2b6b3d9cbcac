/*
 * ckpt/epoch.h - ROOT/epoch: which job may commit steps.
 *
 * A job claims the next number once. From then on the commit of a job with an older number is
 * refused, so a job that was given up cannot come back later and write.
 */
#ifndef CKPT_EPOCH_H
#define CKPT_EPOCH_H

#include <stdint.h>

#include "ckpt/root_lock.h"
#include "core/err.h"

/* Claim the next epoch of a root, which is created if necessary (see ckpt_check_root). Jobs with
 * older epochs can no longer commit. Once per job. `wait` says what happens while another process
 * holds the root's lock. */
tp_status ckpt_claim(int64_t *epoch, const char *root, const struct root_lock_wait *wait,
                     struct tp_err *err);

/* The epoch of the newest job, without a claim; 0: no job has claimed the root, or there is no such
 * root. A program that adds a step to what exists (tp-reshard, tp-ckpt import) begins with it. */
tp_status ckpt_epoch(int64_t *epoch, const char *root, struct tp_err *err);

/* Right before a commit: TP_E_STALE when a job with a newer epoch than this one has claimed the
 * root; `step` is for the message. */
tp_status ckpt_epoch_check(const char *root, int64_t epoch, int64_t step, struct tp_err *err);

#endif
