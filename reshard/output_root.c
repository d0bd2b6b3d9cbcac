/* reshard/output_root.c - see reshard/output_root.h. */
#include "reshard/output_root.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "reshard/foreign_contents.h"
#include "storage/location.h"

/* The root of a step directory, as an absolute path. */
static tp_status root_of(char root[PATH_MAX], const char *dir, struct tp_err *err)
{
    char *slash;

    if (!realpath(dir, root))
        return tp_fail_errno(err, "%s: cannot resolve", dir);
    slash = strrchr(root, '/');
    if (slash && slash != root)
        *slash = 0;
    return TP_OK;
}

/* ROOT-SPEC in the store that has the source. */
static tp_status name_beside(char out[PATH_MAX], const char *dir, const struct spec *spec,
                             struct tp_err *err)
{
    char bucket[LOCATION_BUCKET_MAX], to[SPEC_TEXT_MAX];
    const char *slash = strrchr(dir, '/');

    if (location_split(bucket, dir) > slash) /* another bucket may be anyone's */
        return tp_fail(err, TP_E_USAGE,
                       "--out is missing: s3://BUCKET/PREFIX to write to; there is no default when "
                       "CKPT is the whole bucket %s",
                       bucket);
    if (snprintf(out, PATH_MAX, "%.*s-%s", (int)(slash - dir), dir, spec_format(to, spec)) <
        PATH_MAX)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", dir);
}

const struct foreign_format *output_root_foreign(const char *root)
{
    if (location_is_remote(root) || foreign_contents_has_steps(root))
        return NULL;
    return foreign_format_detect_any(root);
}

static tp_status check_local(const char *out, struct tp_err *err)
{
    const struct foreign_format *found;
    tp_status st = ckpt_check_root(out, err);

    if (st || !(found = output_root_foreign(out)))
        return st;
    return tp_fail(err, TP_E_USAGE,
                   "%.400s: has the format %s, so a new step there would not be found; name "
                   "another --out",
                   out, found->name);
}

tp_status output_root_check(const char *out, bool force, struct tp_err *err)
{
    if (location_kind(out) != LOCATION_S3)
        return check_local(out, err);
    if (force)
        return tp_fail(
            err, TP_E_USAGE,
            "%.400s: a store cannot replace a step in one go, so --force is not possible "
            "there; remove the step first, or name another prefix",
            out);
    return location_check(out, err);
}

tp_status output_root_name(char out[PATH_MAX], const char *given, const char *ckpt,
                           const struct ckpt_found *from, const struct spec *spec,
                           struct tp_err *err)
{
    char root[PATH_MAX], resolved[PATH_MAX], to[SPEC_TEXT_MAX];
    const size_t n = text_path_length(ckpt);
    tp_status st;

    if (given)
        return location_clean(out, given, err);
    if (location_kind(ckpt) == LOCATION_S3)
        return name_beside(out, from->dir, spec, err);
    if (location_is_remote(ckpt))
        return tp_fail(err, TP_E_USAGE,
                       "--out is missing: the folder to write to; there is no default when CKPT is "
                       "not a local folder");
    if ((st = root_of(root, from->dir, err)))
        return st;
    if (realpath(ckpt, resolved) && strcmp(resolved, root) == 0 && ckpt[n - 1] != '.')
        snprintf(root, sizeof root, "%.*s", (int)n, ckpt);
    if (snprintf(out, PATH_MAX, "%s-%s", root, spec_format(to, spec)) < PATH_MAX)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", root);
}
