/*
 * ckpt/step.h - names of step directories and what lies in them. Inside ckpt/ only.
 */
#ifndef CKPT_STEP_H
#define CKPT_STEP_H

#include <stdbool.h>

#include "ckpt/commit.h"

#define MANIFEST_FILE "manifest.json"

enum { STEP_NAME_MAX = 96 };

/* What a directory entry of a root is. */
enum step_kind { STEP_NONE, STEP_DIR, STEP_TMP };

/* "step-00000500". Returns buf. */
char *step_name(char buf[STEP_NAME_MAX], int64_t step);

/* Read a name: step-N, or step-N.tmp-<anything>; *step gets N. */
enum step_kind step_name_parse(int64_t *step, const char *name);

/* dir/name, or TP_E_USAGE when that is longer than a path may be. */
tp_status step_path(char path[PATH_MAX], const char *dir, const char *name, struct tp_err *err);

/* The manifest of a step directory. TP_E_NOTFOUND: it has none. TP_E_CORRUPT also when the
 * directory is called after another step. */
tp_status step_manifest(struct manifest *m, const char *dir, struct arena *arena,
                        struct tp_err *err);

/* The same; TP_E_CORRUPT also when a shard is missing or not as long as it should be. */
tp_status step_load(struct manifest *m, const char *dir, struct arena *arena, struct tp_err *err);

/* Every step and temporary of a root, ascending by step; malloc'ed. complete is not set. */
tp_status step_scan(struct ckpt_step **steps, int *n, const char *root, struct tp_err *err);

#endif
