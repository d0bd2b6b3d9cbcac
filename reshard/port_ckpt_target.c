/* reshard/port_ckpt_target.c - new shards as a target; see reshard/port_ckpt.h. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/hash.h"
#include "ckpt/row_sums.h"
#include "core/arena.h"
#include "reshard/combine.h"
#include "reshard/port_ckpt.h"

struct ckpt_target {
    struct reshard_endpoint port;
    struct arena arena;
    const struct layout *layout;
    struct stored_box *extents; /* region i is extent i */
    struct reshard_extent *regions;
    enum dtype *dtypes;
    struct shard_writer **writers; /* [world]; NULL: the rank has nothing to write */
    struct digest *digests;        /* [tensors]; after ckpt_target_finish */
    int world;
    struct comm *comm;
};

static tp_status target_write(void *ctx, int region, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct ckpt_target *t = ctx;

    return shard_write(t->writers[t->extents[region].rank], region, run, buf, err);
}

static bool is_root(const struct ckpt_target *t)
{
    return !t->comm || comm_rank(t->comm) == 0;
}

static tp_status agree(const struct ckpt_target *t, tp_status st, struct tp_err *err)
{
    return t->comm ? comm_agree(t->comm, st, err) : st;
}

static tp_status allocate(struct ckpt_target *t, struct tp_err *err)
{
    const struct layout *l = t->layout;
    int n;
    tp_status st = layout_stored_boxes(&t->extents, &n, l, &t->arena, err);

    if (st)
        return st;
    t->world = spec_world(&l->spec);
    t->regions = arena_array(&t->arena, (size_t)n, sizeof *t->regions);
    t->dtypes = arena_array(&t->arena, (size_t)l->n_tensors, sizeof *t->dtypes);
    t->digests = arena_array(&t->arena, (size_t)l->n_tensors, sizeof *t->digests);
    t->writers = arena_array(&t->arena, (size_t)t->world, sizeof *t->writers);
    if (!t->regions || !t->dtypes || !t->digests || !t->writers)
        return tp_fail(err, TP_E_NOMEM, "no memory for the shards of %d tensors", l->n_tensors);
    for (int i = 0; i < n; i++)
        t->regions[i] = (struct reshard_extent){ t->extents[i].tensor, t->extents[i].box };
    for (int i = 0; i < l->n_tensors; i++)
        t->dtypes[i] = l->tensors[i].dtype;
    t->port = (struct reshard_endpoint){
        .what = "the new checkpoint",
        .n_regions = n,
        .regions = t->regions,
        .dtypes = t->dtypes,
        .ctx = t,
        .write = target_write,
    };
    return TP_OK;
}

/* shard_create, shard_join or shard_recreate. */
typedef tp_status (*open_shard)(struct shard_writer **out, const char *dir, int rank,
                                const struct layout *layout, const struct stored_box *extents,
                                int n_extents, struct tp_err *err);

/* Open the shard of every rank that has something to write. Extents are ordered by rank. */
static tp_status open_writers(struct ckpt_target *t, const char *dir, open_shard open,
                              struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < t->port.n_regions && !st; i++) {
        int rank = t->extents[i].rank;

        if (t->writers[rank])
            continue;
        st = open(&t->writers[rank], dir, rank, t->layout, t->extents, t->port.n_regions, err);
    }
    return st;
}

tp_status ckpt_target_plan(struct ckpt_target **out, const struct layout *layout, struct comm *comm,
                           struct tp_err *err)
{
    struct ckpt_target *t = calloc(1, sizeof *t);
    tp_status st;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    t->layout = layout;
    t->comm = comm;
    st = allocate(t, err);
    if (st) {
        ckpt_target_close(t);
        return st;
    }
    *out = t;
    return TP_OK;
}

tp_status ckpt_target_create(struct ckpt_target *t, const struct ckpt_txn *txn, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (is_root(t))
        st = open_writers(t, txn->tmp, shard_create, err);
    st = agree(t, st, err);
    if (!st && !is_root(t))
        st = open_writers(t, txn->tmp, shard_join, err);
    return agree(t, st, err);
}

tp_status ckpt_target_recreate(struct ckpt_target *t, const struct ckpt_txn *txn,
                               struct tp_err *err)
{
    return open_writers(t, txn->tmp, shard_recreate, err);
}

void ckpt_target_reset(struct ckpt_target *t)
{
    for (int rank = 0; rank < t->world; rank++) {
        shard_close(t->writers[rank]);
        t->writers[rank] = NULL;
    }
}

int ckpt_target_sums(const struct ckpt_target *t, struct sums *sums)
{
    int n = 0;

    for (int rank = 0; rank < t->world; rank++) {
        if (!t->writers[rank])
            continue;
        if (sums)
            sums[n].words = shard_sums(t->writers[rank], &sums[n].n);
        n++;
    }
    return n;
}

tp_status ckpt_target_places(const struct ckpt_target *t, char sha256[JOURNAL_SHA_TEXT],
                             struct tp_err *err)
{
    struct hash *h;
    tp_status st = hash_new(&h, err);

    if (st)
        return st;
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank]) {
            hash_add(h, &rank, sizeof rank);
            hash_add(h, shard_places_sha256(t->writers[rank]), JOURNAL_SHA_TEXT);
        }
    hash_text(h, sha256);
    return TP_OK;
}

tp_status ckpt_target_sync(const struct ckpt_target *t, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 0; rank < t->world && !st; rank++)
        if (t->writers[rank])
            st = shard_sync(t->writers[rank], err);
    return st;
}

const struct reshard_endpoint *ckpt_target_port(const struct ckpt_target *t)
{
    return &t->port;
}

int64_t ckpt_target_rank_bytes(const struct ckpt_target *t, int rank)
{
    int64_t sum = 0;

    for (int i = 0; i < t->port.n_regions; i++)
        if (t->extents[i].rank == rank)
            sum += box_elements(&t->extents[i].box) * dtype_bytes(t->dtypes[t->extents[i].tensor]);
    return sum;
}

static int64_t extent_rows(const struct ckpt_target *t, int i)
{
    const struct stored_box *e = &t->extents[i];

    return box_run_count(&e->box, shard_chunk_elements(&t->layout->tensors[e->tensor], &e->box));
}

int64_t ckpt_target_rows(const struct ckpt_target *t)
{
    int64_t sum = 0;

    for (int i = 0; i < t->port.n_regions; i++)
        sum += extent_rows(t, i);
    return sum;
}

/* Add up the digests of a shard's rows: the chunks of its extents, in order. */
static tp_status sum_digests(struct ckpt_target *t, int rank, const uint64_t *sums, int64_t n,
                             struct tp_err *err)
{
    int64_t row = 0;

    for (int i = 0; i < t->port.n_regions; i++) {
        const struct stored_box *e = &t->extents[i];
        int64_t rows;

        if (e->rank != rank)
            continue;
        rows = extent_rows(t, i);
        for (; rows > 0 && (row + 1) * ROW_SUM_WORDS <= n; rows--, row++) {
            const struct digest d = row_sum_digest(sums + row * ROW_SUM_WORDS);

            digest_add(&t->digests[e->tensor], &d);
        }
    }
    if (row * ROW_SUM_WORDS == n)
        return TP_OK;
    return tp_fail(err, TP_E_INTERNAL, "the shard of rank %d has %lld rows, not %lld", rank,
                   (long long)(n / ROW_SUM_WORDS), (long long)row);
}

static tp_status finish_shard(struct ckpt_target *t, int rank, struct shard_info *info,
                              struct tp_err *err)
{
    int64_t n;
    uint64_t *sums = shard_sums(t->writers[rank], &n);
    tp_status st = TP_OK;

    if (t->comm)
        TP_TRY(combine_words(t->comm, sums, n, ROW_SUM_WORDS, row_sums_add, err));
    if (is_root(t)) {
        TP_TRY(sum_digests(t, rank, sums, n, err));
        TP_TRY(shard_finish(t->writers[rank], info, err));
    }
done:
    return agree(t, st, err);
}

tp_status ckpt_target_finish(struct ckpt_target *t, struct manifest *m, struct arena *arena,
                             struct tp_err *err)
{
    struct shard_info *shards = arena_array(arena, (size_t)t->world, sizeof *shards);
    tp_status st = TP_OK;
    int n = 0;

    if (!shards)
        st = tp_fail(err, TP_E_NOMEM, "no memory for a list of %d shards", t->world);
    TP_TRY(agree(t, st, err));
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank])
            TP_TRY(finish_shard(t, rank, &shards[n++], err));
    m->shards = shards;
    m->n_shards = n;
done:
    return st;
}

struct digest ckpt_target_digest(const struct ckpt_target *t, int tensor)
{
    return t->digests[tensor];
}

void ckpt_target_close(struct ckpt_target *t)
{
    if (!t)
        return;
    for (int rank = 0; t->writers && rank < t->world; rank++)
        shard_close(t->writers[rank]);
    arena_free(&t->arena);
    free(t);
}
