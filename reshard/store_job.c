/* reshard/store_job.c - see reshard/store_job.h. */
#include "reshard/store_job.h"

#include <stdlib.h>

#include "ckpt/store_step.h"
#include "core/stop.h"
#include "storage/remote.h"
#include "storage/upload_sender.h"

/* ---- memory ---- */

/* Parts that are incomplete while the boxes of one tensor are written to one file: at the begin and
 * the end of what has arrived of each box. */
static int64_t parts_of(int64_t boxes, int64_t bytes)
{
    const int64_t all = bytes / UPLOAD_PART_BYTES_MIN + 2;

    return 2 * boxes + 1 < all ? 2 * boxes + 1 : all;
}

/* Of each file of compressed chunks, the first part waits for the end, and one is not full; each
 * thread completes another one, or two. */
static int64_t packed_bytes(const struct checkpoint_target *target, int threads)
{
    const bool *mine = checkpoint_target_mine(target);
    int n = 0, files = 0;
    const struct stored_box *boxes = checkpoint_target_boxes(target, &n);

    for (int i = 0; i < n; i++)
        files += (!mine || mine[i]) && (i == 0 || boxes[i].rank != boxes[i - 1].rank);
    return (2 * ((int64_t)files + threads) + upload_sender_usual()) * UPLOAD_PART_BYTES_MIN;
}

tp_status store_job_bytes(int64_t *out, const struct checkpoint_target *target,
                          const struct layout *to, int packers, bool shared, struct tp_err *err)
{
    int n = 0, next, files = 0;
    const struct stored_box *boxes = checkpoint_target_boxes(target, &n);
    int64_t *parts, most = 0, index;

    if (packers) {
        *out = packed_bytes(target, packers);
        return TP_OK;
    }
    parts = calloc((size_t)to->n_tensors + 1, sizeof *parts);
    if (!parts)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan of %d tensors", to->n_tensors);
    for (int i = 0; i < n; i = next) {
        const int tensor = boxes[i].tensor;
        int64_t bytes = 0;

        files += i == 0 || boxes[i].rank != boxes[i - 1].rank;
        for (next = i;
             next < n && boxes[next].rank == boxes[i].rank && boxes[next].tensor == tensor; next++)
            bytes += box_elements(&boxes[next].box) * dtype_bytes(to->tensors[tensor].dtype);
        parts[tensor] += parts_of(next - i, bytes);
        most = parts[tensor] > most ? parts[tensor] : most;
    }
    free(parts);
    if (shared) /* of each file, the part in which the tiles of a process begin stays incomplete */
        most += files;
    index = files + checkpoint_target_chunks(target) * CHUNK_ENTRY_BYTES / UPLOAD_PART_BYTES_MIN;
    *out = (most + index + upload_sender_usual()) * UPLOAD_PART_BYTES_MIN;
    return TP_OK;
}

/* ---- the work ---- */

static bool is_root(const struct store_job *job)
{
    return control_rank(job->control) == 0;
}

/* Begin the step, and create or join its shards. */
static tp_status begin(struct store_job *job, struct store_step *step, struct tp_err *err)
{
    tp_status st =
        is_root(job) ? store_step_begin(step, job->root, job->from->step, false, err) : TP_OK;

    TP_TRY(control_agree(job->control, st, err));
    if (job->control)
        TP_TRY(control_broadcast(job->control, step->dir, sizeof step->dir, 0, err));
    TP_TRY(checkpoint_target_create(job->target, step->dir, err));
done:
    return st;
}

/* All processes, when the store has all of all shards: rank 0 makes them appear, or each process
 * its own, and rank 0 writes the manifest. */
static tp_status commit(struct store_job *job, const struct store_step *step, struct manifest *m,
                        struct tp_err *err)
{
    const bool each = job->control && checkpoint_target_mine(job->target);
    int64_t remove;
    tp_status st = is_root(job) ? copy_job_prove(job->copy, err) : TP_OK;

    if (!st && is_root(job))
        st = store_step_clear(step, err);
    TP_TRY(control_agree(job->control, st, err));
    if (each || is_root(job))
        st = checkpoint_target_appear(job->target, err);
    if (!st && is_root(job))
        st = store_step_commit(step, m, err);
    st = control_agree(job->control, st, err);
    remove = st && st != TP_E_COMM && is_root(job) && store_step_owns(step);
    if (st && st != TP_E_COMM && each) {
        struct tp_err ignored = { 0 };

        control_broadcast(job->control, &remove, sizeof remove, 0, &ignored);
    }
    if (remove && (each || is_root(job)))
        checkpoint_target_remove(job->target);
done:
    return st;
}

/* After a failure on all processes: no part may arrive after rank 0 has ended its upload. */
static void end_uploads(struct store_job *job)
{
    struct tp_err ignored = { 0 };

    if (!job->control)
        return;
    if (!is_root(job))
        checkpoint_target_reset(job->target);
    control_barrier(job->control, &ignored);
}

static tp_status run(struct store_job *job, struct tp_err *err)
{
    struct manifest m = *job->from;
    struct store_step step = { .step = 0 };
    tp_status st;

    m.layout = *job->to;
    remote_tries_stop(true); /* an outage may be why a signal came; after a failure, parts in flight
                                end so, too */
    TP_TRY(begin(job, &step, err));
    TP_TRY(copy_job_run(job->copy, err));
    TP_TRY(checkpoint_target_finish(job->target, &m, job->arena, err));
    remote_tries_stop(false);
    TP_TRY(commit(job, &step, &m, err));
done:
    return st;
}

tp_status store_job_run(struct store_job *job, struct tp_err *err)
{
    tp_status st;

    stop_listen_all();
    upload_sender_limit(upload_sender_usual());
    checkpoint_target_stops(job->target);
    st = run(job, err);
    if (st && st != TP_E_COMM)
        end_uploads(job);
    if (st == TP_E_STOPPED)
        st = tp_fail(err, TP_E_STOPPED,
                     "interrupted; nothing was kept in the store; run the same command again to "
                     "start over");
    return st;
}
