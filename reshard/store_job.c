/* reshard/store_job.c - see reshard/store_job.h. */
#include "reshard/store_job.h"

#include <stdlib.h>

#include "ckpt/store_step.h"
#include "core/stop.h"
#include "storage/remote.h"
#include "storage/upload_sender.h"

enum { PARTS_NEXT = 2 };

/* ---- memory ---- */

/* Parts that are incomplete while the boxes of one tensor are written to one file: at the begin and
 * the end of what has arrived of each box. */
static int64_t parts_of(int64_t boxes, int64_t bytes)
{
    const int64_t all = bytes / UPLOAD_PART_BYTES_MIN + 2;

    return 2 * boxes + 1 < all ? 2 * boxes + 1 : all;
}

/* Parts that are complete and on their way: one for each connection, and the next ones. */
static int parts_sent(void)
{
    return remote_connections() + PARTS_NEXT;
}

tp_status store_job_bytes(int64_t *out, const struct checkpoint_target *target,
                          const struct layout *to, struct tp_err *err)
{
    int n = 0, next, files = 0;
    const struct stored_box *boxes = checkpoint_target_boxes(target, &n);
    int64_t *parts = calloc((size_t)to->n_tensors + 1, sizeof *parts), most = 0, index;

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
    index = files + checkpoint_target_chunks(target) * CHUNK_ENTRY_BYTES / UPLOAD_PART_BYTES_MIN;
    *out = (most + index + parts_sent()) * UPLOAD_PART_BYTES_MIN;
    return TP_OK;
}

/* ---- the work ---- */

static tp_status run(struct store_job *job, struct tp_err *err)
{
    struct manifest m = *job->from;
    struct store_step step;
    tp_status st;

    m.layout = *job->to;
    TP_TRY(store_step_begin(&step, job->root, job->from->step, false, err));
    TP_TRY(checkpoint_target_create(job->target, step.dir, err));
    TP_TRY(copy_job_run(job->copy, err));
    TP_TRY(checkpoint_target_finish(job->target, &m, job->arena, err));
    TP_TRY(copy_job_prove(job->copy, err));
    TP_TRY(checkpoint_target_appear(job->target, err));
    st = store_step_commit(&step, &m, err);
    if (st && st != TP_E_EXISTS) /* else the shards may belong to the writer that was faster */
        checkpoint_target_remove(job->target);
done:
    return st;
}

tp_status store_job_run(struct store_job *job, struct tp_err *err)
{
    tp_status st;

    stop_listen_all();
    upload_sender_limit(parts_sent());
    checkpoint_target_stops(job->target);
    st = run(job, err);
    if (st == TP_E_STOPPED)
        st = tp_fail(err, TP_E_STOPPED,
                     "interrupted; nothing was kept in the store; run the same command again to "
                     "start over");
    return st;
}
