/*
 * reshard/formats/verl/verl_extra.c - extra_state of each rank: the schedule and the random state;
 * see reshard/formats/verl/verl_state.h.
 */
#include <string.h>

#include "reshard/formats/verl/verl_state.h"
#include "torch/pickle_copy.h"

static tp_status add_rank(const struct verl_state *d, int64_t *epoch, int rank, struct tp_err *err)
{
    struct verl_rank r;
    int64_t is = -1;
    tp_status st;

    TP_TRY(verl_rank_open(&r, d, "extra_state", rank, err));
    if (!pickle_int(&is, pickle_get(pickle_get(r.x.root, "lr_scheduler"), "last_epoch")))
        is = -1;
    if (rank == 0)
        *epoch = is;
    if (is != *epoch)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: its schedule is at step %lld, but that of rank 0 at %lld; the two files "
                     "are of different saves",
                     file_table_path(piece_source_files(d->source), r.x.file), (long long)is,
                     (long long)*epoch);
    for (int64_t i = 0; rank == 0 && i < pickle_entries(r.x.root) && !st; i++) {
        const struct pickle_value *v = pickle_entry(r.x.root, i);
        const char *key = pickle_text(pickle_key(r.x.root, i));

        if (!key || pickle_is(v, PICKLE_NONE))
            continue;
        st = strcmp(key, "lr_scheduler") == 0 && pickle_copy_can(v)
                 ? piece_source_leave_extra(d->source, key, epoch, sizeof *epoch, err)
                 : piece_source_leave(d->source, key, err);
    }
done:
    torch_pieces_close(&r.x);
    return st;
}

tp_status verl_extra_add(const struct verl_state *d, struct tp_err *err)
{
    int64_t epoch = -1;
    bool has = false;
    tp_status st;

    TP_TRY(verl_folder_has(&has, d, "extra_state", err));
    for (int rank = 0; rank < d->world && has; rank++)
        TP_TRY(add_rank(d, &epoch, rank, err));
done:
    return st;
}
