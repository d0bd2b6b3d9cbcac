/* reshard/resume.c - see reshard/resume.h. */
#include "reshard/resume.h"

#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "core/stop.h"
#include "reshard/read_back.h"

/* Records may cost a twentieth of the time. There are four rounds of tiles per record. A word takes
 * 8 bytes in the journal's copy and up to 16 in a record. Reading back takes sums and a flag for
 * each chunk. */
enum { COST_LIMIT = 20, ROUNDS_PER_RECORD = 4, WORD_BYTES = 24, READ_BACK_CHUNK_BYTES = 32 };

/* ---- before the plan ---- */

tp_status resume_find(struct resume *r, const char identity_sha256[SHA256_TEXT], const char *root,
                      int64_t step, struct arena *arena, struct tp_err *err)
{
    const char **paths = NULL;
    int n = 0;
    tp_status st = ckpt_list_temporaries(&paths, &n, root, step, arena, err);

    if (st)
        return st;
    memcpy(r->head.identity_sha256, identity_sha256, SHA256_TEXT);
    for (int i = 0; i < n && !r->tmp; i++) {
        struct transfer_journal_head found = { .n_tiles = 0 };
        struct tp_err why;

        st = transfer_journal_peek(&found, paths[i], &why);
        if (st == TP_E_NOTFOUND)
            continue; /* not a reshard, or it has hardly begun */
        if (st || memcmp(found.identity_sha256, identity_sha256, SHA256_TEXT) != 0) {
            r->other = paths[i];
            continue;
        }
        r->tmp = paths[i];
        r->found_thread_bytes = found.thread_bytes;
        r->found_tiles = found.n_tiles;
        r->found_made_root = found.made_root;
    }
    return TP_OK;
}

int64_t resume_memory_bytes(const struct resume_job *job)
{
    int64_t chunks = checkpoint_source_chunks(job->source) + checkpoint_target_chunks(job->target);

    return chunks * 3 * WORD_BYTES + checkpoint_target_chunks(job->target) * READ_BACK_CHUNK_BYTES;
}

/* ---- beginning ---- */

static struct transfer_journal_subject subject_of(const struct resume *r,
                                                  const struct ckpt_transaction *t)
{
    return (struct transfer_journal_subject){ t->tmp.path, &r->head, r->sums, r->n_sums };
}

/* After the shards have been created or recreated. */
static tp_status list_sums(struct resume *r, const struct resume_job *job, struct tp_err *err)
{
    int n_source = checkpoint_source_sums(job->source, NULL);

    r->n_sums = n_source + checkpoint_target_sums(job->target, NULL) + 1;
    r->sums = arena_array(job->arena, (size_t)r->n_sums, sizeof *r->sums);
    if (!r->sums)
        return tp_fail(err, TP_E_NOMEM, "no memory for a journal");
    checkpoint_source_sums(job->source, r->sums);
    checkpoint_target_sums(job->target, r->sums + n_source);
    r->sums[r->n_sums - 1] = transfer_plan_cast_sums(job->copy->plan);
    return checkpoint_target_layout_sha256(job->target, r->head.layout_sha256, err);
}

static tp_status start_over(struct resume *r, struct ckpt_transaction *t,
                            const struct resume_job *job, struct tp_err *err)
{
    struct transfer_journal_subject s;
    tp_status st;

    t->scratch = TRANSFER_JOURNAL_FILE;
    TP_TRY(checkpoint_target_create(job->target, t->tmp.path, err));
    r->head.made_root = t->made_root;
    TP_TRY(list_sums(r, job, err));
    s = subject_of(r, t);
    TP_TRY(transfer_journal_create(&r->journal, &s, err));
done:
    return st;
}

/* Check what the journal claims, and leave the other tiles to resume_run. */
static tp_status skip_complete_tiles(struct resume *r, const struct resume_job *job,
                                     struct tp_err *err)
{
    struct copy_job *copy = job->copy;
    struct read_back check = { .plan = copy->plan,
                               .target = job->target,
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

static tp_status continue_run(struct resume *r, struct ckpt_transaction *t,
                              const struct resume_job *job, struct tp_err *err)
{
    struct transfer_journal_subject s;
    tp_status st;

    t->scratch = TRANSFER_JOURNAL_FILE;
    t->made_root = r->found_made_root;
    r->head.made_root = r->found_made_root;
    TP_TRY(checkpoint_target_recreate(job->target, t->tmp.path, err));
    TP_TRY(list_sums(r, job, err));
    s = subject_of(r, t);
    TP_TRY(transfer_journal_resume(&r->journal, &r->resumed_tiles, &s, err));
    checkpoint_source_resumed(job->source);
    TP_TRY(skip_complete_tiles(r, job, err));
    progress_note(job->progress, "resuming an interrupted run: %lld of %lld tiles are complete",
                  (long long)r->resumed_tiles, (long long)r->tiles);
done:
    return st;
}

/* Remove a temporary directory that cannot be continued, and begin another. */
static tp_status discard(struct resume *r, struct ckpt_transaction *t,
                         const struct ckpt_begin_request *request, const struct resume_job *job,
                         struct tp_err *err)
{
    struct ckpt_begin_request again = *request;
    tp_status st;

    transfer_journal_close(r->journal);
    r->journal = NULL;
    r->resumed_tiles = 0;
    for (int i = 0; i < r->n_sums; i++)
        if (r->sums[i].n > 0)
            memset(r->sums[i].words, 0, (size_t)r->sums[i].n * sizeof *r->sums[i].words);
    checkpoint_target_reset(job->target);
    ckpt_abort(t);
    TP_TRY(transfer_plan_skip(job->copy->plan, 0, err));
    transfer_plan_stats(job->copy->plan, &job->copy->planned);
    again.resume = NULL;
    TP_TRY(ckpt_begin(t, &again, err));
done:
    return st;
}

tp_status resume_begin(struct resume *r, struct ckpt_transaction *t,
                       const struct ckpt_begin_request *request, const struct resume_job *job,
                       struct tp_err *err)
{
    struct ckpt_begin_request q = *request;
    struct tp_err why = { 0 };
    tp_status st;

    r->head.thread_bytes = transfer_plan_thread_bytes(job->copy->plan);
    r->head.n_tiles = r->tiles = job->copy->planned.tiles;
    q.exclusive = true;
    if (r->tmp && (r->found_thread_bytes != r->head.thread_bytes || r->found_tiles != r->tiles))
        r->other = r->tmp;
    else
        q.resume = r->tmp;
    TP_TRY(ckpt_begin(t, &q, err));
    if (r->other)
        progress_note(job->progress,
                      "%.800s: cannot be resumed: it is damaged, or its source, --to, options or "
                      "a larger --mem differ from this run; starting over",
                      r->other);
    if (t->resumed)
        st = continue_run(r, t, job, &why);
    if (st == TP_E_STOPPED) {
        *err = why;
        return st;
    }
    if (st) {
        progress_note(job->progress, "cannot resume: %.900s; starting over", why.msg);
        TP_TRY(discard(r, t, &q, job, err));
    }
    if (!t->resumed)
        TP_TRY(start_over(r, t, job, err));
    r->recorded_s = clock_seconds();
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
    double start = clock_seconds(), wait = r->record_s * COST_LIMIT;
    bool stop = stop_requested();
    tp_status st;

    if (wait < r->interval_s || r->interval_s <= 0)
        wait = r->interval_s;
    if (!stop && start - r->recorded_s < wait)
        return TP_OK;
    TP_TRY(checkpoint_target_sync(job->target, err));
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
    while (!st && !transfer_is_done(run)) {
        st = transfer_round(run, r->interval_s / ROUNDS_PER_RECORD, &done, err);
        if (!st && !transfer_is_done(run))
            st = record(r, done, job, err);
    }
    return transfer_end(run, st, &job->copy->done, err);
}

void resume_free(struct resume *r)
{
    transfer_journal_close(r->journal);
    r->journal = NULL;
}
