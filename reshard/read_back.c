/* reshard/read_back.c - see reshard/read_back.h. */
#include "reshard/read_back.h"

#include "core/stop.h"

/* Between two batches a signal is noticed. */
enum { BATCH_TILES = 64 };

/* transfer_read_back or transfer_redo. */
typedef tp_status (*read_back_fn)(struct transfer_run *run, int64_t first, int64_t n,
                                  struct tp_err *err);

static tp_status for_all_tiles(const struct read_back *r, struct transfer_run *run, read_back_fn fn,
                               struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int64_t first = 0; first < r->tiles && !st; first += BATCH_TILES) {
        int64_t left = r->tiles - first;

        if (stop_requested())
            return tp_fail(err, TP_E_STOPPED,
                           "interrupted while reading what was written before; run the same "
                           "command again to resume");
        st = fn(run, first, left < BATCH_TILES ? left : BATCH_TILES, err);
    }
    return st;
}

/* Copy the damaged chunks again. The sums count these tiles twice then, so the journal's are put
 * back; the second reading shows whether the chunks are now what they say. */
static tp_status repair(struct read_back *r, struct transfer_run *run, struct tp_err *err)
{
    int64_t left;
    tp_status st;

    progress_note(r->progress,
                  "%lld chunks are not what the interrupted run wrote; they are written again",
                  (long long)r->damaged);
    TP_TRY(for_all_tiles(r, run, transfer_redo, err));
    transfer_journal_restore(r->journal);
    TP_TRY(for_all_tiles(r, run, transfer_read_back, err));
    left = r->target->resumable->compare(r->target->ctx);
    if (left > 0)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%lld chunks of the unfinished shards differ from what the source has now",
                     (long long)left);
done:
    return st;
}

tp_status read_back_run(struct read_back *r, struct tp_err *err)
{
    struct transfer_run *run = NULL;
    tp_status st;

    r->damaged = 0;
    if (r->tiles == 0)
        return TP_OK;
    TP_TRY(r->target->resumable->suspect(r->target->ctx, err));
    TP_TRY(transfer_begin(&run, r->plan, err));
    progress_action(r->progress, "reading back", PROGRESS_OTHER, r->bytes);
    TP_TRY(for_all_tiles(r, run, transfer_read_back, err));
    r->damaged = r->target->resumable->compare(r->target->ctx);
    if (r->damaged > 0)
        TP_TRY(repair(r, run, err));
done:
    transfer_cancel(run);
    r->target->resumable->trust(r->target->ctx);
    return st;
}
