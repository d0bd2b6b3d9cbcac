/* reshard/formats/checkpoint/target_resume.c - see checkpoint_target.h: sums of what is written,
 * and reading back what an interrupted run wrote.
 */
#include "ckpt/shard_pack_resume.h"
#include "ckpt/shard_read_back.h"
#include "core/file.h"
#include "core/thread_pool.h"
#include "reshard/formats/checkpoint/checkpoint_target.h"

bool checkpoint_target_suspects(const void *ctx, int extent, const struct box *run)
{
    const struct checkpoint_target *t = ctx;
    const struct shard_read_back *b = t->read_back[t->boxes[extent].rank];

    return b && shard_read_back_wants(b, extent, run);
}

tp_status checkpoint_target_read(void *ctx, int extent, const struct box *run, void *buf,
                                 struct tp_err *err)
{
    struct checkpoint_target *t = ctx;

    return shard_read_back_run(t->read_back[t->boxes[extent].rank], extent, run, buf, err);
}

void checkpoint_target_trust(void *ctx)
{
    struct checkpoint_target *t = ctx;

    for (int rank = 0; rank < t->world; rank++) {
        shard_read_back_end(t->read_back[rank]);
        t->read_back[rank] = NULL;
    }
}

/* Of raw shards every run is suspect. Compressed ones are read back right here, chunk by chunk:
 * they are as the interrupted run left them, or it cannot be continued, because a chunk that is
 * written again may need more room. */
static tp_status target_suspect(void *ctx, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;
    tp_status st = TP_OK;

    checkpoint_target_trust(t);
    if (t->packer.level)
        return shard_pack_restore(t->writers, t->world, t->dir, t->saved, t->packer.threads, err);
    for (int rank = 0; rank < t->world && !st; rank++)
        if (t->writers[rank])
            st = shard_read_back_begin(&t->read_back[rank], t->writers[rank], err);
    return st;
}

static int64_t target_compare(void *ctx)
{
    struct checkpoint_target *t = ctx;
    int64_t left = 0;

    for (int rank = 0; rank < t->world; rank++)
        if (t->read_back[rank])
            left += shard_read_back_compare(t->read_back[rank]);
    return left;
}

static int target_sums(const void *ctx, struct reshard_sums *sums)
{
    const struct checkpoint_target *t = ctx;
    int n = 0;

    for (int rank = 0; rank < t->world; rank++) {
        if (!t->writers[rank])
            continue;
        if (sums)
            sums[n].words = shard_sums(t->writers[rank], &sums[n].n);
        n++;
        if (sums && t->packer.level)
            sums[n].words = shard_pack_words(t->writers[rank], &sums[n].n);
        n += t->packer.level > 0;
    }
    if (sums && t->packer.level)
        sums[n] = (struct reshard_sums){ t->saved, SHARD_PACK_SAVED_WORDS };
    n += t->packer.level > 0;
    return n;
}

static tp_status target_layout_sha256(const void *ctx, char sha256[SHA256_TEXT], struct tp_err *err)
{
    const struct checkpoint_target *t = ctx;
    struct sha256 *h;
    tp_status st = sha256_new(&h, err);

    if (st)
        return st;
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank]) {
            sha256_add(h, &rank, sizeof rank);
            sha256_add(h, shard_layout_sha256(t->writers[rank]), SHA256_TEXT);
        }
    sha256_end(h, sha256);
    return TP_OK;
}

/* A thread_pool_fn: the shard of rank number `item`. */
static tp_status sync_shard(void *writers, int64_t item, int worker, struct tp_err *err)
{
    struct shard_writer *w = ((struct shard_writer **)writers)[item];

    (void)worker;
    return w ? shard_sync(w, err) : TP_OK;
}

static tp_status target_sync(const void *ctx, struct tp_err *err)
{
    const struct checkpoint_target *t = ctx;
    tp_status st = TP_OK;

    if (t->packer.level)
        st = shard_pack_save(t->writers, t->world, t->dir, t->saved, err);
    return st ? st : thread_pool_run(sync_shard, t->writers, t->world, FILE_SYNC_THREADS, err);
}

const struct reshard_resumable checkpoint_target_resumable = {
    .sums = target_sums,
    .layout_sha256 = target_layout_sha256,
    .sync = target_sync,
    .suspect = target_suspect,
    .compare = target_compare,
    .trust = checkpoint_target_trust,
};
