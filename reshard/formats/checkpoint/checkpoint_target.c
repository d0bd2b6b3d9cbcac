/* reshard/formats/checkpoint/checkpoint_target.c - new shards as a target; see
 * reshard/formats/checkpoint/checkpoint.h and checkpoint_target.h.
 */
#include <stdlib.h>

#include "ckpt/shard_pack_resume.h"
#include "ckpt/shard_read_back.h"
#include "core/stop.h"
#include "reshard/formats/checkpoint/checkpoint_target.h"

/* Collected chunks that are complete only in part: those at the begin and at the end of what is
 * written between two flushes, and 4 MiB each by chunk_elements_packed. */
enum { PARTIAL_BYTES = 2 * CHUNK_BYTES_MAX };

/* ---- the endpoint ---- */

tp_status checkpoint_target_check_stop(const struct checkpoint_target *t, struct tp_err *err)
{
    return t->stops && stop_requested() ? tp_fail(err, TP_E_STOPPED, "interrupted") : TP_OK;
}

static tp_status target_write_digested(void *ctx, int extent, const struct box *run,
                                       const void *buf, struct digest *written, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;
    tp_status st = checkpoint_target_check_stop(t, err);

    if (st)
        return st;
    return shard_write_digested(t->writers[t->boxes[extent].rank], extent, run, buf, written, err);
}

static tp_status target_write(void *ctx, int extent, const struct box *run, const void *buf,
                              struct tp_err *err)
{
    struct digest written;

    return target_write_digested(ctx, extent, run, buf, &written, err);
}

static tp_status target_write_unsummed(void *ctx, int extent, const struct box *run,
                                       const void *buf, struct tp_err *err)
{
    struct checkpoint_target *t = ctx;
    tp_status st = checkpoint_target_check_stop(t, err);

    if (st)
        return st;
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
        .read = checkpoint_target_read,
        .write = target_write,
        .write_digested = target_write_digested,
        .unsummed = &target_unsummed,
        .resumable = &checkpoint_target_resumable,
        .suspects = checkpoint_target_suspects,
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
    page_pool_init(&t->pool);
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
                                     struct tp_err *err)
{
    tp_status st = shard_packer_open(&t->packer, level, threads, err);

    if (!st && t->control)
        st = checkpoint_target_divide(t, err);
    t->saved = arena_array(&t->arena, SHARD_PACK_SAVED_WORDS, sizeof *t->saved);
    if (!st && !t->saved)
        st = tp_fail(err, TP_E_NOMEM, "no memory to compress");
    t->endpoint.flush = target_flush;
    t->endpoint.flush_bytes = CHECKPOINT_COLLECT_MIN;
    return st;
}

void checkpoint_target_collect(struct checkpoint_target *t, int64_t flush_bytes)
{
    t->endpoint.flush_bytes = flush_bytes;
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

        if (t->mine && !t->mine[i])
            continue;
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
    page_pool_release(&t->pool);
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
    int n, first = stored_box_of_rank(&n, t->boxes, t->endpoint.n_extents, rank);

    for (int i = first; i < first + n; i++)
        sum += box_elements(&t->boxes[i].box) * dtype_bytes(t->dtypes[t->boxes[i].tensor]);
    return sum;
}

int64_t checkpoint_target_box_chunks(const struct checkpoint_target *t, int i)
{
    return box_run_count(&t->boxes[i].box, chunk_size(t, i));
}

int64_t checkpoint_target_chunks(const struct checkpoint_target *t)
{
    int64_t sum = 0;

    for (int i = 0; i < t->endpoint.n_extents; i++)
        sum += checkpoint_target_box_chunks(t, i);
    return sum;
}

void checkpoint_target_stops(struct checkpoint_target *t)
{
    t->stops = true;
}

const struct stored_box *checkpoint_target_boxes(const struct checkpoint_target *t, int *n)
{
    *n = t->endpoint.n_extents;
    return t->boxes;
}

void checkpoint_target_reset(struct checkpoint_target *t)
{
    checkpoint_target_trust(t);
    for (int rank = 0; rank < t->world; rank++) {
        shard_close(t->writers[rank]);
        t->writers[rank] = NULL;
    }
}
