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

/* ---- inside ckpt/ only ---- */

/* What a name in a root is. */
enum step_kind { STEP_NONE, STEP_DIR, STEP_TMP };

/* "step-00000500". Returns buf. */
char *step_name(char buf[STEP_NAME_MAX], int64_t step);

/* Parse a name: step-N, or step-N.tmp-<anything>; *step receives N. */
enum step_kind step_parse_name(int64_t *step, const char *name);

/* Read the manifest of a step directory. TP_E_NOTFOUND: there is none. TP_E_CORRUPT also when the
 * directory has the name of another step. */
tp_status step_read_manifest(struct manifest *m, const char *dir, struct arena *arena,
                             struct tp_err *err);

/* The same; TP_E_CORRUPT also when a shard is missing or has another length. */
tp_status step_load(struct manifest *m, const char *dir, struct arena *arena, struct tp_err *err);

/* All steps and temporary directories of a root, ascending by step; malloc'ed. `complete` is not
 * filled in. */
tp_status step_scan(struct ckpt_step **steps, int *n, const char *root, struct tp_err *err);

#endif
