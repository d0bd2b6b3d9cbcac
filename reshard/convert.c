/* reshard/convert.c - see reshard/convert.h. */
#include "reshard/convert.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "comm/control.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/text.h"
#include "reshard/export.h"
#include "reshard/foreign_contents.h"
#include "reshard/formats/export_format.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/foreign_place.h"
#include "reshard/import.h"
#include "storage/location.h"

/* Larger than any file of the source. */
#define NO_LIMIT 0

static bool is_safetensors(const char *path)
{
    static const char *const files[] = { "model.safetensors", "model.safetensors.index.json" };
    struct tp_err ignored;
    char file[PATH_MAX];

    for (int i = 0; i < 2; i++)
        if (!file_join(file, path, files[i], &ignored) && file_exists(file))
            return true;
    return false;
}

/* The name of the format of a folder of another framework; NULL: it is none, or has steps of
 * tp-train. */
static const char *detect(const char *path)
{
    const struct foreign_format *format;

    if (location_is_remote(path)) /* it would take many requests, so --from-format says it */
        return NULL;
    if (foreign_contents_has_steps(path))
        return NULL; /* also when other files are beside the steps */
    format = foreign_format_detect(path);
    if (format)
        return format->name;
    return is_safetensors(path) ? "safetensors" : NULL;
}

bool convert_is_meant(const char *path, const char *from_format, const char *format)
{
    if (from_format && strcmp(from_format, CONVERT_OWN) != 0)
        return true;
    if (format && strcmp(format, CONVERT_OWN) != 0)
        return true;
    return !from_format && detect(path);
}

tp_status convert_check_place(const char *path, const char *from_format, struct tp_err *err)
{
    if (from_format || location_is_remote(path) || detect(path))
        return TP_OK;
    return foreign_place_check(path, err);
}

tp_status convert_explain(tp_status st, const char *path, const char *from_format,
                          struct tp_err *err)
{
    const struct tp_err why = *err;
    const struct foreign_format *format;
    struct tp_err ignored = { 0 };
    char dir[PATH_MAX];

    if (st != TP_E_NOTFOUND || from_format || !location_is_remote(path) ||
        ckpt_locate(dir, path, -1, &ignored) != TP_E_NOTFOUND) /* another thing is not there */
        return st;
    format = foreign_format_detect_any(path);
    if (format)
        return tp_fail(err, st,
                       "%s: its files are of another framework (%s); give --from-format %s", path,
                       format->title, format->name);
    return tp_fail(err, st, "%s; if it is of another framework, give --from-format", why.msg);
}

/* A path that a suffix can be appended to: "." becomes the name of the folder. */
static const char *with_name(char name[PATH_MAX], const char *path)
{
    const size_t n = text_path_length(path);

    return n > 0 && path[n - 1] == '.' && realpath(path, name) ? name : path;
}

/* The default is SOURCE-SPEC. */
static tp_status name_out(char out[PATH_MAX], const struct convert_request *q, bool foreign,
                          struct tp_err *err)
{
    char name[PATH_MAX], text[SPEC_TEXT_MAX];
    const char *source = with_name(name, q->source);
    const size_t n = text_path_length(source);
    struct spec to;
    tp_status st;

    if (!q->out && !foreign)
        return tp_fail(err, TP_E_USAGE, "-o is missing: the folder to create");
    st = spec_parse(&to, q->to, err);
    if (st)
        return tp_fail_in(err, "--to");
    if (snprintf(out, PATH_MAX, "%.*s%s%s", q->out ? (int)strlen(q->out) : (int)n,
                 q->out ? q->out : source, q->out ? "" : "-",
                 q->out ? "" : spec_format(text, &to)) >= PATH_MAX)
        return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", q->source);
    return TP_OK;
}

static tp_status make_checkpoint(struct convert_report *r, const struct convert_request *q,
                                 struct tp_err *err)
{
    const struct import_request import = { .source = q->source,
                                           .zstd = q->zstd,
                                           .format = r->from,
                                           .config = q->config,
                                           .rules = q->rules,
                                           .ignore = q->ignore,
                                           .layout = q->to,
                                           .out = r->out,
                                           .step = q->step,
                                           .no_optim = q->no_optim,
                                           .dtype = q->dtype,
                                           .memory_bytes = q->memory_bytes,
                                           .threads = q->threads,
                                           .journal_s = q->journal_s,
                                           .force = q->force,
                                           .dry_run = q->dry_run,
                                           .progress = q->progress,
                                           .control = q->control };
    struct import_report done;
    tp_status st = import_run(&done, &import, err);

    if (st)
        return st;
    r->totals = done.totals;
    r->files = done.files;
    memcpy(r->left_out, done.left_out.text, sizeof r->left_out);
    return TP_OK;
}

static tp_status make_folder(struct convert_report *r, const struct convert_request *q,
                             bool foreign, struct tp_err *err)
{
    const struct export_request export = { .ckpt = q->source,
                                           .foreign = foreign,
                                           .from_format = r->from,
                                           .config = q->config,
                                           .assets = q->assets,
                                           .rules = q->rules,
                                           .ignore = q->ignore,
                                           .step = q->step,
                                           .layout = q->to,
                                           .format = r->format,
                                           .options = q->options,
                                           .out = r->out,
                                           .scratch = q->scratch,
                                           .dtype = q->dtype,
                                           .no_optim = q->no_optim,
                                           .max_shard_bytes = NO_LIMIT,
                                           .memory_bytes = q->memory_bytes,
                                           .threads = q->threads,
                                           .journal_s = q->journal_s,
                                           .force = q->force,
                                           .dry_run = q->dry_run,
                                           .progress = q->progress,
                                           .control = q->control };
    struct export_report done;
    tp_status st = export_run(&done, &export, err);

    if (st)
        return st;
    r->totals = done.totals;
    r->files = done.files;
    memcpy(r->left_out, done.left_out, sizeof r->left_out);
    return TP_OK;
}

/* Find out the formats, and check the request. */
static tp_status prepare(struct convert_report *r, const struct convert_request *q, bool *foreign,
                         struct tp_err *err)
{
    const struct export_format *ignored;
    tp_status st;

    r->from = q->from_format ? q->from_format : detect(q->source);
    if (!r->from)
        r->from = CONVERT_OWN;
    *foreign = strcmp(r->from, CONVERT_OWN) != 0;
    r->format = q->format ? q->format : r->from;
    if (*foreign)
        TP_TRY(import_check_format(r->from, err));
    if (strcmp(r->format, CONVERT_OWN) != 0) {
        st = export_format_find(&ignored, r->format, err);
        if (st) {
            const struct tp_err why = *err;

            return tp_fail(err, why.status, "%s: %s; or tp, a checkpoint of tp-train", q->source,
                           why.msg);
        }
    }
    if (q->rules && !*foreign)
        return tp_fail(err, TP_E_USAGE,
                       "--rules: a checkpoint of tp-train knows how its tensors are cut; leave "
                       "--rules out");
    if (q->ignore.n && !*foreign)
        return tp_fail(
            err, TP_E_USAGE,
            "--ignore: a checkpoint of tp-train has no tensors that its model does not have; "
            "leave --ignore out");
    st = name_out(r->out, q, *foreign, err);
done:
    return st;
}

tp_status convert_run(struct convert_report *report, const struct convert_request *q,
                      struct tp_err *err)
{
    const double begin = clock_seconds();
    struct convert_report r = { .dry_run = q->dry_run };
    bool foreign = false;
    tp_status st;

    TP_TRY(control_agree(q->control, prepare(&r, q, &foreign, err), err));
    if (strcmp(r.format, CONVERT_OWN) == 0)
        TP_TRY(make_checkpoint(&r, q, err));
    else
        TP_TRY(make_folder(&r, q, foreign, err));
    r.seconds = clock_seconds() - begin;
    *report = r;
done:
    return st;
}
