/*
 * ckpt/step.h - step directories: their names and what is in them.
 */
#ifndef CKPT_STEP_H
#define CKPT_STEP_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "core/err.h"

enum { STEP_NAME_MAX = 96 };

/* An entry of a root: a step, or a temporary directory of one. */
struct ckpt_step {
    int64_t step;
    char name[NAME_MAX + 1];
    bool complete; /* the manifest parses, and every shard exists with its length; false for a
                      temporary directory */
};

/* Open shard number i of the step in dir, whose manifest has been read (shard_open). TP_E_IO, with
 * a message that says so: another program has removed or replaced the step since. */
tp_status ckpt_open_shard(struct shard_reader **out, const char *dir, const struct manifest *m,
                          int i, struct tp_err *err);

/* ---- inside ckpt/ only ---- */

/* TP_E_IO: the step in dir was removed by another program while it was read. */
tp_status step_fail_removed(const char *dir, struct tp_err *err);

/* What a name in a root is. */
enum step_kind { STEP_NONE, STEP_DIR, STEP_TMP };

/* "step-00000500". Returns buf. */
char *step_name(char buf[STEP_NAME_MAX], int64_t step);

/* Parse a name: step-N, or step-N.tmp-<anything>; *step receives N. */
enum step_kind step_parse_name(int64_t *step, const char *name);

/* TP_E_USAGE: the path of a root ends in a name of a step. Readers take it for the step itself, so
 * they would not find steps in it. */
tp_status step_check_no_name(const char *root, struct tp_err *err);

/* Read the manifest of a step directory. TP_E_NOTFOUND: there is none. TP_E_CORRUPT also when the
 * directory has the name of another step. */
tp_status step_read_manifest(struct manifest *m, const char *dir, struct arena *arena,
                             struct tp_err *err);

/* The same; TP_E_CORRUPT also when a shard is missing or has another length. TP_E_IO: another
 * program removed or replaced the step meanwhile. */
tp_status step_load(struct manifest *m, const char *dir, struct arena *arena, struct tp_err *err);

/* Whether a directory is a step of this project, damaged ones included: its manifest can be read,
 * or it has no other files than a step has. False also when it cannot be listed. */
bool step_is_own(const char *dir);

/* All steps and temporary directories of a root, ascending by step; malloc'ed. `complete` is not
 * filled in. */
tp_status step_scan(struct ckpt_step **steps, int *n, const char *root, struct tp_err *err);

#endif
