/* reshard/import.c - see reshard/import.h. */
#include "reshard/import.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "ckpt/transaction.h"
#include "core/stop.h"
#include "reshard/copy_job.h"
#include "reshard/foreign_contents.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/foreign.h"
#include "reshard/import_source.h"
#include "reshard/output_root.h"
#include "reshard/resume.h"
#include "reshard/root_model.h"
#include "reshard/shared_step.h"
#include "reshard/store_job.h"
#include "storage/location.h"

/* What becomes resident later: libhdf5, and a chunk's entry. */
enum { LATER_BYTES = 12 << 20, CHUNK_BYTES = 512 };

struct import_job {
    struct import_request own; /* the request, with `out` */
    const struct import_request *request;
    char out[PATH_MAX]; /* without trailing slashes, if it is in a store */
    struct arena arena;
    struct model model;
    struct layout layout;
    struct import_source source;
    struct checkpoint_target *target;
    struct copy_job copy;
    struct resume resume;
    int64_t remote_bytes;         /* resident later for a source that is not local */
    struct comm_control *control; /* NULL: this process alone */
};

static struct resume_job resume_job_of(struct import_job *x)
{
    return (struct resume_job){ &x->copy, &x->arena, x->request->progress };
}

tp_status import_check_format(const char *format, struct tp_err *err)
{
    char list[FOREIGN_LIST_TEXT];

    if (strcmp(format, "auto") == 0 || strcmp(format, "safetensors") == 0 ||
        foreign_format_find(format))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "unknown format '%s'; it is one of %s", format,
                   foreign_format_list(list, "", ", "));
}

static tp_status read_model(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    tp_status st;

    /* before the tables are read, which fit into nothing where the program fills the limit */
    st = memory_budget_make(&x->copy.memory, q->memory_bytes, LATER_BYTES + x->remote_bytes,
                            q->threads, err);
    if (st)
        return st;
    return import_source_model(&x->model, q, &x->arena, err);
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

/* SHA-256 of what this import does. */
static tp_status identify(char identity[SHA256_TEXT], struct import_job *x, struct tp_err *err)
{
    char spec[SPEC_TEXT_MAX], zstd[24];
    struct sha256 *h;
    tp_status st = job_identity_new(&h, "import", err);

    if (st)
        return st;
    job_identity_text(h, spec_format(spec, &x->layout.spec));
    job_identity_text(h, x->model.config);
    if (x->request->zstd) {
        snprintf(zstd, sizeof zstd, "zstd %d", x->request->zstd);
        job_identity_text(h, zstd);
    }
    st = import_source_identify(&x->source, x->request, h, err);
    sha256_end(h, identity);
    return st;
}

/* Look for what an interrupted run of this import left. */
static tp_status find_interrupted(struct import_job *x, struct tp_err *err)
{
    char identity[SHA256_TEXT];
    tp_status st = identify(identity, x, err);

    return st ? st
              : resume_find(&x->resume, identity, x->request->out, x->source.step, &x->arena, err);
}

/* Several processes must read the same files. */
static tp_status compare_sources(struct import_job *x, struct tp_err *err)
{
    char identity[SHA256_TEXT] = "";
    tp_status st = identify(identity, x, err);

    st = control_agree(x->control, st, err);
    return st ? st : job_identity_compare(identity, x->request->source, x->control, err);
}

static tp_status plan_target(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    tp_status st;

    TP_TRY(checkpoint_target_plan(&x->target, &x->layout, x->control, err));
    if (q->zstd) {
        TP_TRY(checkpoint_target_compress(x->target, q->zstd, q->threads, err));
        shared_step_note_idle(x->target, x->control, q->progress);
    }
done:
    return st;
}

static tp_status plan(struct import_job *x, struct tp_err *err)
{
    const struct import_request *q = x->request;
    int64_t later =
        LATER_BYTES + x->remote_bytes + resume_memory_bytes(x->source.endpoint, &x->arena);
    int64_t chunks, parts = 0;
    tp_status st = TP_OK;

    x->copy.transfer = (struct transfer){ .n_tensors = x->layout.n_tensors,
                                          .tensors = x->source.transferred,
                                          .from = x->source.endpoint,
                                          .to = checkpoint_target_endpoint(x->target),
                                          .mine = checkpoint_target_mine(x->target),
                                          .control = x->control,
                                          .threads = q->threads,
                                          .progress = q->progress };
    if (location_is_remote(q->out)) {
        st = store_job_bytes(&parts, x->target, &x->layout, q->zstd ? q->threads : 0,
                             x->control != NULL, err);
        parts += memory_budget_connections();
    } else if (!x->control) {
        st = find_interrupted(x, err);
    }
    TP_TRY(control_agree(x->control, st, err));
    chunks = checkpoint_target_chunks(x->target);
    later += CHUNK_BYTES * chunks + resume_chunk_bytes(chunks) + parts;
    later += copy_job_collect(x->target, q->memory_bytes, later, q->threads);
    later += memory_budget_remote_more(q->source, q->memory_bytes, later, q->threads);
    TP_TRY(resume_plan(&x->resume, &x->copy, q->memory_bytes, later, err));
done:
    return st;
}

static tp_status copy(struct import_job *x, struct ckpt_transaction *t,
                      const struct ckpt_begin_request *begin, struct tp_err *err)
{
    const struct resume_job resume = resume_job_of(x);
    tp_status st;

    x->resume.interval_s = x->request->journal_s;
    TP_TRY(resume_begin(&x->resume, t, begin, &resume, x->target, err));
    TP_TRY(resume_run(&x->resume, &resume, err));
done:
    return st;
}

static struct ckpt_begin_request begin_request_of(const struct import_job *x)
{
    return (struct ckpt_begin_request){ .root = x->request->out,
                                        .step = x->source.step,
                                        .force = x->request->force,
                                        .wait = { progress_say, x->request->progress, 0 } };
}

/* Several processes. */
static tp_status write_together(struct import_job *x, struct manifest *m, struct tp_err *err)
{
    struct shared_step step = { begin_request_of(x), x->target, &x->copy, &x->arena, x->control };

    return shared_step_run(&step, m, err);
}

static tp_status write_local_step(struct import_job *x, struct manifest *m, struct tp_err *err)
{
    struct ckpt_begin_request begin = begin_request_of(x);
    struct ckpt_transaction t = { .tmp.lock_fd = -1 };
    tp_status st;

    stop_listen_all(); /* before it nothing has begun */
    TP_TRY(ckpt_epoch(&begin.epoch, begin.root, err));
    TP_TRY(copy(x, &t, &begin, err));
    TP_TRY(checkpoint_target_finish(x->target, m, &x->arena, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(ckpt_commit(&t, m, err));
done:
    if (st == TP_E_STOPPED)
        ckpt_suspend(&t);
    else if (st)
        ckpt_abort(&t);
    return st;
}

/* As tp-train calls it: "bf16" where weights are. */
static const char *dtype_of(const struct layout *l)
{
    for (int i = 0; i < l->n_tensors; i++)
        if (strcmp(l->tensors[i].group, GROUP_PARAM) == 0 && l->tensors[i].dtype == DTYPE_BF16)
            return "bf16";
    return "fp32";
}

/* AdamW's options, as tp-train notes them: a later export gives them to the optimizer. *out is NULL
 * where there are none. */
static tp_status options_of(const char **out, struct import_job *x, struct tp_err *err)
{
    struct export_adamw a = { .lr = -1 };

    *out = NULL;
    if (x->source.pieces && x->source.n_tensors > x->source.n_params)
        piece_source_adamw(x->source.pieces, &a);
    if (a.lr < 0 || !isfinite(a.lr + a.beta1 + a.beta2 + a.eps + a.weight_decay))
        return TP_OK;
    *out = arena_printf(&x->arena,
                        "{\"lr\": %.17g, \"beta1\": %.17g, \"beta2\": %.17g, \"eps\": %.17g, "
                        "\"weight_decay\": %.17g}",
                        a.lr, a.beta1, a.beta2, a.eps, a.weight_decay);
    return *out ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for the manifest");
}

static tp_status write_step(struct import_job *x, struct tp_err *err)
{
    const int64_t step = x->source.step;
    struct manifest m = {
        .layout = x->layout,
        .model_config = x->model.config,
        .step = step,
        .state = { .step = step,
                   .optimizer_start = step - x->source.optimizer_step,
                   .dtype = dtype_of(&x->layout) },
    };
    struct store_job store = { x->request->out, &m,        &x->layout, x->target,
                               &x->copy,        &x->arena, x->control };
    tp_status st = control_agree(x->control, options_of(&m.state.options, x, err), err);

    if (st)
        return st;
    if (location_is_remote(x->request->out))
        return store_job_run(&store, err);
    return x->control ? write_together(x, &m, err) : write_local_step(x, &m, err);
}

static tp_status fill_report(struct import_report *r, const struct import_job *x,
                             struct tp_err *err)
{
    *r = (struct import_report){ .totals = resume_totals(&x->resume, &x->copy),
                                 .name = x->source.name,
                                 .format = x->source.title,
                                 .stored_bytes = checkpoint_target_stored_bytes(x->target),
                                 .left_out = x->source.left_out };
    r->totals.spec = x->layout.spec;
    r->totals.step = x->source.step;
    r->totals.checksums = x->source.checksums;
    for (int rank = 0; rank < spec_world(&x->layout.spec); rank++)
        r->files += checkpoint_target_rank_bytes(x->target, rank) > 0;
    if (r->totals.tiles == 0) /* there was no journal */
        r->totals.tiles = x->copy.planned.tiles;
    if (x->request->dry_run)
        copy_totals_plan(&r->totals, &x->copy);
    return copy_totals_add_up(&r->totals, x->control, err);
}

/* Before anything is read. */
static tp_status take_request(struct import_job *x, const struct import_request *q,
                              struct tp_err *err)
{
    tp_status st;

    x->own = *q;
    x->own.out = x->out;
    x->own.keeps_adamw = !q->no_optim;
    x->request = &x->own;
    TP_TRY(output_root_name(x->out, q->out, q->source, NULL, NULL, err));
    if (location_kind(x->out) != LOCATION_S3)
        TP_TRY(location_check_local(x->out, err));
    st = output_root_check(x->out, q->force, err);
done:
    return st;
}

/* What people name by mistake: a checkpoint that needs no import. */
static tp_status check_source(const char *source, struct tp_err *err)
{
    const struct foreign_format *beside;
    tp_status st = location_check(source, err);

    if (st)
        return st;
    if (location_is_remote(source))
        st = foreign_reach(source, err);
    if (st || !foreign_contents_has_steps(source))
        return st;
    beside = foreign_format_detect_any(source);
    if (beside)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has steps of tp-train, and beside them files of %s; to import those, "
                       "move them into a folder of their own (the steps need no import: tp-reshard "
                       "changes their layout)",
                       source, beside->title);
    return tp_fail(err, TP_E_USAGE,
                   "%s: is a checkpoint of tp-train, which needs no import; tp-reshard changes "
                   "its layout",
                   source);
}

/* Everything before the first collective. */
static tp_status open_job(struct import_job *x, const struct import_request *request,
                          struct tp_err *err)
{
    tp_status st;

    TP_TRY(take_request(x, request, err));
    TP_TRY(import_check_format(request->format, err));
    TP_TRY(check_source(request->source, err));
    x->remote_bytes = memory_budget_remote(request->source, request->memory_bytes);
    TP_TRY(read_model(x, err));
    TP_TRY(lay_out(x, err));
    TP_TRY(plan_target(x, err));
done:
    return st;
}

tp_status import_run(struct import_report *report, const struct import_request *request,
                     struct tp_err *err)
{
    struct import_job *x = calloc(1, sizeof *x);
    tp_status st;

    if (!x)
        return tp_fail(err, TP_E_NOMEM, "no memory to import");
    if (control_size(request->control) > 1)
        x->control = request->control;
    TP_TRY(control_agree(x->control, open_job(x, request, err), err));
    if (x->control && !location_is_remote(request->source))
        TP_TRY(compare_sources(x, err));
    TP_TRY(plan(x, err));
    if (!request->dry_run)
        TP_TRY(write_step(x, err));
    st = fill_report(report, x, err);
done:
    resume_free(&x->resume);
    copy_job_free(&x->copy);
    checkpoint_target_close(x->target);
    import_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
