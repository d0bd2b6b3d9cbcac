/* reshard/reshard.c - see reshard/reshard.h. */
#include "reshard/reshard.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/epoch.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/stop.h"
#include "reshard/clone_job.h"
#include "reshard/job_identity.h"
#include "reshard/linked_shards.h"
#include "reshard/output_root.h"
#include "reshard/shared_step.h"
#include "reshard/store_job.h"
#include "reshard/target_layout.h"
#include "storage/location.h"

/* Upper estimates of what becomes resident later, without buffers: libhdf5 and code that is used
 * later; the entry of a chunk in the writer and in the index that is written; an open file. */
enum { LATER_BYTES = 12 << 20, CHUNK_BYTES = 512, FILE_BYTES = 16 << 10 };

/* The same for CUDA, if the device is still being opened when the memory is divided. */
enum { CUDA_BYTES = 384 << 20 };

struct reshard_job {
    const struct reshard_request *request;
    struct comm_control *control; /* NULL: this process alone */
    struct arena *arena;
    struct ckpt_found from;
    struct target_layout to;
    char out[PATH_MAX];
    struct checkpoint_source *source;
    struct checkpoint_target *target;
    struct copy_job copy;
    struct clone_job clone;
    int64_t remote_bytes; /* resident later for a source that is not local */
    struct resume resume;
    struct ckpt_transaction transaction;
    int64_t *linked_rank_bytes; /* [ranks of `to`] payload of the source's files, when the new step
                                   consists of them; else NULL */
};

static struct resume_job resume_job_of(struct reshard_job *job)
{
    return (struct resume_job){ &job->copy, job->arena, job->request->progress };
}

static bool is_root(const struct reshard_job *job)
{
    return control_rank(job->control) == 0;
}

/* ---- the plan ---- */

/* SHA-256 of what this run does, by which a later run recognizes its journal. */
static tp_status identify(char out[SHA256_TEXT], const struct reshard_job *job, struct tp_err *err)
{
    const struct reshard_request *q = job->request;
    const struct manifest *m = &job->from.manifest;
    struct arena arena = { 0 };
    char path[PATH_MAX], sha[SHA256_TEXT], to[SPEC_TEXT_MAX], zstd[24] = "";
    const char *text;
    tp_status st;

    TP_TRY(file_join(path, job->from.dir, MANIFEST_FILE, err));
    TP_TRY(sha256_file(sha, path, err));
    if (q->zstd)
        snprintf(zstd, sizeof zstd, " zstd %d", q->zstd);
    text = arena_printf(&arena, "tp-reshard %s\nsource %s step %lld manifest %s\nto %s\n%s%s%s%s",
                        TP_VERSION, m->save_id, (long long)m->step, sha,
                        spec_format(to, &job->to.layout.spec), q->no_optim ? "no-optim\n" : "",
                        q->dtype ? dtype_name(*q->dtype) : "",
                        job->clone.n_tensors > 0 ? " clone" : "", zstd);
    st = text ? sha256_of(out, text, strlen(text), err)
              : tp_fail(err, TP_E_NOMEM, "%s: no memory for a journal", job->from.dir);
done:
    arena_free(&arena);
    return st;
}

/* Link when the request asks for it and it is possible; else say why not. A dry run needs the sizes
 * of the files that would be linked. */
static tp_status decide_link(struct reshard_job *job, struct tp_err *err)
{
    const struct manifest *m = &job->from.manifest;
    char why[LINKED_SHARDS_TEXT];

    if (!job->request->link)
        return TP_OK;
    linked_shards_possible(&job->from, &job->to.layout, job->to.ids, job->out, why);
    for (int i = 0; i < m->n_shards && job->request->raw && !why[0]; i++)
        if (m->shards[i].chunked)
            snprintf(why, sizeof why, "the files are compressed, and --no-compress wants raw ones");
    if (why[0]) {
        progress_note(job->request->progress, "--link: nothing can be linked: %s; copying", why);
        return TP_OK;
    }
    job->linked_rank_bytes = arena_array(job->arena, (size_t)spec_world(&job->to.layout.spec),
                                         sizeof *job->linked_rank_bytes);
    if (!job->linked_rank_bytes)
        return tp_fail(err, TP_E_NOMEM, "no memory to link files");
    return linked_shards_check(&job->from, job->linked_rank_bytes, err);
}

/* Nothing is cloned then. */
static tp_status compress_target(struct reshard_job *job, struct tp_err *err)
{
    const struct reshard_request *q = job->request;

    tp_status st;

    if (q->link)
        return tp_fail(err, TP_E_USAGE, "--link keeps files as they are, so it excludes --zstd");
    st = checkpoint_target_compress(job->target, q->zstd, q->threads, err);
    if (!st)
        shared_step_note_idle(job->target, job->control, q->progress);
    return st;
}

static tp_status open_endpoints(struct reshard_job *job, struct tp_err *err)
{
    const struct reshard_request *q = job->request;
    struct target_layout_request layout;
    char identity[SHA256_TEXT];
    tp_status st;

    job->remote_bytes = memory_budget_remote(q->ckpt, q->memory_bytes);
    TP_TRY(ckpt_open(&job->from, q->ckpt, q->step, job->arena, err));
    if (job->from.note[0])
        progress_note(q->progress, "%s", job->from.note);
    layout = (struct target_layout_request){ &job->from, q->from, q->to, q->no_optim, q->dtype };
    TP_TRY(target_layout_make(&job->to, &layout, job->arena, err));
    job->copy.transfer.tensors = job->to.tensors;
    job->copy.transfer.n_tensors = job->to.n_tensors;
    TP_TRY(output_root_name(job->out, q->out, q->ckpt, &job->from, &job->to.layout.spec, err));
    TP_TRY(output_root_check(job->out, q->force, err)); /* so that a dry run finds it too */
    TP_TRY(checkpoint_source_open(&job->source, &job->from, job->to.ids, job->to.n_tensors,
                                  q->zstd ? NULL : job->control, err));
    TP_TRY(checkpoint_target_plan(&job->target, &job->to.layout, job->control, err));
    TP_TRY(decide_link(job, err));
    if (q->zstd)
        TP_TRY(compress_target(job, err));
    else if (!job->control && !job->linked_rank_bytes && !q->no_clone &&
             clone_job_possible(job->from.dir, job->out))
        TP_TRY(clone_job_plan(&job->clone, job->source, job->target, job->copy.transfer.tensors,
                              &job->to.layout, err));
    if (!job->control && !job->linked_rank_bytes && !location_is_remote(job->out)) {
        TP_TRY(identify(identity, job, err));
        TP_TRY(resume_find(&job->resume, identity, job->out, job->from.manifest.step, job->arena,
                           err));
    }
done:
    return st;
}

static tp_status plan(struct reshard_job *job, struct tp_err *err)
{
    const struct reshard_request *q = job->request;
    struct transfer *t = &job->copy.transfer;
    int64_t later = LATER_BYTES + job->remote_bytes +
                    (int64_t)spec_world(&job->to.layout.spec) * FILE_BYTES +
                    checkpoint_target_chunks(job->target) * CHUNK_BYTES +
                    resume_chunk_bytes(checkpoint_target_chunks(job->target)) +
                    resume_memory_bytes(checkpoint_source_endpoint(job->source), job->arena) +
                    checkpoint_source_memory(job->source, q->threads);
    tp_status st;

    if (q->device && q->device->wait)
        later += CUDA_BYTES;
    t->from = checkpoint_source_endpoint(job->source);
    t->to = checkpoint_target_endpoint(job->target);
    t->threads = q->threads;
    t->device = q->device;
    if (location_is_remote(job->out)) {
        int64_t parts = 0;

        TP_TRY(store_job_bytes(&parts, job->target, &job->to.layout, q->zstd ? q->threads : 0,
                               job->control != NULL, err));
        later += parts + memory_budget_connections();
    }
    t->control = job->control;
    t->progress = q->progress;
    t->elsewhere = job->clone.tensors;
    t->mine = checkpoint_target_mine(job->target);
    later += copy_job_collect(job->target, q->memory_bytes, later, q->threads);
    later += memory_budget_remote_more(q->ckpt, q->memory_bytes, later, q->threads);
    TP_TRY(resume_plan(&job->resume, &job->copy, q->memory_bytes, later, err));
    if (!q->dry_run && !job->resume.tmp && !job->linked_rank_bytes)
        transfer_plan_announce(job->copy.plan);
done:
    return st;
}

/* ---- the work ---- */

/* Several processes must read the same step. */
static tp_status compare_sources(const struct reshard_job *job, struct tp_err *err)
{
    char identity[SHA256_TEXT] = "";
    tp_status st = control_agree(job->control, identify(identity, job, err), err);

    return st ? st : job_identity_compare(identity, job->request->ckpt, job->control, err);
}

static struct ckpt_begin_request begin_request_of(const struct reshard_job *job)
{
    const struct reshard_request *q = job->request;

    return (struct ckpt_begin_request){ .root = job->out,
                                        .step = job->from.manifest.step,
                                        .force = q->force,
                                        .wait = { progress_say, q->progress, 0 } };
}

/* Begin OUT's step and copy everything into it. */
static tp_status copy(struct reshard_job *job, struct tp_err *err)
{
    const struct reshard_request *q = job->request;
    const struct resume_job resume = resume_job_of(job);
    struct ckpt_begin_request begin = begin_request_of(job);
    tp_status st;

    TP_TRY(ckpt_epoch(&begin.epoch, job->out, err));
    stop_listen_all();
    job->resume.interval_s = q->journal_s;
    TP_TRY(resume_begin(&job->resume, &job->transaction, &begin, &resume, job->target, err));
    TP_TRY(resume_run(&job->resume, &resume, err));
    TP_TRY(clone_job_run(&job->clone, job->source, job->target, q->threads, q->progress, err));
done:
    return st;
}

/* Finish the shards, prove, and make the step appear. */
static tp_status commit(struct reshard_job *job, struct tp_err *err)
{
    struct manifest m = job->from.manifest;
    tp_status st;

    m.layout = job->to.layout;
    TP_TRY(checkpoint_target_finish(job->target, &m, job->arena, err));
    TP_TRY(copy_job_prove(&job->copy, err));
    TP_TRY(ckpt_commit(&job->transaction, &m, err));
done:
    return st;
}

/* The same of several processes. */
static tp_status copy_together(struct reshard_job *job, struct tp_err *err)
{
    struct shared_step step = { begin_request_of(job), job->target, &job->copy, job->arena,
                                job->control };
    struct manifest m = job->from.manifest;

    m.layout = job->to.layout;
    return shared_step_run(&step, &m, err);
}

/* Commit a step that consists of the source's files. Without a journal, so that no later run
 * continues it and writes into them; processes other than rank 0 have nothing to do. */
static tp_status link_step(struct reshard_job *job, struct tp_err *err)
{
    struct manifest m = job->from.manifest; /* with its shards */
    struct ckpt_begin_request begin = begin_request_of(job);
    tp_status st = TP_OK;

    begin.exclusive = true;
    m.layout = job->to.layout;
    if (is_root(job)) {
        TP_TRY(ckpt_epoch(&begin.epoch, job->out, err));
        TP_TRY(ckpt_begin(&job->transaction, &begin, err));
        TP_TRY(linked_shards_make(&job->from, job->transaction.tmp.path, err));
        TP_TRY(ckpt_commit(&job->transaction, &m, err));
    }
done:
    return control_agree(job->control, st, err);
}

/* A new local step is begun while the device is being opened, and removed if that fails. What an
 * earlier run has begun must not end so, and elsewhere nothing is copied meanwhile. */
static tp_status await_device(const struct reshard_job *job, struct tp_err *err)
{
    const struct transfer_device *on = job->request->device;

    if (!on || !on->wait || on->if_faster)
        return TP_OK;
    return job->resume.tmp || job->linked_rank_bytes || location_is_remote(job->out)
               ? on->wait(on->ctx, err)
               : TP_OK;
}

static tp_status execute(struct reshard_job *job, struct tp_err *err)
{
    struct store_job store = { job->out,   &job->from.manifest, &job->to.layout, job->target,
                               &job->copy, job->arena,          job->control };
    tp_status st;

    if (location_is_remote(job->out))
        return store_job_run(&store, err);
    if (job->control && !job->linked_rank_bytes)
        return copy_together(job, err);
    st = job->linked_rank_bytes ? link_step(job, err) : copy(job, err);
    if (!st && !job->linked_rank_bytes)
        st = commit(job, err);
    if (st == TP_E_STOPPED)
        ckpt_suspend(&job->transaction);
    else if (st && is_root(job))
        ckpt_abort(&job->transaction);
    return st;
}

/* ---- everything ---- */

static struct reshard_outcome outcome_of(const struct reshard_job *job)
{
    return (struct reshard_outcome){ .from = &job->from,
                                     .to = &job->to.layout,
                                     .kept = job->to.kept,
                                     .out = job->out,
                                     .copy = &job->copy,
                                     .resume = &job->resume,
                                     .clone = &job->clone,
                                     .target = job->target,
                                     .linked_rank_bytes = job->linked_rank_bytes,
                                     .control = job->control,
                                     .zstd = job->request->zstd,
                                     .dry_run = job->request->dry_run };
}

tp_status reshard_run(struct reshard_report *report, const struct reshard_request *request,
                      struct tp_err *err)
{
    struct reshard_report r = { .n_tensors = 0 };
    struct reshard_job *job = calloc(1, sizeof *job);
    struct reshard_outcome outcome;
    double start = clock_seconds();
    tp_status st;

    *report = r;
    if (!job)
        return tp_fail(err, TP_E_NOMEM, "no memory to reshard");
    job->request = request;
    job->control = control_size(request->control) > 1 ? request->control : NULL;
    job->arena = &r.arena;
    job->transaction.tmp.lock_fd = -1;
    TP_TRY(control_agree(job->control, open_endpoints(job, err), err));
    if (job->control && !location_is_remote(job->from.dir))
        TP_TRY(compare_sources(job, err));
    TP_TRY(plan(job, err));
    if (!request->dry_run) {
        TP_TRY(await_device(job, err));
        TP_TRY(execute(job, err));
    }
    outcome = outcome_of(job);
    TP_TRY(reshard_report_fill(&r, &outcome, err));
    r.seconds = clock_seconds() - start;
done:
    resume_free(&job->resume);
    copy_job_free(&job->copy);
    clone_job_free(&job->clone);
    checkpoint_target_close(job->target);
    checkpoint_source_close(job->source);
    free(job);
    *report = r; /* also after a failure: the caller frees its arena */
    return st;
}
