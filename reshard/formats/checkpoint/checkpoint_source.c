/* reshard/formats/checkpoint/checkpoint_source.c - a checkpoint's shards as a source; see
 * reshard/formats/checkpoint/checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "ckpt/shard_opener.h"
#include "ckpt/tiling.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/checkpoint/shard_parts.h"
#include "storage/location.h"
#include "storage/remote_object.h"

/* Of chunks that are decompressed: for each thread, those that the tiles of the engine need. */
enum { CACHE_BYTES = 24 << 20 };

/* A stored box: chunks order[first .. first + n - 1] of a shard, in the order of its storage. */
struct checkpoint_box {
    int shard;
    int64_t first, n;
};

struct checkpoint_source {
    struct reshard_endpoint endpoint;
    const struct manifest *m;
    const char *dir;
    struct shard_parts *shards;
    int n_shards;
    struct checkpoint_box *boxes;   /* [endpoint.n_extents] */
    struct reshard_extent *extents; /* [endpoint.n_extents] */
    int64_t *order;                 /* wanted chunks of all shards, grouped by box */
    int64_t n_order, extents_room;
    enum dtype *dtypes;
    struct digest *digests; /* [n_ids] as the indexes state them */
    int *number_of;         /* [tensors of the manifest] number in the transfer, or -1 */
    struct comm_control *control;
    struct chunk_cache *cache; /* of compressed chunks; NULL: there are none */
    int64_t other_bytes;
};

/* ---- reading ---- */

/* Chunk number i of an extent. */
static const struct chunk_entry *chunk_of(const struct checkpoint_source *s, int extent, int64_t i)
{
    const struct checkpoint_box *b = &s->boxes[extent];

    return &s->shards[b->shard].chunks[s->order[b->first + i]];
}

/* Offset of a chunk's first byte in the storage of its box. */
static int64_t chunk_begin(const struct checkpoint_source *s, int extent, int64_t i)
{
    const struct reshard_extent *e = &s->extents[extent];

    return box_offset_in(&e->box, &chunk_of(s, extent, i)->box) * dtype_bytes(s->dtypes[e->tensor]);
}

/* The chunk of an extent that contains its byte `at`. */
static int64_t chunk_at(const struct checkpoint_source *s, int extent, int64_t at)
{
    int64_t low = 0, high = s->boxes[extent].n - 1;

    while (low < high) {
        int64_t mid = low + (high - low + 1) / 2;

        if (chunk_begin(s, extent, mid) <= at)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

/* The part of a run that begins at its byte `at`: of one chunk. */
static void source_part(const void *ctx, int extent, const struct box *run, int64_t at,
                        struct reshard_part *out)
{
    const struct checkpoint_source *s = ctx;
    const struct reshard_extent *e = &s->extents[extent];
    int elem = dtype_bytes(s->dtypes[e->tensor]);
    int64_t begin = box_offset_in(&e->box, run) * elem + at, left = box_elements(run) * elem - at;
    int64_t i = chunk_at(s, extent, begin);
    const struct chunk_entry *c = chunk_of(s, extent, i);

    *out = (struct reshard_part){ .at = at,
                                  .chunk = s->order[s->boxes[extent].first + i],
                                  .skip = begin - chunk_begin(s, extent, i) };
    out->n = c->raw_bytes - out->skip < left ? c->raw_bytes - out->skip : left;
    out->after = c->raw_bytes - out->skip - out->n;
    box_meet(&out->box, run, &c->box);
}

typedef tp_status (*read_part)(struct shard_parts *p, int64_t chunk, int64_t skip, void *buf,
                               int64_t n, struct tp_err *err);

static tp_status read_parts(struct checkpoint_source *s, int extent, const struct box *run,
                            void *buf, read_part read, struct tp_err *err)
{
    struct shard_parts *shard = &s->shards[s->boxes[extent].shard];
    int64_t n_bytes = box_elements(run) * dtype_bytes(s->dtypes[s->extents[extent].tensor]);
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

    shard_parts_add(&s->shards[s->boxes[extent].shard], part->chunk, part->skip, part->n,
                    sums->crc);
}

static void source_will_read(void *ctx, int extent, const struct box *run)
{
    struct checkpoint_source *s = ctx;
    struct shard_parts *shard = &s->shards[s->boxes[extent].shard];
    int64_t n_bytes = box_elements(run) * dtype_bytes(s->dtypes[s->extents[extent].tensor]);
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
        if (s->control) /* so that all processes enter the next shard's collective, or none */
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

/* Order by tensor, part, and position in the box. The chunks of a box are runs of it, so their
 * first corners ascend lexicographically. */
static int by_position(const void *a, const void *b, void *arg)
{
    const struct chunk_entry *chunks = arg;
    const struct chunk_entry *x = &chunks[*(const int64_t *)a], *y = &chunks[*(const int64_t *)b];

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d])
            return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

/* The smallest box around n chunks. */
static struct box bounding_box(const struct chunk_entry *chunks, const int64_t *order, int64_t n)
{
    struct box b = chunks[order[0]].box;

    for (int64_t i = 1; i < n; i++)
        for (int d = 0; d < b.ndim; d++) {
            const struct box *c = &chunks[order[i]].box;
            int64_t end = b.lo[d] + b.len[d], c_end = c->lo[d] + c->len[d];

            b.lo[d] = c->lo[d] < b.lo[d] ? c->lo[d] : b.lo[d];
            b.len[d] = (c_end > end ? c_end : end) - b.lo[d];
        }
    return b;
}

/* The chunks of an extent must follow one another in the storage of its box and fill it. */
static tp_status check_extent(const struct checkpoint_source *s, int extent, struct tp_err *err)
{
    const struct reshard_extent *e = &s->extents[extent];
    const char *file = s->m->shards[s->boxes[extent].shard].file;
    const char *name = s->m->layout.tensors[chunk_of(s, extent, 0)->tensor].name;
    int64_t at = 0;
    char text[BOX_TEXT_MAX];

    for (int64_t i = 0; i < s->boxes[extent].n; i++) {
        const struct chunk_entry *c = chunk_of(s, extent, i);

        if (!box_is_run_in(&e->box, &c->box) || chunk_begin(s, extent, i) != at)
            break;
        at += c->raw_bytes;
    }
    if (at == box_elements(&e->box) * dtype_bytes(s->dtypes[e->tensor]))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s/%s: tensor %s: chunks are missing: they do not make up the box %s", s->dir,
                   file, name, box_format(text, &e->box));
}

static tp_status grow_extents(struct checkpoint_source *s, struct tp_err *err)
{
    int64_t room = s->extents_room ? 2 * s->extents_room : 1024;
    void *extents, *boxes;

    if (s->endpoint.n_extents < s->extents_room)
        return TP_OK;
    extents = realloc(s->extents, (size_t)room * sizeof *s->extents);
    if (extents)
        s->extents = extents;
    boxes = realloc(s->boxes, (size_t)room * sizeof *s->boxes);
    if (boxes)
        s->boxes = boxes;
    if (!extents || !boxes)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->dir);
    s->extents_room = room;
    return TP_OK;
}

static bool same_dataset(const struct chunk_entry *a, const struct chunk_entry *b)
{
    return a->tensor == b->tensor && a->part == b->part;
}

/* Make an extent of each group of chunks order[begin ..] that belong to one dataset. */
static tp_status add_extents(struct checkpoint_source *s, int shard, int64_t begin,
                             struct tp_err *err)
{
    const struct chunk_entry *chunks = s->shards[shard].chunks;
    int64_t next;
    tp_status st = TP_OK;

    for (int64_t i = begin; i < s->n_order; i = next) {
        const struct chunk_entry *c = &chunks[s->order[i]];
        int extent = s->endpoint.n_extents;

        for (next = i + 1; next < s->n_order && same_dataset(c, &chunks[s->order[next]]); next++)
            ;
        TP_TRY(grow_extents(s, err));
        s->boxes[extent] = (struct checkpoint_box){ shard, i, next - i };
        s->extents[extent].tensor = s->number_of[c->tensor];
        s->extents[extent].box = bounding_box(chunks, s->order + i, next - i);
        s->endpoint.n_extents++;
        TP_TRY(check_extent(s, extent, err));
    }
done:
    return st;
}

/* Select the wanted chunks of an open shard. A shard that has none is closed. */
static tp_status select_chunks(struct checkpoint_source *s, int number, struct tp_err *err)
{
    struct shard_parts *shard = &s->shards[number];
    int64_t begin = s->n_order;
    int64_t *order;
    tp_status st;

    order = realloc(s->order, (size_t)(s->n_order + shard->n_chunks + 1) * sizeof *order);
    if (!order)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->dir);
    s->order = order;
    for (int64_t k = 0; k < shard->n_chunks; k++) {
        int tensor = s->number_of[shard->chunks[k].tensor];

        if (tensor < 0)
            continue;
        digest_add(&s->digests[tensor], &shard->chunks[k].digest);
        s->order[s->n_order++] = k;
    }
    if (s->n_order == begin) {
        shard_parts_close(shard);
        return TP_OK;
    }
    if ((st = shard_parts_begin(shard, err)))
        return st;
    if (shard_is_chunked(shard->reader) && !s->cache &&
        (st = chunk_cache_new(&s->cache, CACHE_BYTES, err)))
        return st;
    shard->cache = s->cache;
    qsort_r(s->order + begin, (size_t)(s->n_order - begin), sizeof *s->order, by_position,
            (void *)shard->chunks);
    return add_extents(s, number, begin, err);
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
    s->endpoint.extents = s->extents;
    s->endpoint.dtypes = s->dtypes;
    s->endpoint.ctx = s;
    s->endpoint.read = source_read;
    s->endpoint.unsummed = &source_unsummed;
    s->endpoint.resumable = &source_resumable;
    if (location_is_remote(s->dir)) {
        s->endpoint.will_read = source_will_read;
        s->endpoint.ahead_bytes = remote_object_ahead_bytes();
    }
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
    free(s->boxes);
    free(s->extents);
    free(s->order);
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

int64_t checkpoint_source_chunks(const struct checkpoint_source *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_shards; i++)
        if (s->shards[i].reader)
            n += s->shards[i].n_chunks;
    return n;
}

bool checkpoint_source_is_compressed(const struct checkpoint_source *s)
{
    for (int64_t i = 0; i < s->endpoint.n_extents; i++)
        for (int64_t k = 0; k < s->boxes[i].n; k++)
            if (chunk_of(s, (int)i, k)->codec != CODEC_RAW)
                return true;
    return false;
}

int64_t checkpoint_source_memory(const struct checkpoint_source *s, int threads)
{
    int64_t most = 0, all = 0;

    for (int64_t i = 0; i < s->endpoint.n_extents; i++)
        for (int64_t k = 0; k < s->boxes[i].n; k++) {
            const struct chunk_entry *c = chunk_of(s, (int)i, k);
            const int64_t n = c->codec == CODEC_RAW ? 0 : c->frame_bytes;

            all += n;
            most = n > most ? n : most;
        }
    return chunk_cache_bytes(all < CACHE_BYTES ? all : CACHE_BYTES, most, threads);
}

struct shard_clone checkpoint_source_dataset(const struct checkpoint_source *s, int extent)
{
    const struct checkpoint_box *b = &s->boxes[extent];

    return (struct shard_clone){ .from = s->shards[b->shard].reader,
                                 .first = s->order[b->first],
                                 .n = b->n,
                                 .box = s->extents[extent].box };
}

int64_t checkpoint_source_other_bytes(const struct checkpoint_source *s)
{
    return s->other_bytes;
}
