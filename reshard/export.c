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

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

/* By this file an existing folder is recognized as an export. */
#define CONFIG_FILE "config.json"

struct export_job {
    const struct export_request *request;
    struct arena arena;
    const struct export_format *format;
    struct export_source source;
    struct export_writer writer; /* open while it has an endpoint */
    struct atomic_folder folder;
    struct copy_job copy;
    int64_t remote_bytes; /* resident later for a source that is not local */
};

tp_status export_check_format(const char *format, struct tp_err *err)
{
    const struct export_format *ignored;

    return export_format_find(&ignored, format, err);
}

/* ---- the work ---- */

static tp_status copy_tensors(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    const struct export_contents contents = { .dir = x->folder.tmp,
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
    tp_status st;

    TP_TRY(x->format->create(&x->writer, &contents, err));
    x->copy.transfer = (struct transfer){ .n_tensors = from->layout.n_tensors,
                                          .tensors = from->transferred,
                                          .from = from->endpoint,
                                          .to = x->writer.endpoint,
                                          .threads = q->threads,
                                          .progress = q->progress };
    TP_TRY(copy_job_plan(
        &x->copy, q->memory_bytes,
        LATER_BYTES + x->remote_bytes + x->writer.later_bytes +
            (from->checkpoint ? checkpoint_source_memory(from->checkpoint, q->threads) : 0),
        err));
    TP_TRY(copy_job_run_or_stop(&x->copy, err));
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
    TP_TRY(atomic_folder_begin(&x->folder, q->out, q->force, CONFIG_FILE, err));
    TP_TRY(copy_tensors(x, err));
    TP_TRY(write_config(x, err));
    if (q->assets)
        TP_TRY(hf_assets_copy(q->assets, x->folder.tmp, err));
    else if (q->foreign)
        TP_TRY(hf_assets_copy(q->ckpt, x->folder.tmp, err));
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    atomic_folder_abort(&x->folder);
    return st;
}

static void fill_report(struct export_report *r, const struct export_job *x)
{
    const struct export_source *from = &x->source;

    *r = (struct export_report){ .format = x->format->name,
                                 .from = from->import.title,
                                 .spec = from->layout.spec,
                                 .checksums = from->checksums,
                                 .step = from->step,
                                 .dtype = from->layout.tensors[0].dtype,
                                 .n_tensors = from->layout.n_tensors,
                                 .files = x->writer.files,
                                 .boxes = x->writer.endpoint->n_extents,
                                 .bytes_read = x->copy.done.bytes_read,
                                 .bytes_written = x->copy.done.bytes_written,
                                 .peak_bytes = memory_peak_bytes(),
                                 .digests_equal = x->copy.digests_equal,
                                 .casts = x->copy.casts };
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
    copy_job_free(&x->copy);
    if (x->writer.endpoint)
        x->format->close(&x->writer);
    export_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
