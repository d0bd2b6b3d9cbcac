/* reshard/formats/checkpoint/target_owners.c - several processes that compress: which of them
 * writes which shard; see checkpoint_target.h.
 *
 * Where a compressed chunk goes depends on how long those before it became. So a shard has one
 * writer, which appends its chunks as if it worked alone: the file has the same bytes whatever the
 * number of processes.
 */
#include "reshard/engine/reduce_sums.h"
#include "reshard/formats/checkpoint/checkpoint_target.h"

/* Neighbouring ranks go to the same process, because they need neighbouring parts of the source.
 * A process ends where it has its fraction of all bytes; a shard goes where its middle is. */
tp_status checkpoint_target_divide(struct checkpoint_target *t, struct tp_err *err)
{
    const int n = control_size(t->control);
    double all = 0, before = 0;
    int64_t *bytes = arena_array(&t->arena, (size_t)t->world, sizeof *bytes);

    t->mine = arena_array(&t->arena, (size_t)t->endpoint.n_extents + 1, sizeof *t->mine);
    t->owners = arena_array(&t->arena, (size_t)t->world, sizeof *t->owners);
    if (!t->mine || !t->owners || !bytes)
        return tp_fail(err, TP_E_NOMEM, "no memory to divide %d shards", t->world);
    for (int i = 0; i < t->endpoint.n_extents; i++) {
        const struct stored_box *b = &t->boxes[i];
        const int64_t size = box_elements(&b->box) * dtype_bytes(t->dtypes[b->tensor]);

        bytes[b->rank] += size;
        all += (double)size;
    }
    for (int rank = 0; rank < t->world; rank++) {
        const int owner = (int)((before + (double)bytes[rank] / 2) / (all > 0 ? all : 1) * n);

        t->owners[rank] = bytes[rank] == 0 ? -1 : owner < n ? owner : n - 1;
        before += (double)bytes[rank];
    }
    for (int i = 0; i < t->endpoint.n_extents; i++)
        t->mine[i] = checkpoint_target_is_mine(t, t->boxes[i].rank);
    return TP_OK;
}

bool checkpoint_target_is_mine(const struct checkpoint_target *t, int rank)
{
    return !t->owners || t->owners[rank] == control_rank(t->control);
}

const bool *checkpoint_target_mine(const struct checkpoint_target *t)
{
    return t->mine;
}

int checkpoint_target_idle(const struct checkpoint_target *t)
{
    int idle = t->owners ? control_size(t->control) : 0;
    int last = -1;

    for (int rank = 0; rank < t->world && t->owners; rank++)
        if (t->owners[rank] > last) {
            last = t->owners[rank];
            idle--;
        }
    return idle;
}

tp_status checkpoint_target_combine(struct checkpoint_target *t, struct shard_info *found,
                                    struct tp_err *err)
{
    tp_status st;
    int n = 0;

    TP_TRY(reduce_digests(t->control, t->digests->d, 2 * (int64_t)t->layout->n_tensors, err));
    TP_TRY(control_sum_i64(t->control, &t->stored_bytes, 1, err));
    for (int rank = 0; rank < t->world; rank++) {
        if (t->owners[rank] < 0)
            continue;
        TP_TRY(control_broadcast(t->control, &found[n++], sizeof *found, t->owners[rank], err));
    }
done:
    return st;
}
