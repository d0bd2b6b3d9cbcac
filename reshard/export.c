/* reshard/export.c - see reshard/export.h. */
#include "reshard/export.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/stop.h"
#include "reshard/atomic_folder.h"
#include "reshard/copy_job.h"
#include "reshard/export_source.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/hf_config.h"
#include "reshard/resume.h"

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

/* By this file an existing folder is recognized as an export. */
#define CONFIG_FILE "config.json"

/* In a temporary folder: where files are created to learn the places of tensors. */
#define PLACES_FOLDER "places.tmp"

struct export_job {
    const struct export_request *request;
    struct arena arena;
    const struct export_format *format;
    struct export_source source;
    struct export_writer writer; /* open while it has an endpoint */
    struct atomic_folder folder;
    struct copy_job copy;
    int64_t remote_bytes; /* resident later for a source that is not local */
    struct resume resume;
};

static struct resume_job resume_job_of(struct export_job *x)
{
    return (struct resume_job){ &x->copy, &x->arena, x->request->progress };
}

tp_status export_check_format(const char *format, struct tp_err *err)
{
    const struct export_format *ignored;

    return export_format_find(&ignored, format, err);
}

/* ---- where it is written ---- */

/* Create the files in `dir`, which exists. */
static tp_status create(struct export_job *x, const char *dir, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    const struct export_contents contents = { .dir = dir,
                                              .source = from->path,
                                              .model = &from->model,
                                              .tensors = from->layout.tensors,
                                              .n = from->layout.n_tensors,
                                              .layout = &from->layout,
                                              .step = from->step,
                                              .adamw = from->adamw,
                                              .max_shard_bytes = q->max_shard_bytes,
                                              .q8_0 = q->q8_0,
                                              .assets = q->assets,
                                              .progress = q->progress };

    return x->format->create(&x->writer, &contents, err);
}

static void close_writer(struct export_job *x)
{
    if (x->writer.endpoint)
        x->format->close(&x->writer);
    x->writer = (struct export_writer){ 0 };
}

/* Create the files in a folder that an interrupted run left, and keep the bytes of tensors there.
 * Which bytes these are, is known when all files have been created in another folder. */
static tp_status create_again(struct export_job *x, struct tp_err *err)
{
    char other[PATH_MAX];
    tp_status st;

    TP_TRY(file_join(other, x->folder.tmp, PLACES_FOLDER, err));
    if (file_exists(other))
        TP_TRY(file_remove_tree(other, err));
    TP_TRY(file_make_dirs(other, err));
    TP_TRY(create(x, other, err));
    st = x->format->keep(&x->writer, x->folder.tmp, TRANSFER_JOURNAL_FILE, err);
    close_writer(x);
    if (!st)
        st = file_remove_tree(other, err);
    if (!st)
        st = create(x, x->folder.tmp, err);
done:
    return st;
}

static tp_status plan(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;

    x->copy.transfer = (struct transfer){ .n_tensors = from->layout.n_tensors,
                                          .tensors = from->transferred,
                                          .from = from->endpoint,
                                          .to = x->writer.endpoint,
                                          .threads = q->threads,
                                          .progress = q->progress };
    return resume_plan(
        &x->resume, &x->copy, q->memory_bytes,
        LATER_BYTES + x->remote_bytes + x->writer.later_bytes +
            resume_memory_bytes(from->endpoint, &x->arena) +
            resume_memory_bytes(x->writer.endpoint, &x->arena) +
            (from->checkpoint ? checkpoint_source_memory(from->checkpoint, q->threads) : 0),
        err);
}

/* Whether to take over a temporary folder: an atomic_folder_heir. */
static bool is_of_this_job(void *ctx, const char *path)
{
    struct export_job *x = ctx;
    const char *copy = arena_strdup(&x->arena, path);

    if (copy)
        resume_look(&x->resume, copy);
    return copy && x->resume.tmp == copy;
}

/* Begin the folder, and plan. An interrupted run is continued if `again`. */
static tp_status begin(struct export_job *x, bool again, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct resume_job job = resume_job_of(x);
    const struct atomic_folder_heir heir = { again && x->format->keep ? is_of_this_job : NULL, x };
    tp_status st;

    TP_TRY(atomic_folder_resume(&x->folder, q->out, q->force, CONFIG_FILE, &heir, err));
    resume_note_other(&x->resume, &job);
    TP_TRY(x->folder.resumed ? create_again(x, err) : create(x, x->folder.tmp, err));
    TP_TRY(plan(x, err));
    x->folder.scratch = TRANSFER_JOURNAL_FILE;
    if (!resume_fits(&x->resume, &x->copy) && x->folder.resumed)
        st = tp_fail(err, TP_E_BUDGET, "%s: was written with more --mem", x->folder.tmp);
    else if (x->folder.resumed)
        st = resume_continue(&x->resume, x->folder.tmp, &job, err);
    else if (x->format->keep)
        st = resume_create(&x->resume, x->folder.tmp, &job, err);
done:
    return st;
}

/* Remove a folder that cannot be continued. */
static tp_status discard(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = resume_job_of(x);
    tp_status st = x->copy.plan ? resume_forget(&x->resume, &job, err) : TP_OK;
    struct resume empty = { .interval_s = x->resume.interval_s };

    copy_job_free(&x->copy);
    close_writer(x);
    atomic_folder_abort(&x->folder);
    memcpy(empty.head.identity_sha256, x->resume.head.identity_sha256, SHA256_TEXT);
    x->resume = empty;
    return st;
}

static tp_status identify(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    char spec[SPEC_TEXT_MAX];
    struct sha256 *h;
    tp_status st = job_identity_new(&h, "export", err);

    if (st)
        return st;
    job_identity_text(h, x->format->name);
    job_identity_text(h, spec_format(spec, &from->layout.spec));
    job_identity_number(h, q->max_shard_bytes);
    job_identity_number(h, from->step);
    sha256_add(h, &from->adamw, sizeof from->adamw);
    job_identity_text(h, from->model.config);
    st = export_source_identify(from, q, h, err);
    sha256_end(h, x->resume.head.identity_sha256);
    return st;
}

static tp_status begin_or_continue(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = resume_job_of(x);
    tp_status st;

    if (x->format->keep) {
        TP_TRY(identify(x, err));
        x->resume.interval_s = x->request->journal_s;
    }
    st = begin(x, true, err);
    if (!st || st == TP_E_STOPPED || !x->folder.resumed)
        return st;
    resume_note_failed(err, &job);
    TP_TRY(discard(x, err));
    st = begin(x, false, err);
done:
    return st;
}

/* ---- the work ---- */

static tp_status copy_tensors(struct export_job *x, struct tp_err *err)
{
    const struct resume_job job = resume_job_of(x);
    tp_status st;

    TP_TRY(x->format->keep ? resume_run(&x->resume, &job, err)
                           : copy_job_run_or_stop(&x->copy, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
    if (x->writer.bytes > 0)
        x->copy.done.bytes_written = x->writer.bytes;
done:
    return st;
}

static tp_status write_config(struct export_job *x, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    tp_status st = hf_config_make(&text, &x->source.model, x->source.layout.tensors[0].dtype, err);

    if (st)
        return st;
    st = file_join(path, x->folder.tmp, CONFIG_FILE, err);
    if (!st)
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

static tp_status write_folder(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    tp_status st;

    if (q->assets)
        TP_TRY(hf_assets_check(q->assets, err));
    stop_listen_all(); /* before it nothing has begun */
    TP_TRY(begin_or_continue(x, err));
    TP_TRY(copy_tensors(x, err));
    TP_TRY(write_config(x, err));
    if (q->assets)
        TP_TRY(hf_assets_copy(q->assets, x->folder.tmp, err));
    else if (q->foreign)
        TP_TRY(hf_assets_copy(q->ckpt, x->folder.tmp, err));
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    if (st == TP_E_STOPPED && x->format->keep)
        atomic_folder_suspend(&x->folder);
    else
        atomic_folder_abort(&x->folder);
    return st;
}

static void fill_report(struct export_report *r, const struct export_job *x)
{
    const struct export_source *from = &x->source;

    *r = (struct export_report){ .totals = resume_totals(&x->resume, &x->copy),
                                 .format = x->format->name,
                                 .from = from->import.title,
                                 .dtype = from->layout.tensors[0].dtype,
                                 .files = x->writer.files };
    r->totals.spec = from->layout.spec;
    r->totals.step = from->step;
    r->totals.checksums = from->checksums;
    memcpy(r->dir, from->path, sizeof r->dir);
    memcpy(r->out, x->folder.dir, sizeof r->out);
    memcpy(r->left_out, from->left_out, sizeof r->left_out);
}

tp_status export_run(struct export_report *report, const struct export_request *request,
                     struct tp_err *err)
{
    struct export_job *x = calloc(1, sizeof *x);
    tp_status st;

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "no memory to export");
    x->request = request;
    TP_TRY(export_format_find(&x->format, request->format, err));
    if (request->q8_0 && !x->format->q8_0) {
        st = tp_fail(err, TP_E_USAGE, "--dtype q8_0 is for --format gguf, not %s", request->format);
        goto done;
    }
    x->remote_bytes = memory_budget_remote(request->ckpt, request->memory_bytes);
    TP_TRY(export_source_open(&x->source, request, x->format, &x->arena, err));
    TP_TRY(write_folder(x, err));
    fill_report(report, x);
done:
    resume_free(&x->resume);
    copy_job_free(&x->copy);
    close_writer(x);
    export_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
