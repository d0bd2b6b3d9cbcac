/* reshard/import.c - see reshard/import.h. */
#include "reshard/import.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/transaction.h"
#include "core/file.h"
#include "core/stop.h"
#include "layout/family.h"
#include "layout/model_config.h"
#include "reshard/copy_job.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/foreign.h"
#include "reshard/import_source.h"
#include "reshard/root_model.h"
#include "storage/location.h"

/* What becomes resident later: libhdf5, and a chunk's entry. */
enum { LATER_BYTES = 12 << 20, CHUNK_BYTES = 512 };

struct import_job {
    const struct import_request *request;
    struct arena arena;
    struct model model;
    struct layout layout;
    struct import_source source;
    struct checkpoint_target *target;
    struct copy_job copy;
};

tp_status import_check_format(const char *format, struct tp_err *err)
{
    if (strcmp(format, "auto") == 0 || strcmp(format, "safetensors") == 0 ||
        foreign_format_find(format))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--format %s: is not known; this version reads " IMPORT_FORMATS,
                   format);
}

static tp_status read_model_of_rules(struct import_job *x, const char *config, struct tp_err *err)
{
    tp_status st = model_config_read_any(&x->model, config, &x->arena, err);

    if (!st && x->model.family != MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "--rules: %s says %s, whose tensors are known; leave --rules out, or give "
                       "the model an architecture of its own in config.json",
                       config, family_of(&x->model)->architecture);
    if (!st && x->request->ignore.n)
        return tp_fail(err, TP_E_USAGE,
                       "--ignore cannot be used with --rules, which have a line for every tensor");
    return st;
}

static tp_status read_model(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    const char *config = q->config ? q->config : q->source;

    tp_status st = location_check_local(q->source, err);

    if (st)
        return st;
    if (!file_is_dir(q->source))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", q->source);
    return q->rules ? read_model_of_rules(x, config, err)
                    : model_config_read(&x->model, config, &x->arena, err);
}

static tp_status lay_out(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    struct import_source *source = &x->source;
    struct spec spec;
    tp_status st = spec_parse(&spec, q->layout, err);

    if (st)
        return tp_fail_in(err, "--layout");
    TP_TRY(import_source_open(source, q, &x->model, &x->arena, err));
    if (q->rules)
        x->model.layers = source->layers;
    TP_TRY(layout_make(&x->layout, &spec, x->model.layers, source->tensors, source->n_tensors,
                       &x->arena, err));
    TP_TRY(root_model_check(q->out, q->force ? source->step : -1, &x->model, &x->layout, err));
done:
    return st;
}

static tp_status plan(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    tp_status st;

    TP_TRY(checkpoint_target_plan(&x->target, &x->layout, NULL, err));
    if (q->zstd)
        TP_TRY(checkpoint_target_compress(x->target, q->zstd, q->threads,
                                          copy_job_flush_bytes(q->memory_bytes, q->threads), err));
    x->copy.transfer = (struct transfer){ .n_tensors = x->layout.n_tensors,
                                          .tensors = x->source.transferred,
                                          .from = x->source.endpoint,
                                          .to = checkpoint_target_endpoint(x->target),
                                          .threads = q->threads,
                                          .progress = q->progress };
    TP_TRY(copy_job_plan(&x->copy, q->memory_bytes,
                         LATER_BYTES + CHUNK_BYTES * checkpoint_target_chunks(x->target) +
                             checkpoint_target_memory(x->target),
                         err));
done:
    return st;
}

static tp_status write_step(struct import_job *x, struct tp_err *err)
{
    struct manifest m = { .layout = x->layout, .model_config = x->model.config };
    struct ckpt_begin_request begin = { .root = x->request->out,
                                        .step = x->source.step,
                                        .force = x->request->force,
                                        .wait = { progress_say, x->request->progress, 0 } };
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    tp_status st;

    m.step = m.state.step = x->source.step;
    m.state.dtype = x->layout.tensors[0].dtype == DTYPE_BF16 ? "bf16" : "fp32";
    stop_listen_all(); /* before it nothing has begun */
    TP_TRY(ckpt_epoch(&begin.epoch, begin.root, err));
    TP_TRY(ckpt_begin(&t, &begin, err));
    TP_TRY(checkpoint_target_create(x->target, t.tmp.path, err));
    TP_TRY(copy_job_run_or_stop(&x->copy, err));
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
                                      .bytes_read = x->copy.done.bytes_read,
                                      .bytes_written = x->copy.done.bytes_written,
                                      .stored_bytes = checkpoint_target_stored_bytes(x->target),
                                      .peak_bytes = memory_peak_bytes(),
                                      .left_out = x->source.left_out,
                                      .step = x->source.step,
                                      .format = x->source.title,
                                      .checksums = x->source.checksums,
                                      .digests_equal = x->copy.digests_equal,
                                      .casts = x->copy.casts };
done:
    copy_job_free(&x->copy);
    checkpoint_target_close(x->target);
    import_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
