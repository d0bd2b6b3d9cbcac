/* reshard/resume.c - see reshard/resume.h. */
#include "reshard/resume.h"

#include <math.h>
#include <string.h>

#include "ckpt/chunk_sums.h"
#include "ckpt/shard_pack_resume.h"
#include "core/clock.h"
#include "core/stop.h"
#include "reshard/read_back.h"
#include "storage/remote.h"

/* Records may cost a twentieth of the time. There are four rounds of tiles per record. A word takes
 * 8 bytes in the journal's copy and up to 16 in a record. Reading back takes sums and a flag for
 * each chunk. */
enum { COST_LIMIT = 20, ROUNDS_PER_RECORD = 4, WORD_BYTES = 24, READ_BACK_CHUNK_BYTES = 32 };

/* ---- before the plan ---- */

void resume_look(struct resume *r, const char *path)
{
    struct transfer_journal_head found = { .n_tiles = 0 };
    struct tp_err why;
    tp_status st = transfer_journal_peek(&found, path, &why);

    if (st == TP_E_NOTFOUND || r->tmp)
        return; /* it has no journal, or it has hardly begun */
    if (st || memcmp(found.identity_sha256, r->head.identity_sha256, SHA256_TEXT) != 0) {
        r->other = path;
        return;
    }
    r->tmp = path;
    r->found_thread_bytes = found.thread_bytes;
    r->found_tiles = found.n_tiles;
    r->found_made_root = found.made_root;
}

tp_status resume_find(struct resume *r, const char identity_sha256[SHA256_TEXT], const char *root,
                      int64_t step, struct arena *arena, struct tp_err *err)
{
    const char **paths = NULL;
    int n = 0;
    tp_status st = ckpt_list_temporaries(&paths, &n, root, step, arena, err);

    if (st)
        return st;
    memcpy(r->head.identity_sha256, identity_sha256, SHA256_TEXT);
    for (int i = 0; i < n; i++)
        resume_look(r, paths[i]);
    return TP_OK;
}

int64_t resume_memory_bytes(const struct reshard_endpoint *e, struct arena *arena)
{
    const int n = e->resumable ? e->resumable->sums(e->ctx, NULL) : 0;
    struct reshard_sums *sums = arena_array(arena, (size_t)n + 1, sizeof *sums);
    int64_t words = 0;

    if (sums && n > 0)
        e->resumable->sums(e->ctx, sums);
    for (int i = 0; sums && i < n; i++)
        words += sums[i].n;
    return words * WORD_BYTES;
}

int64_t resume_chunk_bytes(int64_t chunks)
{
    return chunks *
           ((CHUNK_SUM_WORDS + SHARD_PACK_CHUNK_WORDS) * WORD_BYTES + READ_BACK_CHUNK_BYTES);
}

tp_status resume_plan(struct resume *r, struct copy_job *copy, int64_t memory_bytes,
                      int64_t later_bytes, struct tp_err *err)
{
    tp_status st;

    copy->transfer.thread_bytes = r->found_thread_bytes;
    st = copy_job_plan(copy, memory_bytes, later_bytes, err);
    if (st == TP_E_BUDGET && r->found_thread_bytes > 0) {
        copy->transfer.thread_bytes = 0;
        st = copy_job_plan(copy, memory_bytes, later_bytes, err);
    }
    return st;
}

bool resume_fits(struct resume *r, const struct copy_job *copy)
{
    r->head.thread_bytes = transfer_plan_thread_bytes(copy->plan);
    r->head.n_tiles = r->tiles = copy->planned.tiles;
    return r->tmp && r->found_thread_bytes == r->head.thread_bytes && r->found_tiles == r->tiles;
}

/* ---- beginning ---- */

static struct transfer_journal_subject subject_of(const struct resume *r, const char *dir)
{
    return (struct transfer_journal_subject){ dir, &r->head, r->sums, r->n_sums };
}

/* After the files have been created or created again. */
static tp_status list_sums(struct resume *r, const struct resume_job *job, struct tp_err *err)
{
    const struct reshard_endpoint *from = job->copy->transfer.from, *to = job->copy->transfer.to;
    int n_source = from->resumable->sums(from->ctx, NULL);

    r->n_sums = n_source + to->resumable->sums(to->ctx, NULL) + 1;
    r->sums = arena_array(job->arena, (size_t)r->n_sums, sizeof *r->sums);
    if (!r->sums)
        return tp_fail(err, TP_E_NOMEM, "no memory for a journal");
    from->resumable->sums(from->ctx, r->sums);
    to->resumable->sums(to->ctx, r->sums + n_source);
    r->sums[r->n_sums - 1] = transfer_plan_cast_sums(job->copy->plan);
    return to->resumable->layout_sha256(to->ctx, r->head.layout_sha256, err);
}

tp_status resume_create(struct resume *r, const char *dir, const struct resume_job *job,
                        struct tp_err *err)
{
    struct transfer_journal_subject s;
    tp_status st;

    TP_TRY(list_sums(r, job, err));
    s = subject_of(r, dir);
    TP_TRY(transfer_journal_create(&r->journal, &s, err));
    r->recorded_s = clock_seconds();
done:
    return st;
}

/* Check what the journal claims, and leave the other tiles to resume_run. */
static tp_status skip_complete_tiles(struct resume *r, const struct resume_job *job,
                                     struct tp_err *err)
{
    struct copy_job *copy = job->copy;
    struct read_back check = { .plan = copy->plan,
                               .target = copy->transfer.to,
                               .journal = r->journal,
                               .tiles = r->resumed_tiles,
                               .bytes = copy->planned.bytes_written,
                               .progress = job->progress };
    tp_status st;

    TP_TRY(transfer_plan_skip(copy->plan, r->resumed_tiles, err));
    transfer_plan_stats(copy->plan, &copy->planned);
    check.bytes -= copy->planned.bytes_written;
    TP_TRY(read_back_run(&check, err));
    r->damaged_chunks = check.damaged;
done:
    return st;
}

tp_status resume_continue(struct resume *r, const char *dir, const struct resume_job *job,
                          struct tp_err *err)
{
    const struct reshard_endpoint *from = job->copy->transfer.from;
    struct transfer_journal_subject s;
    tp_status st;

    r->head.made_root = r->found_made_root;
    TP_TRY(list_sums(r, job, err));
    s = subject_of(r, dir);
    TP_TRY(transfer_journal_resume(&r->journal, &r->resumed_tiles, &s, err));
    if (from->resumable->resumed)
        from->resumable->resumed(from->ctx);
    TP_TRY(skip_complete_tiles(r, job, err));
    progress_note(job->progress, "resuming an interrupted run: %lld of %lld tiles are complete",
                  (long long)r->resumed_tiles, (long long)r->tiles);
    r->recorded_s = clock_seconds();
done:
    return st;
}

tp_status resume_forget(struct resume *r, const struct resume_job *job, struct tp_err *err)
{
    tp_status st;

    transfer_journal_close(r->journal);
    r->journal = NULL;
    r->resumed_tiles = 0;
    for (int i = 0; i < r->n_sums; i++)
        if (r->sums[i].n > 0)
            memset(r->sums[i].words, 0, (size_t)r->sums[i].n * sizeof *r->sums[i].words);
    st = transfer_plan_skip(job->copy->plan, 0, err);
    if (!st)
        transfer_plan_stats(job->copy->plan, &job->copy->planned);
    return st;
}

void resume_note_other(const struct resume *r, const struct resume_job *job)
{
    if (r->other)
        progress_note(job->progress,
                      "%.800s: cannot be resumed: it is damaged, or its source, layout, options "
                      "or a larger --mem differ from this run; starting over",
                      r->other);
}

void resume_note_failed(const struct tp_err *why, const struct resume_job *job)
{
    progress_note(job->progress, "cannot resume: %.900s; starting over", why->msg);
}

/* ---- the step of a checkpoint ---- */

static const char *const scratch[] = { TRANSFER_JOURNAL_FILE, SHARD_PACK_FILE_0, SHARD_PACK_FILE_1,
                                       NULL };

static tp_status continue_step(struct resume *r, struct ckpt_transaction *t,
                               const struct resume_job *job, struct checkpoint_target *target,
                               struct tp_err *err)
{
    tp_status st;

    t->scratch = scratch;
    t->made_root = r->found_made_root;
    st = checkpoint_target_recreate(target, t->tmp.path, err);
    return st ? st : resume_continue(r, t->tmp.path, job, err);
}

/* Remove a temporary directory that cannot be continued, and begin another. */
static tp_status discard(struct resume *r, struct ckpt_transaction *t,
                         const struct ckpt_begin_request *request, const struct resume_job *job,
                         struct checkpoint_target *target, struct tp_err *err)
{
    struct ckpt_begin_request again = *request;
    tp_status st;

    TP_TRY(resume_forget(r, job, err));
    checkpoint_target_reset(target);
    ckpt_abort(t);
    again.resume = NULL;
    TP_TRY(ckpt_begin(t, &again, err));
done:
    return st;
}

tp_status resume_begin(struct resume *r, struct ckpt_transaction *t,
                       const struct ckpt_begin_request *request, const struct resume_job *job,
                       struct checkpoint_target *target, struct tp_err *err)
{
    struct ckpt_begin_request q = *request;
    struct tp_err why = { 0 };
    tp_status st;

    q.exclusive = true;
    if (resume_fits(r, job->copy))
        q.resume = r->tmp;
    else if (r->tmp)
        r->other = r->tmp;
    TP_TRY(ckpt_begin(t, &q, err));
    resume_note_other(r, job);
    if (t->resumed)
        st = continue_step(r, t, job, target, &why);
    if (st == TP_E_STOPPED) {
        *err = why;
        return st;
    }
    if (st) {
        resume_note_failed(&why, job);
        TP_TRY(discard(r, t, &q, job, target, err));
    }
    if (!t->resumed) {
        t->scratch = scratch;
        r->head.made_root = t->made_root;
        TP_TRY(checkpoint_target_create(target, t->tmp.path, err));
        TP_TRY(resume_create(r, t->tmp.path, job, err));
    }
done:
    if (st)
        ckpt_abort(t);
    return st;
}

/* ---- running ---- */

/* Between two rounds: record progress now and then, and when a signal asks to stop. */
static tp_status record(struct resume *r, int64_t done, const struct resume_job *job,
                        struct tp_err *err)
{
    const struct reshard_endpoint *to = job->copy->transfer.to;
    double start = clock_seconds(), wait = r->record_s * COST_LIMIT;
    bool stop = stop_requested();
    tp_status st;

    if (wait < r->interval_s || r->interval_s <= 0)
        wait = r->interval_s;
    if (!stop && start - r->recorded_s < wait)
        return TP_OK;
    TP_TRY(to->resumable->sync(to->ctx, err));
    TP_TRY(transfer_journal_append(r->journal, done, err));
    r->recorded_s = clock_seconds();
    r->record_s = r->recorded_s - start;
    if (stop)
        st = tp_fail(err, TP_E_STOPPED,
                     "interrupted: %lld of %lld tiles are complete; run the same command again to "
                     "resume",
                     (long long)done, (long long)r->tiles);
done:
    return st;
}

tp_status resume_run(struct resume *r, const struct resume_job *job, struct tp_err *err)
{
    struct transfer_run *run = NULL;
    int64_t done = 0;
    tp_status st = transfer_begin(&run, job->copy->plan, err);

    if (st)
        return st;
    progress_action(job->progress, "copying", PROGRESS_COPIED, job->copy->planned.bytes_written);
    remote_tries_stop(true); /* the last record stays, and an outage may be why a signal came; after
                                a failure, what is in flight ends so, too */
    while (!st && !transfer_is_done(run)) {
        st = transfer_round(run, r->interval_s / ROUNDS_PER_RECORD, &done, err);
        if (!st && !transfer_is_done(run))
            st = record(r, done, job, err);
    }
    st = transfer_end(run, st, &job->copy->done, err);
    if (!st)
        remote_tries_stop(false);
    return st;
}

struct copy_totals resume_totals(const struct resume *r, const struct copy_job *copy)
{
    return (struct copy_totals){ .n_tensors = copy->transfer.n_tensors,
                                 .boxes = copy->transfer.to->n_extents,
                                 .bytes_read = copy->done.bytes_read,
                                 .bytes_written = copy->done.bytes_written,
                                 .peak_bytes = memory_peak_bytes(),
                                 .digests_equal = copy->digests_equal,
                                 .casts = copy->casts,
                                 .tiles = r->tiles,
                                 .resumed_tiles = r->resumed_tiles,
                                 .damaged_chunks = r->damaged_chunks };
}

void resume_free(struct resume *r)
{
    transfer_journal_close(r->journal);
    r->journal = NULL;
}
