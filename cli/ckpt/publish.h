/*
 * cli/ckpt/publish.h - a folder that appears whole or not at all: written beside its place under a
 * temporary name, then renamed.
 */
#ifndef CLI_CKPT_PUBLISH_H
#define CLI_CKPT_PUBLISH_H

#include <limits.h>
#include <stdbool.h>

#include "core/err.h"

struct publish {
    char dir[PATH_MAX]; /* where it shall appear */
    char tmp[PATH_MAX]; /* where to write: DIR.tmp-XXXXXX; "" when there is nothing to remove */
    bool force;
};

/* Begin. Parents are made. TP_E_EXISTS: dir is there (and not an empty folder), and force is not
 * set; or force is set and dir holds no file called `mark`, so that it is not what we would have
 * written and is better not replaced. */
tp_status publish_begin(struct publish *p, const char *dir, bool force, const char *mark,
                        struct tp_err *err);

/* Make what is in tmp appear: fsync, rename (or exchange, then remove what was there). */
tp_status publish_commit(struct publish *p, struct tp_err *err);

/* Remove what was begun; also for a publish that is all zeroes or committed. */
void publish_abort(struct publish *p);

#endif
