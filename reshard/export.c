/* reshard/export.c - see reshard/export.h. */
#include "reshard/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/control.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "core/stop.h"
#include "reshard/export_folder.h"
#include "reshard/export_job.h"
#include "reshard/export_options.h"
#include "reshard/export_shared.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/model_folder.h"
#include "storage/location.h"
#include "storage/remote.h"
#include "storage/upload_sender.h"

/* ---- a dry run ---- */

/* Create the files in a folder of its own, to learn what goes where. */
static tp_status create_scratch(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const char *above = q->scratch ? q->scratch : "/tmp";
    tp_status st;

    TP_TRY(export_job_check_source(q, err));
    TP_TRY(atomic_folder_check(q->out, q->force, model_folder_replaceable, err));
    TP_TRY(file_join(x->scratch, above, "tp-plan-XXXXXX", err));
    if (!mkdtemp(x->scratch)) {
        x->scratch[0] = 0;
        return tp_fail_errno(err, "%s: cannot create a folder for headers in it", above);
    }
    st = export_job_create(x, x->scratch, err);
done:
    return st;
}

static tp_status plan_only(struct export_job *x, struct tp_err *err)
{
    struct export_contents contents;
    tp_status st =
        control_agree(x->control, export_job_is_root(x) ? create_scratch(x, err) : TP_OK, err);

    if (!st && x->control) {
        contents = export_job_contents(x, export_job_is_root(x) ? x->scratch : x->request->out);
        st = x->format->share(&x->writer, &contents, x->control, err);
    }
    return st ? st : export_job_plan(x, err);
}

static void remove_scratch(struct export_job *x)
{
    struct tp_err ignored;

    if (x->scratch[0])
        file_tree_remove(x->scratch, &ignored);
}

/* ---- to a store ---- */

static tp_status write_store(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    int64_t parts = 0;
    tp_status st;

    if (x->format->model_folder)
        return tp_fail(err, TP_E_USAGE,
                       "%s: %s is written to folders, not to a store; write it to a folder, and "
                       "copy that",
                       q->out, x->format->title);
    if (q->force)
        return tp_fail(err, TP_E_USAGE,
                       "%s: a store cannot replace several objects in one go, so --force is not "
                       "possible there; remove them first, or name another prefix",
                       q->out);
    TP_TRY(export_store_begin(&x->store, q->out, EXPORT_JOB_CONFIG, q->scratch,
                              x->source.layout.n_tensors, err));
    stop_listen_all();
    remote_tries_stop(true); /* as in write_folder */
    TP_TRY(export_job_create(x, x->store.dir, err));
    TP_TRY(x->format->send(&x->writer, x->store.files, err));
    TP_TRY(upload_set_bytes(&parts, x->store.files, q->threads, err));
    x->remote_bytes += parts + (q->threads + 1) * x->writer.send_bytes +
                       (location_is_remote(q->ckpt) ? 0 : memory_budget_connections());
    TP_TRY(export_job_plan(x, err));
    if (q->dry_run)
        goto done;
    upload_sender_limit(upload_sender_usual());
    TP_TRY(upload_set_begin(x->store.files, err));
    TP_TRY(export_job_copy(x, err));
    TP_TRY(export_job_write_small_files(x, err));
    if (stop_requested())
        TP_TRY(
            tp_fail(err, TP_E_STOPPED,
                    "interrupted; nothing is kept in the store, so the same command starts over"));
    remote_tries_stop(false);
    st = export_store_commit(&x->store, err);
done:
    return st;
}

static tp_status fill_report(struct export_report *r, const struct export_job *x,
                             struct tp_err *err)
{
    const struct export_source *from = &x->source;

    *r = (struct export_report){ .totals = resume_totals(&x->resume, &x->copy),
                                 .format = x->format->name,
                                 .from = from->import.title,
                                 .dtype = from->layout.tensors[0].dtype,
                                 .files = x->writer.files };
    r->totals.spec = from->layout.spec;
    r->totals.step = from->has_step ? from->step : -1;
    r->totals.checksums = from->checksums;
    memcpy(r->dir, from->path, sizeof r->dir);
    snprintf(r->out, sizeof r->out, "%s",
             export_job_to_store(x) ? x->store.to
             : x->request->dry_run  ? x->request->out
                                    : x->folder.dir);
    memcpy(r->left_out, from->left_out, sizeof r->left_out);
    if (r->totals.tiles == 0) /* there was no journal */
        r->totals.tiles = x->copy.planned.tiles;
    if (x->request->dry_run)
        copy_totals_plan(&r->totals, &x->copy);
    return copy_totals_add_up(&r->totals, x->control, err);
}

/* Everything before the first collective. */
static tp_status open_job(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    tp_status st;

    TP_TRY(export_format_find(&x->format, q->format, err));
    if (q->q8_0 && !x->format->q8_0)
        TP_TRY(tp_fail(err, TP_E_USAGE, "--dtype q8_0 is for --format gguf, not %s", q->format));
    TP_TRY(export_options_check(&q->options, x->format, q->no_optim, err));
    TP_TRY(export_shared_check(x, err));
    x->remote_bytes = memory_budget_remote(q->ckpt, q->memory_bytes);
    TP_TRY(export_source_open(&x->source, q, x->format, &x->arena, err));
    if (q->options.moe_experts && x->source.model.experts == 0)
        TP_TRY(tp_fail(err, TP_E_USAGE, "--moe-experts %s: the model of %s has no experts",
                       q->options.moe_experts, x->source.path));
    if (q->assets)
        TP_TRY(hf_assets_check(q->assets, err));
done:
    return st;
}

tp_status export_run(struct export_report *report, const struct export_request *request,
                     struct tp_err *err)
{
    struct export_job *x = calloc(1, sizeof *x);
    tp_status st;

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "no memory to export");
    x->request = request;
    if (control_size(request->control) > 1)
        x->control = request->control;
    TP_TRY(control_agree(x->control, open_job(x, err), err));
    if (x->control && !location_is_remote(request->ckpt))
        TP_TRY(export_shared_compare(x, err));
    if (export_job_to_store(x))
        st = write_store(x, err);
    else if (request->dry_run)
        st = plan_only(x, err);
    else
        st = x->control ? export_shared_write(x, err) : export_folder_write(x, err);
    TP_TRY(st);
    st = fill_report(report, x, err);
done:
    resume_free(&x->resume);
    copy_job_free(&x->copy);
    export_job_close_writer(x);
    remove_scratch(x);
    export_store_end(&x->store);
    export_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
