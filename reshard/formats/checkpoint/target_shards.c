/* reshard/formats/checkpoint/target_shards.c - the shards of a target, from their creation to their
 * commit; see reshard/formats/checkpoint/checkpoint.h.
 */
#include "ckpt/chunk_sums.h"
#include "core/file.h"
#include "core/thread_pool.h"
#include "reshard/engine/reduce_sums.h"
#include "reshard/formats/checkpoint/checkpoint_target.h"
#include "reshard/formats/checkpoint/shared_upload.h"
#include "storage/location.h"
#include "storage/remote.h"
#include "storage/upload.h"

/* ---- the files ---- */

static bool is_root(const struct checkpoint_target *t)
{
    return control_rank(t->control) == 0;
}

/* shard_create, shard_join or shard_recreate. */
typedef tp_status (*open_shard)(struct shard_writer **out, const struct shard_plan *plan,
                                struct tp_err *err);

static struct shard_plan shard_plan_of(struct checkpoint_target *t, const char *dir)
{
    return (struct shard_plan){
        .dir = dir,
        .layout = t->layout,
        .boxes = t->boxes,
        .n_boxes = t->endpoint.n_extents,
        .zstd = t->packer.level,
        .pool = &t->pool,
    };
}

/* Open the shard of each rank that has something to write. */
static tp_status open_writers(struct checkpoint_target *t, const char *dir, open_shard open,
                              struct tp_err *err)
{
    struct shard_plan plan = shard_plan_of(t, dir);
    tp_status st = TP_OK;

    for (int i = 0; i < plan.n_boxes && !st; i++) {
        plan.rank = t->boxes[i].rank;
        if (!t->writers[plan.rank] && checkpoint_target_is_mine(t, plan.rank))
            st = open(&t->writers[plan.rank], &plan, err);
    }
    return st;
}

/* Join the uploads of rank 0. */
static tp_status join_uploads(struct checkpoint_target *t, const char *dir, struct tp_err *err)
{
    struct shard_plan plan = shard_plan_of(t, dir);
    char id[UPLOAD_ID_MAX];
    tp_status st = TP_OK, joined = TP_OK;
    int last = -1;

    plan.upload_id = id;
    for (int i = 0; i < plan.n_boxes; i++) {
        plan.rank = t->boxes[i].rank;
        if (plan.rank == last)
            continue;
        last = plan.rank;
        TP_TRY(shared_upload_id(t->control, id,
                                is_root(t) ? shard_upload_of(t->writers[plan.rank]) : NULL, err));
        if (!is_root(t) && !joined)
            joined = shard_join(&t->writers[plan.rank], &plan, err);
    }
    st = joined;
done:
    return st;
}

/* Remember where the shards are, for what is saved beside them. */
static tp_status keep_dir(struct checkpoint_target *t, const char *dir, struct tp_err *err)
{
    t->dir = arena_printf(&t->arena, "%s", dir);
    t->endpoint.any_order = !location_is_remote(dir) && !t->packer.level;
    return t->dir ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for a path");
}

tp_status checkpoint_target_create(struct checkpoint_target *t, const char *dir, struct tp_err *err)
{
    tp_status st = keep_dir(t, dir, err);

    if (!st && (is_root(t) || t->owners))
        st = open_writers(t, dir, shard_create, err);
    st = control_agree(t->control, st, err);
    if (t->owners)
        return st;
    if (!st && t->control && location_is_remote(dir))
        st = join_uploads(t, dir, err);
    else if (!st && !is_root(t))
        st = open_writers(t, dir, shard_join, err);
    return control_agree(t->control, st, err);
}

tp_status checkpoint_target_recreate(struct checkpoint_target *t, const char *dir,
                                     struct tp_err *err)
{
    tp_status st = keep_dir(t, dir, err);

    return st ? st : open_writers(t, dir, shard_recreate, err);
}

/* ---- finishing ---- */

/* Add up the digests of a shard's chunks, which are those of its boxes in order. */
static tp_status sum_digests(struct checkpoint_target *t, int rank, const uint64_t *sums, int64_t n,
                             struct tp_err *err)
{
    int64_t chunk = 0;
    int n_boxes, first = stored_box_of_rank(&n_boxes, t->boxes, t->endpoint.n_extents, rank);

    for (int i = first; i < first + n_boxes; i++) {
        int64_t left = checkpoint_target_box_chunks(t, i);

        for (; left > 0 && (chunk + 1) * CHUNK_SUM_WORDS <= n; left--, chunk++) {
            const struct digest d = chunk_sums_digest(sums + chunk * CHUNK_SUM_WORDS);

            digest_add(&t->digests[t->boxes[i].tensor], &d);
        }
    }
    if (chunk * CHUNK_SUM_WORDS == n)
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL, "the shard of rank %d has %lld chunks, expected %lld", rank,
                   (long long)(n / CHUNK_SUM_WORDS), (long long)chunk);
}

/* Of a shard that this process alone has written. */
static tp_status finish_own_shard(struct checkpoint_target *t, int rank, struct shard_info *info,
                                  struct tp_err *err)
{
    int64_t n;
    const uint64_t *sums = shard_sums(t->writers[rank], &n);
    tp_status st;

    TP_TRY(checkpoint_target_check_stop(t, err));
    TP_TRY(sum_digests(t, rank, sums, n, err));
    TP_TRY(shard_finish(t->writers[rank], info, err));
    t->stored_bytes += shard_pack_stored_bytes(t->writers[rank]);
done:
    return st;
}

/* A thread_pool_fn: the shard of rank number `item`. */
static tp_status wait_for_shard(void *writers, int64_t item, int worker, struct tp_err *err)
{
    struct shard_writer *w = ((struct shard_writer **)writers)[item];

    (void)worker;
    return w ? shard_wait(w, err) : TP_OK;
}

/* Wait until the disk or the store has all that this process has finished. */
static tp_status wait_for_own(struct checkpoint_target *t, struct tp_err *err)
{
    const int threads = location_is_remote(t->dir) ? 1 : FILE_SYNC_THREADS;

    return thread_pool_run(wait_for_shard, t->writers, t->world, threads, err);
}

/* Each process finishes its shards at the same time as the others. */
static tp_status finish_divided(struct checkpoint_target *t, struct shard_info *shards, int *n,
                                struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 0; rank < t->world; rank++) {
        if (t->writers[rank] && !st)
            st = finish_own_shard(t, rank, &shards[*n], err);
        *n += t->owners[rank] >= 0;
    }
    if (!st)
        st = wait_for_own(t, err);
    TP_TRY(control_agree(t->control, st, err));
    TP_TRY(checkpoint_target_combine(t, shards, err));
done:
    return st;
}

static tp_status finish_shard(struct checkpoint_target *t, int rank, struct shard_info *info,
                              struct tp_err *err)
{
    struct reduce_sums sums = { .group = CHUNK_SUM_WORDS, .add = chunk_sums_add };
    tp_status st;

    TP_TRY(control_agree(t->control, checkpoint_target_check_stop(t, err), err));
    sums.words = shard_sums(t->writers[rank], &sums.n);
    if (t->control)
        TP_TRY(reduce_sums(t->control, &sums, err));
    if (is_root(t)) {
        TP_TRY(sum_digests(t, rank, sums.words, sums.n, err));
        TP_TRY(shard_finish(t->writers[rank], info, err));
        t->stored_bytes += shard_pack_stored_bytes(t->writers[rank]);
    }
done:
    return control_agree(t->control, st, err);
}

/* Wait until all shards are on the disk or sent. Local ones are rank 0's. */
static tp_status wait_for_all(struct checkpoint_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (!t->control || !location_is_remote(t->dir))
        return control_agree(t->control, is_root(t) ? wait_for_own(t, err) : TP_OK, err);
    for (int rank = 0; rank < t->world && !st; rank++)
        if (t->writers[rank])
            st = shared_upload_settle(t->control, shard_upload_of(t->writers[rank]), err);
    return st;
}

tp_status checkpoint_target_finish(struct checkpoint_target *t, struct manifest *m,
                                   struct arena *arena, struct tp_err *err)
{
    struct shard_info *shards = arena_array(arena, (size_t)t->world, sizeof *shards);
    tp_status st = TP_OK;
    int n = 0;

    if (!shards)
        st = tp_fail(err, TP_E_NOMEM, "no memory for a list of %d shards", t->world);
    TP_TRY(control_agree(t->control, st, err));
    m->shards = shards;
    if (t->owners) {
        TP_TRY(finish_divided(t, shards, &n, err));
        m->n_shards = n;
        return TP_OK;
    }
    for (int rank = 0; rank < t->world && t->control; rank++)
        if (t->writers[rank] && shard_upload_of(t->writers[rank]))
            TP_TRY(shared_upload_combine(t->control, shard_upload_of(t->writers[rank]), err));
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank])
            TP_TRY(finish_shard(t, rank, &shards[n++], err));
    TP_TRY(wait_for_all(t, err));
    m->n_shards = n;
done:
    return st;
}

/* ---- stores ---- */

static int first_shard(const struct checkpoint_target *t)
{
    int rank = 0;

    while (rank < t->world - 1 && (t->owners ? t->owners[rank] < 0 : !t->writers[rank]))
        rank++;
    return rank;
}

static tp_status appear(const struct checkpoint_target *t, int rank, struct tp_err *err)
{
    tp_status st = checkpoint_target_check_stop(t, err);

    return st || !t->writers[rank] ? st : shard_appear(t->writers[rank], err);
}

/* A thread_pool_fn: the shard of rank number `item`, but not the first shard. */
static tp_status appear_other(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    (void)worker;
    return item == first_shard(ctx) ? TP_OK : appear(ctx, (int)item, err);
}

/* The first shard alone: of two writers at the same time, it decides which one continues. */
tp_status checkpoint_target_appear(struct checkpoint_target *t, struct tp_err *err)
{
    const int threads = t->world < remote_connections() ? t->world : remote_connections();
    tp_status st = appear(t, first_shard(t), err);

    if (t->owners)
        st = control_agree(t->control, st, err);
    if (!st)
        st = thread_pool_run(appear_other, t, t->world, threads, err);
    return t->owners ? control_agree(t->control, st, err) : st;
}

void checkpoint_target_remove(struct checkpoint_target *t)
{
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank])
            shard_remove(t->writers[rank]);
}
