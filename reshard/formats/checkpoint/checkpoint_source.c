/* reshard/formats/checkpoint/checkpoint_source.c - a checkpoint's shards as a source; see
 * reshard/formats/checkpoint/checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/shard_opener.h"
#include "ckpt/tiling.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/checkpoint/chunk_extents.h"
#include "reshard/formats/checkpoint/shard_parts.h"
#include "storage/location.h"
#include "storage/remote_object.h"

/* Of chunks that are decompressed: for each thread, those that the tiles of the engine need. */
enum { CACHE_BYTES = 24 << 20 };

struct checkpoint_source {
    struct reshard_endpoint endpoint;
    const struct manifest *m;
    const char *dir;
    struct shard_parts *shards;
    int n_shards;
    struct chunk_extents index; /* which chunks each extent of the endpoint has */
    enum dtype *dtypes;
    struct digest *digests; /* [n_ids] as the indexes state them */
    int *number_of;         /* [tensors of the manifest] number in the transfer, or -1 */
    struct comm_control *control;
    struct chunk_cache *cache; /* of compressed chunks; NULL: there are none */
    int64_t other_bytes;
};

/* ---- reading ---- */

/* The part of a run that begins at its byte `at`: of one chunk. */
static void source_part(const void *ctx, int extent, const struct box *run, int64_t at,
                        struct reshard_part *out)
{
    const struct checkpoint_source *s = ctx;
    const struct reshard_extent *e = &s->index.extents[extent];
    int elem = dtype_bytes(s->dtypes[e->tensor]);
    int64_t begin = box_offset_in(&e->box, run) * elem + at, left = box_elements(run) * elem - at;
    int64_t i = chunk_extents_at(&s->index, extent, begin);
    const struct chunk_entry *c = chunk_extents_chunk(&s->index, extent, i);

    *out = (struct reshard_part){ .at = at,
                                  .chunk = s->index.order[s->index.boxes[extent].first + i],
                                  .skip = begin - chunk_extents_begin(&s->index, extent, i) };
    out->n = c->raw_bytes - out->skip < left ? c->raw_bytes - out->skip : left;
    out->after = c->raw_bytes - out->skip - out->n;
    out->is_checked = c->codec != CODEC_RAW;
    box_meet(&out->box, run, &c->box);
}

typedef tp_status (*read_part)(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf,
                               int64_t n, struct tp_err *err);

static tp_status read_parts(struct checkpoint_source *s, int extent, const struct box *run,
                            void *buf, read_part read, struct tp_err *err)
{
    struct shard_parts *shard = &s->shards[s->index.boxes[extent].shard];
    int64_t n_bytes = box_elements(run) * dtype_bytes(s->dtypes[s->index.extents[extent].tensor]);
    struct reshard_part part;
    tp_status st = TP_OK;

    for (int64_t at = 0; at < n_bytes && !st; at += part.n) {
        source_part(s, extent, run, at, &part);
        st = read(shard, part.chunk, part.skip, (char *)buf + at, part.n, err);
    }
    return st;
}

static tp_status source_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    return read_parts(ctx, extent, run, buf, shard_parts_read, err);
}

static tp_status source_read_unsummed(void *ctx, int extent, const struct box *run, void *buf,
                                      struct tp_err *err)
{
    return read_parts(ctx, extent, run, buf, shard_parts_read_unsummed, err);
}

static void source_add(void *ctx, int extent, const struct reshard_part *part,
                       const struct reshard_part_sums *sums)
{
    struct checkpoint_source *s = ctx;

    shard_parts_add(&s->shards[s->index.boxes[extent].shard], part->chunk, part->skip, part->n,
                    sums->crc);
}

static void source_will_read(void *ctx, int extent, const struct box *run)
{
    struct checkpoint_source *s = ctx;
    struct shard_parts *shard = &s->shards[s->index.boxes[extent].shard];
    int64_t n_bytes = box_elements(run) * dtype_bytes(s->dtypes[s->index.extents[extent].tensor]);
    struct reshard_part part;

    for (int64_t at = 0; at < n_bytes; at += part.n) {
        source_part(s, extent, run, at, &part);
        shard_parts_will_read(shard, part.chunk, part.skip, part.n);
    }
}

static const struct reshard_unsummed source_unsummed = {
    .read = source_read_unsummed,
    .part = source_part,
    .add = source_add,
};

static tp_status source_check(void *ctx, struct tp_err *err)
{
    struct checkpoint_source *s = ctx;
    char *buf = NULL;
    tp_status st = TP_OK;

    for (int i = 0; i < s->n_shards && !st; i++) {
        if (s->shards[i].reader)
            st = shard_parts_check(&s->shards[i], s->control, &buf, &s->other_bytes, err);
        /* So that all processes enter the next shard's collective, or none. */
        st = control_agree(s->control, st, err);
    }
    free(buf);
    return st;
}

static struct digest source_digest(const void *ctx, int tensor)
{
    return ((const struct checkpoint_source *)ctx)->digests[tensor];
}

/* ---- resuming ---- */

static int source_sums(const void *ctx, struct reshard_sums *sums)
{
    const struct checkpoint_source *s = ctx;
    int n = 0;

    for (int i = 0; i < s->n_shards; i++) {
        const struct shard_parts *p = &s->shards[i];

        if (!p->reader)
            continue;
        if (sums)
            sums[n] = (struct reshard_sums){ p->sums, p->n_chunks * PART_SUM_WORDS };
        n++;
    }
    return n;
}

static void source_resumed(void *ctx)
{
    struct checkpoint_source *s = ctx;

    for (int i = 0; i < s->n_shards; i++)
        if (s->shards[i].reader)
            shard_parts_resumed(&s->shards[i]);
}

static const struct reshard_resumable source_resumable = { .sums = source_sums,
                                                           .resumed = source_resumed };

/* ---- opening ---- */

/* Select the wanted chunks of an open shard. A shard that has none is closed. */
static tp_status select_chunks(struct checkpoint_source *s, int number, struct tp_err *err)
{
    struct shard_parts *shard = &s->shards[number];
    bool any;
    tp_status st = chunk_extents_add(&s->index, number, &any, err);

    if (st)
        return st;
    if (!any) {
        shard_parts_close(shard);
        return TP_OK;
    }
    for (int64_t k = 0; k < shard->n_chunks; k++) {
        const int tensor = s->number_of[shard->chunks[k].tensor];

        if (tensor >= 0)
            digest_add(&s->digests[tensor], &shard->chunks[k].digest);
    }
    if ((st = shard_parts_begin(shard, err)))
        return st;
    if (shard_is_chunked(shard->reader) && !s->cache)
        st = chunk_cache_new(&s->cache, CACHE_BYTES, err);
    shard->cache = s->cache;
    return st;
}

/* Also tensors that are not wanted must be complete: a step that contradicts itself is refused
 * whatever is read of it. */
static tp_status open_shards(struct checkpoint_source *s, struct tp_err *err)
{
    struct shard_opener *opener = NULL;
    struct tiling *tiling = NULL;
    tp_status st = tiling_begin(&tiling, s->dir, s->m, err);

    if (!st)
        st = shard_opener_new(&opener, s->dir, s->m, err);
    for (int i = 0; i < s->n_shards && !st; i++) {
        struct shard_parts *shard = &s->shards[i];

        shard->dir = s->dir;
        TP_TRY(shard_opener_next(opener, &shard->reader, err));
        shard->chunks = shard_chunks(shard->reader, &shard->n_chunks);
        s->other_bytes += shard->n_chunks * CHUNK_ENTRY_BYTES;
        TP_TRY(tiling_add(tiling, i, shard->chunks, shard->n_chunks, err));
        TP_TRY(select_chunks(s, i, err));
    }
    for (int t = 0; t < s->m->layout.n_tensors && !st; t++)
        st = tiling_check(tiling, t, err);
done:
    shard_opener_free(opener);
    tiling_end(tiling);
    return st;
}

static tp_status allocate(struct checkpoint_source *s, const int *ids, int n_ids,
                          struct tp_err *err)
{
    const struct layout *l = &s->m->layout;

    s->n_shards = s->m->n_shards;
    s->shards = calloc((size_t)s->n_shards + 1, sizeof *s->shards);
    s->dtypes = calloc((size_t)n_ids + 1, sizeof *s->dtypes);
    s->digests = calloc((size_t)n_ids + 1, sizeof *s->digests);
    s->number_of = calloc((size_t)l->n_tensors + 1, sizeof *s->number_of);
    if (!s->shards || !s->dtypes || !s->digests || !s->number_of)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->dir);
    for (int t = 0; t < l->n_tensors; t++)
        s->number_of[t] = -1;
    for (int i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= l->n_tensors)
            return tp_fail(err, TP_E_INTERNAL, "%s: there is no tensor with the id %d", s->dir,
                           ids[i]);
        s->number_of[ids[i]] = i;
        s->dtypes[i] = l->tensors[ids[i]].dtype;
    }
    s->index = (struct chunk_extents){ .dir = s->dir,
                                       .m = s->m,
                                       .shards = s->shards,
                                       .number_of = s->number_of,
                                       .dtypes = s->dtypes };
    return TP_OK;
}

tp_status checkpoint_source_open(struct checkpoint_source **out, const struct ckpt_found *step,
                                 const int *ids, int n_ids, struct comm_control *control,
                                 struct tp_err *err)
{
    struct checkpoint_source *s = calloc(1, sizeof *s);
    tp_status st;

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", step->dir);
    s->control = control;
    s->dir = step->dir;
    s->m = &step->manifest;
    TP_TRY(allocate(s, ids, n_ids, err));
    TP_TRY(open_shards(s, err));
    s->endpoint.name = s->dir;
    s->endpoint.extents = s->index.extents;
    s->endpoint.n_extents = s->index.n;
    s->endpoint.dtypes = s->dtypes;
    s->endpoint.ctx = s;
    s->endpoint.read = source_read;
    s->endpoint.unsummed = &source_unsummed;
    s->endpoint.resumable = &source_resumable;
    if (location_is_remote(s->dir)) {
        s->endpoint.will_read = source_will_read;
        s->endpoint.ahead_bytes = remote_object_ahead_bytes();
    }
    s->endpoint.any_order = !location_is_remote(s->dir) && !s->cache;
    s->endpoint.check = source_check;
    s->endpoint.digest = source_digest;
    *out = s;
    s = NULL;
done:
    checkpoint_source_close(s);
    return st;
}

void checkpoint_source_close(struct checkpoint_source *s)
{
    if (!s)
        return;
    for (int i = 0; s->shards && i < s->n_shards; i++)
        shard_parts_close(&s->shards[i]);
    free(s->shards);
    chunk_extents_free(&s->index);
    free(s->dtypes);
    free(s->digests);
    free(s->number_of);
    chunk_cache_free(s->cache);
    free(s);
}

const struct reshard_endpoint *checkpoint_source_endpoint(const struct checkpoint_source *s)
{
    return &s->endpoint;
}

/* ---- what is read ---- */

int64_t checkpoint_source_memory(const struct checkpoint_source *s, int threads)
{
    int64_t most = 0, all = 0;

    for (int64_t i = 0; i < s->endpoint.n_extents; i++)
        for (int64_t k = 0; k < s->index.boxes[i].n; k++) {
            const struct chunk_entry *c = chunk_extents_chunk(&s->index, (int)i, k);
            const int64_t n = c->codec == CODEC_RAW ? 0 : c->frame_bytes;

            all += n;
            most = n > most ? n : most;
        }
    return chunk_cache_bytes(all < CACHE_BYTES ? all : CACHE_BYTES, most, threads);
}

struct shard_clone checkpoint_source_dataset(const struct checkpoint_source *s, int extent)
{
    const struct chunk_extents_box *b = &s->index.boxes[extent];

    return (struct shard_clone){ .from = s->shards[b->shard].reader,
                                 .first = s->index.order[b->first],
                                 .n = b->n,
                                 .box = s->index.extents[extent].box };
}

int64_t checkpoint_source_other_bytes(const struct checkpoint_source *s)
{
    return s->other_bytes;
}
