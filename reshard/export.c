/* reshard/export.c - see reshard/export.h. */
#include "reshard/export.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/file_tree.h"
#include "core/stop.h"
#include "reshard/atomic_folder.h"
#include "reshard/copy_job.h"
#include "reshard/export_options.h"
#include "reshard/export_source.h"
#include "reshard/export_store.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/hf_assets.h"
#include "reshard/formats/hf_config.h"
#include "reshard/formats/model_folder.h"
#include "reshard/resume.h"
#include "reshard/shared_step.h"
#include "storage/location.h"
#include "storage/remote.h"
#include "storage/upload_sender.h"

/* Code and tables that become resident later. */
enum { LATER_BYTES = 4 << 20 };

#define CONFIG_FILE "config.json"

/* In a temporary folder: where files are created to learn the places of tensors. */
#define PLACES_FOLDER "places.tmp"

struct export_job {
    const struct export_request *request;
    struct arena arena;
    const struct export_format *format;
    struct export_source source;
    struct export_writer writer; /* open while it has an endpoint */
    struct atomic_folder folder; /* of a local export */
    struct export_store store;   /* of one to a store */
    char scratch[PATH_MAX];      /* of a dry run; "": none */
    struct copy_job copy;
    int64_t remote_bytes; /* resident later for a source that is not local */
    struct resume resume;
    struct comm_control *control; /* NULL: this process alone */
};

static bool is_root(const struct export_job *x)
{
    return !x->control || control_rank(x->control) == 0;
}

static tp_status agree(const struct export_job *x, tp_status st, struct tp_err *err)
{
    return x->control ? control_agree(x->control, st, err) : st;
}

static struct resume_job resume_job_of(struct export_job *x)
{
    return (struct resume_job){ &x->copy, &x->arena, x->request->progress };
}

/* ---- where it is written ---- */

static bool to_store(const struct export_job *x)
{
    return location_is_remote(x->request->out);
}

/* The folder that is written, or that has headers and small files. */
static const char *folder_of(const struct export_job *x)
{
    return to_store(x) ? x->store.dir : x->folder.tmp;
}

/* Whether Megatron's distributed optimizer is written: as the source has it, unless one is
 * chosen. */
static bool is_distributed(const struct export_job *x)
{
    return x->request->distributed_optimizer ||
           (x->source.distributed && !x->request->ordinary_optimizer);
}

/* Whether Megatron's ordinary optimizer is written as torch.optim.AdamW: as the source has it,
 * unless a class is chosen. */
static bool is_torch_adam(const struct export_job *x)
{
    const char *chosen = x->request->megatron_adam;

    return chosen ? strcmp(chosen, "torch") == 0 : x->source.torch_adam;
}

/* The modules of Megatron-LM that are written: those that are chosen, else the source's. How the
 * source's experts were stored counts only for the same kind of modules. */
static struct export_modules modules_of(const struct export_job *x)
{
    const struct export_modules from = x->source.modules;
    const int impl =
                  export_options_word(x->request->transformer_impl, "local", "transformer_engine"),
              experts = export_options_word(x->request->moe_experts, "sequential", "grouped");
    struct export_modules m = { impl ? (enum export_impl)impl : from.impl,
                                (enum export_experts)experts };

    if (!experts && m.impl == from.impl)
        m.experts = from.experts;
    return m;
}

/* Whether names of transformers 5's modules are written: as the source has them, unless a version
 * is chosen. */
static bool has_module_names(const struct export_job *x)
{
    const char *chosen = x->request->transformers;

    return x->format->module_names && (chosen ? strcmp(chosen, "5") == 0 : x->source.module_names);
}

/* What is written to `dir`, which exists. */
static struct export_contents contents_of(const struct export_job *x, const char *dir)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;

    return (struct export_contents){ .dir = dir,
                                     .source = from->path,
                                     .from_format = q->foreign ? q->from_format : NULL,
                                     .model = &from->model,
                                     .tensors = from->layout.tensors,
                                     .n = from->layout.n_tensors,
                                     .layout = &from->layout,
                                     .step = from->step,
                                     .optimizer_step = from->optimizer_step,
                                     .adamw = from->adamw,
                                     .distributed_optimizer = is_distributed(x),
                                     .torch_adam = is_torch_adam(x),
                                     .modules = modules_of(x),
                                     .module_names = has_module_names(x),
                                     .param_groups = q->param_groups,
                                     .megatron_core = q->megatron_core,
                                     .max_shard_bytes = q->max_shard_bytes,
                                     .q8_0 = q->q8_0,
                                     .assets = q->assets,
                                     .progress = q->progress,
                                     .extras = from->extras };
}

/* Create the files. */
static tp_status create(struct export_job *x, const char *dir, struct tp_err *err)
{
    const struct export_contents contents = contents_of(x, dir);

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
        TP_TRY(file_tree_remove(other, err));
    TP_TRY(file_make_dirs(other, err));
    TP_TRY(create(x, other, err));
    st = x->format->keep(&x->writer, x->folder.tmp, TRANSFER_JOURNAL_FILE, err);
    close_writer(x);
    if (!st)
        st = file_tree_remove(other, err);
    if (!st)
        st = create(x, x->folder.tmp, err);
done:
    return st;
}

static tp_status plan(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct export_source *from = &x->source;
    int64_t later = LATER_BYTES + x->remote_bytes + x->writer.later_bytes +
                    resume_memory_bytes(from->endpoint, &x->arena) +
                    resume_memory_bytes(x->writer.endpoint, &x->arena) +
                    (from->checkpoint ? checkpoint_source_memory(from->checkpoint, q->threads) : 0);

    later += memory_budget_remote_more(q->ckpt, q->memory_bytes, later, q->threads);
    x->copy.transfer = (struct transfer){ .n_tensors = from->layout.n_tensors,
                                          .tensors = from->transferred,
                                          .from = from->endpoint,
                                          .to = x->writer.endpoint,
                                          .control = x->control,
                                          .threads = q->threads,
                                          .progress = q->progress };
    return resume_plan(&x->resume, &x->copy, q->memory_bytes, later, err);
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

/* --force must not replace what is read: an output has the tensors, and not all other files of its
 * source. */
static tp_status check_source(const struct export_request *q, struct tp_err *err)
{
    char source[PATH_MAX], out[PATH_MAX];
    size_t n;

    if (location_is_remote(q->ckpt) || !realpath(q->ckpt, source) || !realpath(q->out, out))
        return TP_OK;
    n = strlen(out);
    if (strncmp(source, out, n) != 0 || (source[n] != 0 && source[n] != '/'))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "-o %s: is the source, or a folder above it, which is never "
                   "replaced; name another folder",
                   q->out);
}

/* Begin the folder, and plan. An interrupted run is continued if `again`. */
static tp_status begin(struct export_job *x, bool again, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct resume_job job = resume_job_of(x);
    const struct atomic_folder_heir heir = { is_of_this_job, x };
    tp_status st;

    TP_TRY(check_source(q, err));
    TP_TRY(atomic_folder_begin(&x->folder, q->out, q->force, model_folder_replaceable,
                               again && x->format->keep ? &heir : NULL, err));
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
    if (is_distributed(x))
        job_identity_text(h, "distributed optimizer");
    if (is_torch_adam(x))
        job_identity_text(h, "torch's AdamW");
    if (q->transformer_impl)
        job_identity_text(h, q->transformer_impl);
    if (q->moe_experts)
        job_identity_text(h, q->moe_experts);
    if (q->megatron_core)
        job_identity_text(h, q->megatron_core);
    if (q->param_groups)
        job_identity_text(h, q->param_groups);
    if (has_module_names(x))
        job_identity_text(h, "names of modules");
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

    TP_TRY(x->format->keep && !to_store(x) ? resume_run(&x->resume, &job, err)
                                           : copy_job_run_or_stop(&x->copy, err));
    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
    if (x->writer.bytes > 0)
        x->copy.done.bytes_written = x->writer.bytes;
done:
    return st;
}

static tp_status write_config(struct export_job *x, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX], *text = NULL;
    tp_status st = hf_config_make(&text, &x->source.model, x->source.layout.tensors[0].dtype, err);

    if (st)
        return st;
    st = file_join(path, dir, CONFIG_FILE, err);
    if (!st)
        st = file_write_new(path, text, strlen(text), err);
    free(text);
    return st;
}

/* What is beside the tensors. */
static tp_status write_small_files(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const struct foreign_format *from =
        q->foreign && q->from_format ? foreign_format_find(q->from_format) : NULL;
    const char *assets = q->assets ? q->assets : q->foreign ? q->ckpt : NULL;
    char dir[PATH_MAX], beside[PATH_MAX];
    tp_status st;

    snprintf(dir, sizeof dir, "%s", folder_of(x));
    if (x->format->model_folder) {
        TP_TRY(file_join(dir, folder_of(x), x->format->model_folder, err));
        TP_TRY(file_make_dirs(dir, err));
    }
    if (!q->assets && from && from->assets) {
        TP_TRY(from->assets(beside, q->ckpt, err));
        assets = beside;
    }
    TP_TRY(write_config(x, dir, err));
    if (assets)
        st = hf_assets_copy(assets, dir, err);
done:
    return st;
}

static tp_status write_folder(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    stop_listen_all();       /* before it nothing has begun */
    remote_tries_stop(true); /* an outage may be why a signal came; after a failure, what is in
                                flight ends so, too */
    TP_TRY(begin_or_continue(x, err));
    TP_TRY(copy_tensors(x, err));
    TP_TRY(write_small_files(x, err));
    remote_tries_stop(false);
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    if (st == TP_E_STOPPED && x->format->keep)
        atomic_folder_suspend(&x->folder);
    else
        atomic_folder_abort(&x->folder);
    return st;
}

/* ---- several processes ----
 *
 * Rank 0 does everything that one process does, without a journal; the others only copy tensors.
 */

/* Rank 0 begins the folder and creates the files, and the others open them. */
static tp_status begin_together(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    struct export_contents contents;
    tp_status st = TP_OK;

    if (is_root(x)) {
        st = check_source(q, err);
        if (!st)
            st = atomic_folder_begin(&x->folder, q->out, q->force, model_folder_replaceable, NULL,
                                     err);
        if (!st)
            st = create(x, x->folder.tmp, err);
    }
    TP_TRY(control_agree(x->control, st, err));
    TP_TRY(shared_step_folder(x->control, x->folder.tmp, err));
    contents = contents_of(x, x->folder.tmp);
    st = x->format->share(&x->writer, &contents, x->control, err);
done:
    return st;
}

/* Put what this process wrote on the disk. */
static tp_status sync_own(const struct export_job *x, struct tp_err *err)
{
    const struct reshard_endpoint *to = x->writer.endpoint;

    return control_agree(x->control, to->resumable->sync(to->ctx, err), err);
}

/* On rank 0, when all processes have written. */
static tp_status complete(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    TP_TRY(copy_job_prove(&x->copy, err));
    TP_TRY(x->format->finish(&x->writer, err));
    TP_TRY(write_small_files(x, err));
    TP_TRY(atomic_folder_commit(&x->folder, err));
done:
    return st;
}

static tp_status write_together(struct export_job *x, struct tp_err *err)
{
    tp_status st;

    TP_TRY(begin_together(x, err));
    TP_TRY(plan(x, err));
    TP_TRY(copy_job_run(&x->copy, err));
    TP_TRY(sync_own(x, err));
    st = control_agree(x->control, is_root(x) ? complete(x, err) : TP_OK, err);
done:
    if (is_root(x))
        atomic_folder_abort(&x->folder);
    return st;
}

/* Several processes must read the same files. */
static tp_status compare_sources(struct export_job *x, struct tp_err *err)
{
    tp_status st = control_agree(x->control, identify(x, err), err);

    return st ? st
              : job_identity_compare(x->resume.head.identity_sha256, x->source.path, x->control,
                                     err);
}

/* ---- a dry run ---- */

/* Create the files in a folder of its own, to learn what goes where. */
static tp_status create_scratch(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    const char *above = q->scratch ? q->scratch : "/tmp";
    tp_status st;

    TP_TRY(check_source(q, err));
    TP_TRY(atomic_folder_check(q->out, q->force, model_folder_replaceable, err));
    TP_TRY(file_join(x->scratch, above, "tp-plan-XXXXXX", err));
    if (!mkdtemp(x->scratch)) {
        x->scratch[0] = 0;
        return tp_fail_errno(err, "%s: cannot create a folder for headers in it", above);
    }
    st = create(x, x->scratch, err);
done:
    return st;
}

static tp_status plan_only(struct export_job *x, struct tp_err *err)
{
    struct export_contents contents;
    tp_status st = agree(x, is_root(x) ? create_scratch(x, err) : TP_OK, err);

    if (!st && x->control) {
        contents = contents_of(x, is_root(x) ? x->scratch : x->request->out);
        st = x->format->share(&x->writer, &contents, x->control, err);
    }
    return st ? st : plan(x, err);
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
    TP_TRY(export_store_begin(&x->store, q->out, CONFIG_FILE, q->scratch,
                              x->source.layout.n_tensors, err));
    stop_listen_all();
    remote_tries_stop(true); /* as in write_folder */
    TP_TRY(create(x, x->store.dir, err));
    TP_TRY(x->format->send(&x->writer, x->store.files, err));
    TP_TRY(upload_set_bytes(&parts, x->store.files, q->threads, err));
    x->remote_bytes += parts + (q->threads + 1) * x->writer.send_bytes +
                       (location_is_remote(q->ckpt) ? 0 : memory_budget_connections());
    TP_TRY(plan(x, err));
    if (q->dry_run)
        goto done;
    upload_sender_limit(upload_sender_usual());
    TP_TRY(upload_set_begin(x->store.files, err));
    TP_TRY(copy_tensors(x, err));
    TP_TRY(write_small_files(x, err));
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
             to_store(x)           ? x->store.to
             : x->request->dry_run ? x->request->out
                                   : x->folder.dir);
    memcpy(r->left_out, from->left_out, sizeof r->left_out);
    if (r->totals.tiles == 0) /* there was no journal */
        r->totals.tiles = x->copy.planned.tiles;
    if (x->request->dry_run)
        copy_totals_plan(&r->totals, &x->copy);
    return copy_totals_add_up(&r->totals, x->control, err);
}

/* What one process does alone. */
static tp_status check_shared(const struct export_job *x, struct tp_err *err)
{
    if (!x->control)
        return TP_OK;
    if (!x->format->share)
        return tp_fail(err, TP_E_USAGE,
                       "--format %s: %s is written by one process; start it without mpirun",
                       x->format->name, x->format->title);
    if (to_store(x))
        return tp_fail(err, TP_E_USAGE,
                       "%s: the files of other frameworks are written to a store by one process; "
                       "start it without mpirun, or write to a folder, and copy that",
                       x->request->out);
    return TP_OK;
}

/* Everything before the first collective. */
static tp_status open_job(struct export_job *x, struct tp_err *err)
{
    const struct export_request *q = x->request;
    tp_status st;

    TP_TRY(export_format_find(&x->format, q->format, err));
    TP_TRY(export_options_check(q, x->format, err));
    TP_TRY(check_shared(x, err));
    x->remote_bytes = memory_budget_remote(q->ckpt, q->memory_bytes);
    TP_TRY(export_source_open(&x->source, q, x->format, &x->arena, err));
    if (q->moe_experts && x->source.model.experts == 0)
        TP_TRY(tp_fail(err, TP_E_USAGE, "--moe-experts %s: the model of %s has no experts",
                       q->moe_experts, x->source.path));
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
    if (request->control && control_size(request->control) > 1)
        x->control = request->control;
    TP_TRY(agree(x, open_job(x, err), err));
    if (x->control && !location_is_remote(request->ckpt))
        TP_TRY(compare_sources(x, err));
    if (to_store(x))
        st = write_store(x, err);
    else if (request->dry_run)
        st = plan_only(x, err);
    else
        st = x->control ? write_together(x, err) : write_folder(x, err);
    TP_TRY(st);
    st = fill_report(report, x, err);
done:
    resume_free(&x->resume);
    copy_job_free(&x->copy);
    close_writer(x);
    remove_scratch(x);
    export_store_end(&x->store);
    export_source_close(&x->source);
    arena_free(&x->arena);
    free(x);
    return st;
}
