/* reshard/formats/checkpoint/checkpoint_target.c - new shards as a target; see
 * reshard/formats/checkpoint/checkpoint.h.
 */
#include <stdlib.h>

#include "ckpt/chunk_sums.h"
#include "ckpt/shard_pack.h"
#include "ckpt/shard_read_back.h"
#include "core/arena.h"
#include "core/stop.h"
#include "layout/stored_box.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/checkpoint/reduce_sums.h"

struct checkpoint_target {
    struct reshard_endpoint endpoint;
    struct arena arena;
    const struct layout *layout;
    struct stored_box *boxes; /* ordered by rank; extent i is box i */
    struct reshard_extent *extents;
    enum dtype *dtypes;
    struct shard_writer **writers;      /* [world] NULL: the rank has nothing to write */
    struct shard_read_back **read_back; /* [world] of the writers; NULL: nothing is suspect */
    struct digest *digests;             /* [tensors] after checkpoint_target_finish, on rank 0 */
    int world;
    struct comm_control *control;
    bool stops;                 /* checkpoint_target_stops */
    struct shard_packer packer; /* its level is 0: nothing is compressed */
    int64_t stored_bytes;       /* after checkpoint_target_finish */
};

/* Collected chunks that are complete only in part: those at the begin and at the end of what is
 * written between two flushes, and 4 MiB each by chunk_elements_packed. */
enum { PARTIAL_BYTES = 2 * CHUNK_BYTES_MAX };

/* ---- the endpoint ---- */

static tp_status check_stop(const struct checkpoint_target *t, struct tp_err *err)
{
    return t->stops && stop_requested() ? tp_fail(err, TP_E_STOPPED, "interrupted") : TP_OK;
}

static tp_status target_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct checkpoint_target *t = ctx;

    tp_status st = check_stop(t, err);

    if (st)
        return st;
    return shard_write(t->writers[t->boxes[extent].rank], extent, run, buf, err);
}

static tp_status target_write_unsummed(void *ctx, int extent, const struct box *run,
                                       const void *buf, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;

    return shard_write_unsummed(t->writers[t->boxes[extent].rank], extent, run, buf, err);
}

static void target_part(const void *ctx, int extent, const struct box *run, int64_t at,
                        struct reshard_part *out)
{
    const struct checkpoint_target *t = ctx;
    const struct shard_writer *w = t->writers[t->boxes[extent].rank];
    struct chunk_part part;

    *out = (struct reshard_part){ .at = at };
    out->after = shard_part_at(w, extent, run, at, &out->chunk, &part, &out->box);
    out->skip = part.skip;
    out->n = part.n;
}

static void target_add(void *ctx, int extent, const struct reshard_part *part,
                       const struct reshard_part_sums *sums)
{
    struct checkpoint_target *t = ctx;
    const struct chunk_part written = { .skip = part->skip, .n = part->n, .digest = sums->digest };

    shard_add_sums(t->writers[t->boxes[extent].rank], part->chunk, &written, sums->crc);
}

static const struct reshard_unsummed target_unsummed = {
    .write = target_write_unsummed,
    .part = target_part,
    .add = target_add,
};

tp_status checkpoint_target_clone(struct checkpoint_target *t, int extent,
                                  const struct shard_clone *chunks, bool *cloned,
                                  struct tp_err *err)
{
    return shard_clone(t->writers[t->boxes[extent].rank], extent, chunks, cloned, err);
}

/* Elements of the chunks of extent i. */
static int64_t chunk_size(const struct checkpoint_target *t, int i)
{
    const struct stored_box *b = &t->boxes[i];
    const struct tensor *tensor = &t->layout->tensors[b->tensor];

    return t->packer.level ? chunk_elements_packed(tensor, &b->box)
                           : chunk_elements(tensor, &b->box);
}

static tp_status target_flush(void *ctx, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;

    return shard_pack_flush(&t->packer, t->writers, t->world, err);
}

static bool target_suspects(const void *ctx, int extent, const struct box *run)
{
    const struct checkpoint_target *t = ctx;
    const struct shard_read_back *b = t->read_back[t->boxes[extent].rank];

    return b && shard_read_back_wants(b, extent, run);
}

static tp_status target_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    struct checkpoint_target *t = ctx;

    return shard_read_back_run(t->read_back[t->boxes[extent].rank], extent, run, buf, err);
}

static void target_trust(void *ctx)
{
    struct checkpoint_target *t = ctx;

    for (int rank = 0; rank < t->world; rank++) {
        shard_read_back_end(t->read_back[rank]);
        t->read_back[rank] = NULL;
    }
}

static tp_status target_suspect(void *ctx, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;
    tp_status st = TP_OK;

    target_trust(t);
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
    }
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

static tp_status target_sync(const void *ctx, struct tp_err *err)
{
    const struct checkpoint_target *t = ctx;
    tp_status st = TP_OK;

    for (int rank = 0; rank < t->world && !st; rank++)
        if (t->writers[rank])
            st = shard_sync(t->writers[rank], err);
    return st;
}

static const struct reshard_resumable target_resumable = {
    .sums = target_sums,
    .layout_sha256 = target_layout_sha256,
    .sync = target_sync,
    .suspect = target_suspect,
    .compare = target_compare,
    .trust = target_trust,
};

static struct digest target_digest(const void *ctx, int tensor)
{
    return ((const struct checkpoint_target *)ctx)->digests[tensor];
}

static tp_status allocate(struct checkpoint_target *t, struct tp_err *err)
{
    const struct layout *l = t->layout;
    int n;
    tp_status st = stored_box_list(&t->boxes, &n, l, &t->arena, err);

    if (st)
        return st;
    t->world = spec_world(&l->spec);
    t->extents = arena_array(&t->arena, (size_t)n, sizeof *t->extents);
    t->dtypes = arena_array(&t->arena, (size_t)l->n_tensors, sizeof *t->dtypes);
    t->digests = arena_array(&t->arena, (size_t)l->n_tensors, sizeof *t->digests);
    t->writers = arena_array(&t->arena, (size_t)t->world, sizeof *t->writers);
    t->read_back = arena_array(&t->arena, (size_t)t->world, sizeof *t->read_back);
    if (!t->extents || !t->dtypes || !t->digests || !t->writers || !t->read_back)
        return tp_fail(err, TP_E_NOMEM, "no memory for the shards of %d tensors", l->n_tensors);
    for (int i = 0; i < n; i++)
        t->extents[i] = (struct reshard_extent){ t->boxes[i].tensor, t->boxes[i].box };
    for (int i = 0; i < l->n_tensors; i++)
        t->dtypes[i] = l->tensors[i].dtype;
    t->endpoint = (struct reshard_endpoint){
        .name = "the new checkpoint",
        .n_extents = n,
        .extents = t->extents,
        .dtypes = t->dtypes,
        .ctx = t,
        .read = target_read,
        .write = target_write,
        .unsummed = &target_unsummed,
        .resumable = &target_resumable,
        .suspects = target_suspects,
        .digest = target_digest,
    };
    return TP_OK;
}

tp_status checkpoint_target_plan(struct checkpoint_target **out, const struct layout *layout,
                                 struct comm_control *control, struct tp_err *err)
{
    struct checkpoint_target *t = calloc(1, sizeof *t);
    tp_status st;

    if (!t)
        return tp_fail(err, TP_E_NOMEM, "no memory for a plan");
    t->layout = layout;
    t->control = control;
    st = allocate(t, err);
    if (st) {
        checkpoint_target_close(t);
        return st;
    }
    *out = t;
    return TP_OK;
}

tp_status checkpoint_target_compress(struct checkpoint_target *t, int level, int threads,
                                     int64_t flush_bytes, struct tp_err *err)
{
    tp_status st = t->control ? tp_fail(err, TP_E_INTERNAL, "several processes cannot compress")
                              : shard_packer_open(&t->packer, level, threads, err);

    t->endpoint.flush = target_flush;
    t->endpoint.flush_bytes = flush_bytes;
    return st;
}

int64_t checkpoint_target_memory(const struct checkpoint_target *t)
{
    int64_t collected = t->endpoint.flush_bytes + PARTIAL_BYTES, most = 0, all = 0;

    if (!t->packer.level)
        return 0;
    for (int i = 0; i < t->endpoint.n_extents; i++) {
        const struct box *b = &t->boxes[i].box;
        const int elem = dtype_bytes(t->dtypes[t->boxes[i].tensor]);
        struct box chunk;

        box_run(&chunk, b, chunk_size(t, i), 0);
        all += box_elements(b) * elem;
        if (box_elements(&chunk) * elem > most)
            most = box_elements(&chunk) * elem;
    }
    return shard_packer_bytes(&t->packer, most) + (all < collected ? all : collected);
}

int64_t checkpoint_target_stored_bytes(const struct checkpoint_target *t)
{
    return t->stored_bytes;
}

void checkpoint_target_close(struct checkpoint_target *t)
{
    if (!t)
        return;
    shard_packer_close(&t->packer);
    if (t->writers && t->read_back)
        checkpoint_target_reset(t);
    arena_free(&t->arena);
    free(t);
}

const struct reshard_endpoint *checkpoint_target_endpoint(const struct checkpoint_target *t)
{
    return &t->endpoint;
}

int64_t checkpoint_target_rank_bytes(const struct checkpoint_target *t, int rank)
{
    int64_t sum = 0;

    for (int i = 0; i < t->endpoint.n_extents; i++)
        if (t->boxes[i].rank == rank)
            sum += box_elements(&t->boxes[i].box) * dtype_bytes(t->dtypes[t->boxes[i].tensor]);
    return sum;
}

static int64_t box_chunks(const struct checkpoint_target *t, int i)
{
    return box_run_count(&t->boxes[i].box, chunk_size(t, i));
}

int64_t checkpoint_target_chunks(const struct checkpoint_target *t)
{
    int64_t sum = 0;

    for (int i = 0; i < t->endpoint.n_extents; i++)
        sum += box_chunks(t, i);
    return sum;
}

/* ---- the files ---- */

static bool is_root(const struct checkpoint_target *t)
{
    return !t->control || control_rank(t->control) == 0;
}

static tp_status agree(const struct checkpoint_target *t, tp_status st, struct tp_err *err)
{
    return t->control ? control_agree(t->control, st, err) : st;
}

/* shard_create, shard_join or shard_recreate. */
typedef tp_status (*open_shard)(struct shard_writer **out, const struct shard_plan *plan,
                                struct tp_err *err);

/* Open the shard of each rank that has something to write. */
static tp_status open_writers(struct checkpoint_target *t, const char *dir, open_shard open,
                              struct tp_err *err)
{
    struct shard_plan plan = {
        .dir = dir,
        .layout = t->layout,
        .boxes = t->boxes,
        .n_boxes = t->endpoint.n_extents,
        .zstd = t->packer.level,
    };
    tp_status st = TP_OK;

    for (int i = 0; i < plan.n_boxes && !st; i++) {
        plan.rank = t->boxes[i].rank;
        if (!t->writers[plan.rank])
            st = open(&t->writers[plan.rank], &plan, err);
    }
    return st;
}

tp_status checkpoint_target_create(struct checkpoint_target *t, const char *dir, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (is_root(t))
        st = open_writers(t, dir, shard_create, err);
    st = agree(t, st, err);
    if (!st && !is_root(t))
        st = open_writers(t, dir, shard_join, err);
    return agree(t, st, err);
}

tp_status checkpoint_target_recreate(struct checkpoint_target *t, const char *dir,
                                     struct tp_err *err)
{
    return open_writers(t, dir, shard_recreate, err);
}

void checkpoint_target_reset(struct checkpoint_target *t)
{
    target_trust(t);
    for (int rank = 0; rank < t->world; rank++) {
        shard_close(t->writers[rank]);
        t->writers[rank] = NULL;
    }
}

/* ---- finishing ---- */

/* Add up the digests of a shard's chunks, which are those of its boxes in order. */
static tp_status sum_digests(struct checkpoint_target *t, int rank, const uint64_t *sums, int64_t n,
                             struct tp_err *err)
{
    int64_t chunk = 0;

    for (int i = 0; i < t->endpoint.n_extents; i++) {
        int64_t left = t->boxes[i].rank == rank ? box_chunks(t, i) : 0;

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

static tp_status finish_shard(struct checkpoint_target *t, int rank, struct shard_info *info,
                              struct tp_err *err)
{
    struct reduce_sums sums = { .group = CHUNK_SUM_WORDS, .add = chunk_sums_add };
    tp_status st;

    TP_TRY(check_stop(t, err));
    sums.words = shard_sums(t->writers[rank], &sums.n);
    if (t->control)
        TP_TRY(reduce_sums(t->control, &sums, err));
    if (is_root(t)) {
        TP_TRY(sum_digests(t, rank, sums.words, sums.n, err));
        TP_TRY(shard_finish(t->writers[rank], info, err));
        t->stored_bytes += shard_pack_stored_bytes(t->writers[rank]);
    }
done:
    return agree(t, st, err);
}

tp_status checkpoint_target_finish(struct checkpoint_target *t, struct manifest *m,
                                   struct arena *arena, struct tp_err *err)
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
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank])
            TP_TRY(shard_wait(t->writers[rank], err));
    m->shards = shards;
    m->n_shards = n;
done:
    return st;
}

/* ---- stores ---- */

void checkpoint_target_stops(struct checkpoint_target *t)
{
    t->stops = true;
}

const struct stored_box *checkpoint_target_boxes(const struct checkpoint_target *t, int *n)
{
    *n = t->endpoint.n_extents;
    return t->boxes;
}

tp_status checkpoint_target_appear(struct checkpoint_target *t, struct tp_err *err)
{
    for (int rank = 0; rank < t->world; rank++) {
        tp_status st = check_stop(t, err);

        if (!st && t->writers[rank])
            st = shard_appear(t->writers[rank], err);
        if (st) {
            checkpoint_target_remove(t);
            return st;
        }
    }
    return TP_OK;
}

void checkpoint_target_remove(struct checkpoint_target *t)
{
    for (int rank = 0; rank < t->world; rank++)
        if (t->writers[rank])
            shard_remove(t->writers[rank]);
}
