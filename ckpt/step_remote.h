/*
 * ckpt/step_remote.h - what ckpt/step.h does for steps on web servers and in stores. Inside ckpt/
 * only, for step.c.
 */
#ifndef CKPT_STEP_REMOTE_H
#define CKPT_STEP_REMOTE_H

#include "ckpt/manifest.h"

/* Read a remote manifest. TP_E_NOTFOUND: there is none. */
tp_status step_read_remote(struct manifest *m, const char *path, struct arena *arena,
                           struct tp_err *err);

/* TP_E_CORRUPT: a shard is missing or has another length than the manifest says. TP_E_NOTFOUND:
 * there is no such step any more. */
tp_status step_check_remote(const struct manifest *m, const char *dir, struct tp_err *err);

/* The number of the step of a root on a web server, which has no listings: ROOT/latest leads to it,
 * a link that saves leave. TP_E_NOTFOUND: there is no ROOT/latest/manifest.json. */
tp_status step_find_latest(int64_t *step, const char *root, struct tp_err *err);

#endif
