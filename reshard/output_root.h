/*
 * reshard/output_root.h - the root that a reshard writes to: its name, and whether that is
 * possible.
 */
#ifndef RESHARD_OUTPUT_ROOT_H
#define RESHARD_OUTPUT_ROOT_H

#include <limits.h>
#include <stdbool.h>

#include "ckpt/root.h"
#include "core/err.h"
#include "reshard/formats/foreign.h"

/* The OUT that was given, or, if that is NULL, the default for the source `ckpt`, which was opened
 * as `from`. The default is CKPT-SPEC, where SPEC is the whole layout that results: CKPT as given,
 * without trailing slashes, when it is the root; the absolute path of its root when it is a step
 * directory. For a source in a store it is in that store. TP_E_USAGE: there is no default, because
 * the source is on a web server, or a whole bucket. */
tp_status output_root_name(char out[PATH_MAX], const char *given, const char *ckpt,
                           const struct ckpt_found *from, const struct spec *spec,
                           struct tp_err *err);

/* Whether it can be written to, as far as that is known before. TP_E_USAGE: also, it is the folder
 * of another framework's checkpoint. */
tp_status output_root_check(const char *out, bool force, struct tp_err *err);

/* The format of another framework's checkpoint in a folder that has no step of this project; NULL:
 * there is none, or `root` is not local. tp-ckpt and tp-reshard would take such a folder for that
 * checkpoint and not find steps that were saved into it. */
const struct foreign_format *output_root_foreign(const char *root);

#endif
