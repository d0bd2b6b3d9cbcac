/* reshard/import.c - see reshard/import.h. */
#include "reshard/import.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/transaction.h"
#include "core/file.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint.h"
#include "reshard/formats/safetensors.h"
#include "reshard/root_model.h"

/* What becomes resident later: libhdf5, and a chunk's entry. */
enum { LATER_BYTES = 12 << 20, CHUNK_BYTES = 512 };

struct import_job {
    const struct import_request *request;
    struct arena arena;
    struct model model;
    struct layout layout;
    struct reshard_tensor *transferred; /* the tensors of the layout, for the engine */
    struct safetensors_source *source;
    struct checkpoint_target *target;
    struct unknown_tensors left_out;
    struct copy_job copy;
};

tp_status import_check_format(const char *format, struct tp_err *err)
{
    if (strcmp(format, "auto") == 0 || strcmp(format, "safetensors") == 0)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--format %s: this version reads only safetensors", format);
}

static tp_status read_model(struct import_job *x, struct tp_err *err)
{
    const char *source = x->request->source;

    if (!file_is_dir(source))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", source);
    return model_config_read(&x->model, source, &x->arena, err);
}

/* The model's tensors, with the types of the files or of the request. */
static tp_status choose_tensors(struct import_job *x, struct tensor **tensors, int *n,
                                struct tp_err *err)
{
    const struct import_request *q = x->request;
    const struct reshard_endpoint *from;
    tp_status st = model_params(tensors, n, &x->model, DTYPE_F32, &x->arena, err);

    if (st)
        return st;
    x->transferred = arena_array(&x->arena, (size_t)*n, sizeof *x->transferred);
    if (!x->transferred)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", q->source);
    for (int i = 0; i < *n; i++) {
        x->transferred[i] =
            (struct reshard_tensor){ (*tensors)[i].name, (*tensors)[i].ndim, { 0 } };
        memcpy(x->transferred[i].shape, (*tensors)[i].shape, sizeof x->transferred[i].shape);
    }
    TP_TRY(safetensors_open(&x->source, q->source, err));
    TP_TRY(safetensors_select(x->source, x->transferred, *n, err));
    TP_TRY(
        unknown_tensors_check(&x->left_out, x->source, &x->model, *tensors, *n, &q->ignore, err));
    from = safetensors_source_endpoint(x->source);
    for (int i = 0; i < *n; i++)
        (*tensors)[i].dtype = q->dtype ? *q->dtype : from->dtypes[i];
done:
    return st;
}

static tp_status lay_out(struct import_job *x, struct tp_err *err)
{
    struct tensor *tensors;
    struct spec spec;
    int n = 0;
    tp_status st = spec_parse(&spec, x->request->layout, err);

    if (st)
        return tp_fail_in(err, "--layout");
    TP_TRY(choose_tensors(x, &tensors, &n, err));
    TP_TRY(layout_make(&x->layout, &spec, x->model.layers, tensors, n, &x->arena, err));
    TP_TRY(
        root_model_check(x->request->out, x->request->force ? 0 : -1, &x->model, &x->layout, err));
done:
    return st;
}

static tp_status plan(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    tp_status st;

    TP_TRY(checkpoint_target_plan(&x->target, &x->layout, NULL, err));
    x->copy.transfer = (struct transfer){ .n_tensors = x->layout.n_tensors,
                                          .tensors = x->transferred,
                                          .from = safetensors_source_endpoint(x->source),
                                          .to = checkpoint_target_endpoint(x->target),
                                          .threads = q->threads,
                                          .progress = q->progress };
    TP_TRY(copy_job_plan(&x->copy, q->memory_bytes,
                         LATER_BYTES + CHUNK_BYTES * checkpoint_target_chunks(x->target), err));
done:
    return st;
}

static tp_status write_step(struct import_job *x, struct tp_err *err)
{
    struct manifest m = { .layout = x->layout, .model_config = x->model.config };
    struct ckpt_begin_request begin = { .root = x->request->out,
                                        .force = x->request->force,
                                        .wait = { progress_say, x->request->progress, 0 } };
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    tp_status st;

    m.state.dtype = x->layout.tensors[0].dtype == DTYPE_BF16 ? "bf16" : "fp32";
    TP_TRY(ckpt_epoch(&begin.epoch, begin.root, err));
    TP_TRY(ckpt_begin(&t, &begin, err));
    TP_TRY(checkpoint_target_create(x->target, t.tmp.path, err));
    TP_TRY(copy_job_run(&x->copy, err));
    TP_TRY(checkpoint_target_finish(x->target, &m, &x->arena, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(ckpt_commit(&t, &m, err));
done:
    if (st)
        ckpt_abort(&t);
    return st;
}

tp_status import_run(struct import_report *report, const struct import_request *request,
                     struct tp_err *err)
{
    struct import_job *x = calloc(1, sizeof *x);
    tp_status st;

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "no memory to import");
    x->request = request;
    TP_TRY(import_check_format(request->format, err));
    TP_TRY(read_model(x, err));
    TP_TRY(lay_out(x, err));
    TP_TRY(plan(x, err));
    TP_TRY(write_step(x, err));
    *report = (struct import_report){ .spec = x->layout.spec,
                                      .n_tensors = x->layout.n_tensors,
                                      .boxes = x->copy.transfer.to->n_extents,
                                      .bytes_written = x->copy.done.bytes_written,
                                      .peak_bytes = memory_peak_bytes(),
                                      .left_out = x->left_out,
                                      .digests_equal = x->copy.digests_equal,
                                      .casts = x->copy.casts };
done:
    copy_job_free(&x->copy);
    checkpoint_target_close(x->target);
    safetensors_source_close(x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
