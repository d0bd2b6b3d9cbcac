/* cli/reshard/reshard_journal.c - see cli/reshard/reshard_journal.h. */
#include "cli/reshard/reshard_journal.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/hash.h"
#include "cli/reshard/reshard_job.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/stop.h"

/* Journals may cost a twentieth of the time; rounds of windows are a quarter of what lies between
 * two records. A sum takes 8 bytes in the journal's copy and up to 16 in a record. */
enum { COST_LIMIT = 20, ROUNDS_A_RECORD = 4, SUM_BYTES = 24 };

/* ---- which job it is ---- */

tp_status reshard_journal_identify(struct reshard_job *job, const struct reshard_request *request,
                                   struct tp_err *err)
{
    struct arena arena = { 0 };
    char path[PATH_MAX], sha[HASH_TEXT], to[SPEC_TEXT_MAX], *text = NULL;
    const char *what;
    size_t n = 0;
    tp_status st;

    if (snprintf(path, sizeof path, "%s/manifest.json", job->dir) >= (int)sizeof path)
        return tp_fail(err, TP_E_USAGE, "%.200s...: path is too long", job->dir);
    TP_TRY(file_read_own(&text, &n, path, MANIFEST_MAX_BYTES, &arena, err));
    TP_TRY(hash_bytes(sha, text, n, err));
    what = arena_printf(
        &arena, "tp-reshard %s\nsource %s step %" PRId64 " manifest %s\nto %s\n%s%s", TP_VERSION,
        job->m.save_id, job->m.step, sha, spec_format(to, &job->layout.spec),
        request->no_optim ? "no-optim\n" : "", request->dtype ? dtype_name(*request->dtype) : "");
    if (!what) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a journal", job->dir);
        goto done;
    }
    TP_TRY(hash_bytes(job->journal.head.identity_sha256, what, strlen(what), err));
    job->journal.every_s = request->journal_s;
done:
    arena_free(&arena);
    return st;
}

/* A ckpt_fits_fn: the same job; its windows are looked at later. */
static bool same_job(void *ctx, const char *tmp)
{
    struct reshard_job *job = ctx;
    struct transfer_journal_head *mine = &job->journal.head, head = { .n_tiles = 0 };
    struct tp_err ignored;

    if (transfer_journal_peek(&head, tmp, &ignored) ||
        memcmp(head.identity_sha256, mine->identity_sha256, sizeof head.identity_sha256) != 0)
        return false;
    mine->thread_bytes = head.thread_bytes;
    return true;
}

int64_t reshard_journal_worker_bytes(struct reshard_job *job)
{
    job->journal.head.thread_bytes = 0;
    ckpt_look_tmp(job->out, job->m.step, same_job, job);
    return job->journal.head.thread_bytes;
}

int64_t reshard_journal_bytes(const struct reshard_job *job)
{
    int64_t rows = checkpoint_source_rows(job->source) + checkpoint_target_rows(job->target);

    return rows * 3 * SUM_BYTES;
}

/* A ckpt_fits_fn: the same job, cut into the same windows. */
static bool same_windows(void *ctx, const char *tmp)
{
    struct reshard_job *job = ctx;
    struct transfer_journal_head *mine = &job->journal.head, head = { .n_tiles = 0 };
    struct tp_err err;
    tp_status st = transfer_journal_peek(&head, tmp, &err);

    if (!st &&
        memcmp(head.identity_sha256, mine->identity_sha256, sizeof head.identity_sha256) == 0 &&
        head.thread_bytes == mine->thread_bytes && head.n_tiles == mine->n_tiles) {
        mine->made_root = head.made_root;
        return true;
    }
    if (st != TP_E_NOTFOUND)
        snprintf(job->journal.misfit, sizeof job->journal.misfit, "%s", tmp);
    return false;
}

/* ---- keeping it ---- */

/* A transfer_watch's between: record now and then, and when somebody wants us to stop. */
static tp_status between(void *ctx, int64_t done, struct tp_err *err)
{
    struct reshard_job *job = ctx;
    struct reshard_journal *j = &job->journal;
    double start = clock_seconds(), wait = j->record_s * COST_LIMIT;
    bool stop = stop_requested();
    tp_status st;

    if (wait < j->every_s || j->every_s <= 0)
        wait = j->every_s;
    if (!stop && start - j->recorded_s < wait)
        return TP_OK;
    TP_TRY(checkpoint_target_sync(job->target, err));
    TP_TRY(transfer_journal_append(j->file, done, err));
    j->recorded_s = clock_seconds();
    j->record_s = j->recorded_s - start;
    if (stop)
        st = tp_fail(err, TP_E_STOPPED,
                     "stopped: %lld of %lld windows are done; the same command goes on from there",
                     (long long)done, (long long)j->windows);
done:
    return st;
}

static tp_status list_sums(struct reshard_job *job, struct tp_err *err)
{
    struct reshard_journal *j = &job->journal;
    int n_source = checkpoint_source_sums(job->source, NULL);

    j->n_sums = n_source + checkpoint_target_sums(job->target, NULL);
    j->sums = arena_array(&job->arena, (size_t)j->n_sums, sizeof *j->sums);
    if (!j->sums)
        return tp_fail(err, TP_E_NOMEM, "no memory for a journal");
    checkpoint_source_sums(job->source, j->sums);
    checkpoint_target_sums(job->target, j->sums + n_source);
    return checkpoint_target_places(job->target, j->head.places_sha256, err);
}

/* ---- beginning ---- */

static tp_status start_over(struct reshard_job *job, struct tp_err *err)
{
    struct reshard_journal *j = &job->journal;
    tp_status st = checkpoint_target_create(job->target, &job->txn, err);

    j->head.made_root = job->txn.made_root;
    if (!st)
        st = list_sums(job, err);
    if (!st)
        st = transfer_journal_create(&j->file, job->txn.tmp, &j->head, j->sums, j->n_sums, err);
    return st;
}

static tp_status go_on(struct reshard_job *job, struct tp_err *err)
{
    struct reshard_journal *j = &job->journal;
    tp_status st;

    job->txn.made_root = j->head.made_root;
    TP_TRY(checkpoint_target_recreate(job->target, &job->txn, err));
    TP_TRY(list_sums(job, err));
    TP_TRY(transfer_journal_resume(&j->file, &j->done_before, job->txn.tmp, &j->head, j->sums,
                                   j->n_sums, err));
    TP_TRY(transfer_plan_skip(job->plan, j->done_before, err));
    transfer_plan_stats(job->plan, &job->planned);
    snprintf(job->note, sizeof job->note, "going on: %lld of %lld windows were done",
             (long long)j->done_before, (long long)j->windows);
done:
    return st;
}

/* What cannot be gone on with is removed, and another temporary begun. */
static tp_status replace(struct reshard_job *job, int64_t epoch, const struct tp_err *why,
                         struct tp_err *err)
{
    struct reshard_journal *j = &job->journal;

    snprintf(job->note, sizeof job->note, "cannot go on, so starting over: %.900s", why->msg);
    transfer_journal_close(j->file);
    j->file = NULL;
    j->done_before = 0;
    for (int i = 0; i < j->n_sums; i++)
        memset(j->sums[i].words, 0, (size_t)j->sums[i].n * sizeof *j->sums[i].words);
    checkpoint_target_reset(job->target);
    ckpt_abort(&job->txn);
    return ckpt_begin(&job->txn, job->out, job->m.step, epoch, job->force, err);
}

tp_status reshard_journal_begin(struct reshard_job *job, int64_t epoch, struct tp_err *err)
{
    struct reshard_journal *j = &job->journal;
    struct tp_err why = { 0 };
    bool resumed = false;
    tp_status st;

    j->head.thread_bytes = transfer_plan_thread_bytes(job->plan);
    j->head.n_tiles = j->windows = job->planned.windows;
    TP_TRY(ckpt_begin_again(&job->txn, &resumed, job->out, job->m.step, epoch, job->force,
                            same_windows, job, err));
    if (j->misfit[0])
        snprintf(job->note, sizeof job->note,
                 "%.800s: was begun from another source, with another --to, other options or more "
                 "--mem, or is damaged: starting over",
                 j->misfit);
    if (resumed && go_on(job, &why) != TP_OK) {
        resumed = false;
        TP_TRY(replace(job, epoch, &why, err));
    }
    if (!resumed)
        TP_TRY(start_over(job, err));
    j->recorded_s = clock_seconds();
    j->watch = (struct transfer_watch){ j->every_s / ROUNDS_A_RECORD, between, job };
    transfer_plan_watch(job->plan, &j->watch);
done:
    if (st)
        ckpt_abort(&job->txn);
    return st;
}
