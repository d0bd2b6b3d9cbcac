/* reshard/export.c - see reshard/export.h. */
#include "reshard/export.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "reshard/atomic_folder.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint.h"
#include "reshard/formats/export_format.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/hf_config.h"

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

/* By this file an existing folder is recognized as an export. */
#define CONFIG_FILE "config.json"

struct export_job {
    const struct export_request *request;
    struct arena arena;
    struct ckpt_found from;
    struct model model;
    int n, *ids;                        /* manifest ids of the tensors to read */
    struct tensor *tensors;             /* to write */
    struct reshard_tensor *transferred; /* the same, for the engine */
    struct checkpoint_source *source;
    const struct export_format *format;
    struct export_writer writer; /* open while it has an endpoint */
    struct atomic_folder folder;
    struct copy_job copy;
};

tp_status export_check_format(const char *format, struct tp_err *err)
{
    const struct export_format *ignored;

    return export_format_find(&ignored, format, err);
}

/* ---- what to read and to write ---- */

/* The checkpoint must have every tensor of its model, with the model's shape. */
static tp_status check_complete(struct export_job *x, struct tp_err *err)
{
    const struct layout *l = &x->from.manifest.layout;
    struct tensor *want;
    int n;
    tp_status st = model_params(&want, &n, &x->model, DTYPE_F32, &x->arena, err);

    for (int i = 0; i < n && !st; i++) {
        int at = layout_find(l, GROUP_PARAM, want[i].name);
        struct box box = box_whole(want[i].ndim, want[i].shape), found;
        char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

        if (at < 0)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s of its model is missing; a model that was trained with "
                           "--plan under other names cannot be exported, because transformers "
                           "expects the usual names",
                           x->from.dir, want[i].name);
        found = box_whole(l->tensors[at].ndim, l->tensors[at].shape);
        if (!box_equal(&box, &found))
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, but its model has %s",
                           x->from.dir, want[i].name, box_format(a, &found), box_format(b, &box));
    }
    return st;
}

/* The tensor of the checkpoint from which tensor `id` is read: its master when f32 is wanted. */
static int source_of(const struct export_job *x, int id, enum dtype dtype)
{
    const struct layout *l = &x->from.manifest.layout;
    const struct tensor *t = &l->tensors[id];
    int master =
        dtype == DTYPE_F32 && t->dtype != DTYPE_F32 ? layout_find(l, GROUP_MASTER, t->name) : -1;

    return master >= 0 ? master : id;
}

static tp_status choose_tensors(struct export_job *x, struct tp_err *err)
{
    const struct layout *l = &x->from.manifest.layout;
    const enum dtype *to = x->request->dtype;
    size_t room = (size_t)l->n_tensors + 1;

    x->ids = arena_array(&x->arena, room, sizeof *x->ids);
    x->tensors = arena_array(&x->arena, room, sizeof *x->tensors);
    x->transferred = arena_array(&x->arena, room, sizeof *x->transferred);
    if (!x->ids || !x->tensors || !x->transferred)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", x->from.dir);
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];
        enum dtype dtype = to && dtype_is_float(t->dtype) ? *to : t->dtype;

        if (strcmp(t->group, GROUP_PARAM) != 0)
            continue;
        x->ids[x->n] = source_of(x, i, dtype);
        x->tensors[x->n] = *t;
        x->tensors[x->n].dtype = dtype;
        x->transferred[x->n] = (struct reshard_tensor){ t->name, t->ndim, { 0 } };
        memcpy(x->transferred[x->n].shape, t->shape, sizeof t->shape);
        x->n++;
    }
    return TP_OK;
}

static tp_status open_source(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const char *config;
    tp_status st;

    TP_TRY(ckpt_open(&x->from, q->ckpt, q->step, &x->arena, err));
    if (x->from.note[0])
        progress_note(q->progress, "%s", x->from.note);
    config = x->from.manifest.model_config;
    if (!config)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has no model config, so " CONFIG_FILE " cannot be written",
                       x->from.dir);
    TP_TRY(model_config_parse_any(&x->model, config, strlen(config), x->from.dir, &x->arena, err));
    if (x->model.family != MODEL_OF_RULES) /* its tensors are those that were imported */
        TP_TRY(check_complete(x, err));
    TP_TRY(choose_tensors(x, err));
    TP_TRY(checkpoint_source_open(&x->source, &x->from, x->ids, x->n, NULL, err));
done:
    return st;
}

/* ---- the work ---- */

static tp_status copy_tensors(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_contents contents = { .dir = x->folder.tmp,
                                              .model = &x->model,
                                              .tensors = x->tensors,
                                              .n = x->n,
                                              .step = x->from.manifest.step,
                                              .max_shard_bytes = q->max_shard_bytes };
    tp_status st;

    TP_TRY(x->format->create(&x->writer, &contents, err));
    x->copy.transfer = (struct transfer){ .n_tensors = x->n,
                                          .tensors = x->transferred,
                                          .from = checkpoint_source_endpoint(x->source),
                                          .to = x->writer.endpoint,
                                          .threads = q->threads,
                                          .progress = q->progress };
    TP_TRY(copy_job_plan(&x->copy, q->memory_bytes, LATER_BYTES, err));
    TP_TRY(copy_job_run(&x->copy, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
done:
    return st;
}

static tp_status write_config(struct export_job *x, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    tp_status st = hf_config_make(&text, &x->model, x->tensors[0].dtype, err);

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
    TP_TRY(atomic_folder_begin(&x->folder, q->out, q->force, CONFIG_FILE, err));
    TP_TRY(copy_tensors(x, err));
    TP_TRY(write_config(x, err));
    if (q->assets)
        TP_TRY(hf_assets_copy(q->assets, x->folder.tmp, err));
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    atomic_folder_abort(&x->folder);
    return st;
}

static void fill_report(struct export_report *r, const struct export_job *x)
{
    *r = (struct export_report){ .step = x->from.manifest.step,
                                 .dtype = x->tensors[0].dtype,
                                 .n_tensors = x->n,
                                 .files = x->writer.files,
                                 .bytes_written = x->copy.done.bytes_written,
                                 .peak_bytes = memory_peak_bytes(),
                                 .digests_equal = x->copy.digests_equal,
                                 .casts = x->copy.casts };
    memcpy(r->dir, x->from.dir, sizeof r->dir);
    memcpy(r->out, x->folder.dir, sizeof r->out);
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
    TP_TRY(open_source(x, err));
    TP_TRY(write_folder(x, err));
    fill_report(report, x);
done:
    copy_job_free(&x->copy);
    if (x->writer.endpoint)
        x->format->close(&x->writer);
    checkpoint_source_close(x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
