/* reshard/formats/checkpoint_source.c - a checkpoint's shards as a source; see
 * reshard/formats/checkpoint.h. */
#include <stdlib.h>
#include <string.h>

#include "reshard/formats/checkpoint.h"
#include "reshard/formats/shard_parts.h"

/* A stored box: rows order[first .. first + n - 1] of a shard, ascending in the box's storage. */
struct stored {
    int shard;
    int64_t first, n;
};

struct checkpoint_source {
    struct reshard_endpoint endpoint;
    struct shard_parts *shards;
    int n_shards;
    struct stored *stored;          /* [endpoint.n_extents] */
    struct reshard_extent *extents; /* [endpoint.n_extents] */
    int64_t *order;                 /* rows of all shards that are wanted, grouped by box */
    int64_t n_order, extents_room;
    enum dtype *dtypes;
    struct digest *digests; /* [n_ids] */
    int *engine_of;         /* [tensors of the manifest] engine tensor, or -1 */
    struct comm *comm;
    int64_t other_bytes;
};

/* ---- reading ---- */

/* Offset of a row's first byte in the storage of its box. */
static int64_t row_begin(const struct checkpoint_source *s, int extent, int64_t i)
{
    const struct stored *b = &s->stored[extent];
    const struct shard_row *row = &s->shards[b->shard].rows[s->order[b->first + i]];
    const struct reshard_extent *r = &s->extents[extent];

    return box_offset_in(&r->box, &row->box) * dtype_bytes(s->dtypes[r->tensor]);
}

/* The row of a box in which its byte `at` lies. */
static int64_t row_of(const struct checkpoint_source *s, int extent, int64_t at)
{
    int64_t low = 0, high = s->stored[extent].n - 1;

    while (low < high) {
        int64_t mid = low + (high - low + 1) / 2;

        if (row_begin(s, extent, mid) <= at)
            low = mid;
        else
            high = mid - 1;
    }
    return low;
}

static tp_status source_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    struct checkpoint_source *s = ctx;
    const struct stored *b = &s->stored[extent];
    const struct reshard_extent *r = &s->extents[extent];
    struct shard_parts *shard = &s->shards[b->shard];
    int elem = dtype_bytes(s->dtypes[r->tensor]);
    int64_t at = box_offset_in(&r->box, run) * elem, left = box_elements(run) * elem;
    tp_status st = TP_OK;

    for (int64_t i = row_of(s, extent, at); left > 0 && !st; i++) {
        int64_t row = s->order[b->first + i], skip = at - row_begin(s, extent, i);
        int64_t n = shard->rows[row].raw_bytes - skip;

        if (n > left)
            n = left;
        st = shard_parts_read(shard, row, skip, buf, n, err);
        buf = (char *)buf + n;
        at += n;
        left -= n;
    }
    return st;
}

static tp_status source_check(void *ctx, struct tp_err *err)
{
    struct checkpoint_source *s = ctx;
    char *buf = NULL;
    tp_status st = TP_OK;

    for (int i = 0; i < s->n_shards && !st; i++) {
        if (s->shards[i].reader)
            st = shard_parts_check(&s->shards[i], s->comm, &buf, &s->other_bytes, err);
        if (s->comm) /* so that nobody waits in the next shard's collective */
            st = comm_agree(s->comm, st, err);
    }
    free(buf);
    return st;
}

/* ---- opening ---- */

/* By tensor, part, and place in the box: rows of a box are runs of it, so their first corners
 * ascend in lexicographic order. */
static int by_place(const void *a, const void *b, void *arg)
{
    const struct shard_row *rows = arg;
    const struct shard_row *x = &rows[*(const int64_t *)a], *y = &rows[*(const int64_t *)b];

    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    if (x->part != y->part)
        return x->part < y->part ? -1 : 1;
    for (int d = 0; d < x->box.ndim; d++)
        if (x->box.lo[d] != y->box.lo[d])
            return x->box.lo[d] < y->box.lo[d] ? -1 : 1;
    return 0;
}

/* The smallest box around all rows of a group. */
static struct box hull(const struct shard_row *rows, const int64_t *order, int64_t n)
{
    struct box b = rows[order[0]].box;

    for (int64_t i = 1; i < n; i++)
        for (int d = 0; d < b.ndim; d++) {
            const struct box *r = &rows[order[i]].box;
            int64_t end = b.lo[d] + b.len[d], r_end = r->lo[d] + r->len[d];

            b.lo[d] = r->lo[d] < b.lo[d] ? r->lo[d] : b.lo[d];
            b.len[d] = (r_end > end ? r_end : end) - b.lo[d];
        }
    return b;
}

/* The rows of a group must follow each other in the storage of their hull and fill it. */
static tp_status check_group(const struct checkpoint_source *s, const char *file, int extent,
                             const char *name, struct tp_err *err)
{
    const struct stored *b = &s->stored[extent];
    const struct reshard_extent *r = &s->extents[extent];
    int elem = dtype_bytes(s->dtypes[r->tensor]);
    int64_t at = 0;
    char text[BOX_TEXT_MAX];

    for (int64_t i = 0; i < b->n; i++) {
        const struct shard_row *row = &s->shards[b->shard].rows[s->order[b->first + i]];

        if (row->codec != 0 || row->raw_bytes > SHARD_CHUNK_BYTES)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s/%s: tensor %s is stored in a way (codec %d, %lld "
                           "bytes a chunk) that this version does not read",
                           s->endpoint.name, file, name, row->codec, (long long)row->raw_bytes);
        if (!box_is_run_in(&r->box, &row->box) || row_begin(s, extent, i) != at)
            break;
        at += row->raw_bytes;
    }
    if (at == box_elements(&r->box) * elem)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s/%s: the chunks of tensor %s do not make up the box %s: chunks are missing",
                   s->endpoint.name, file, name, box_format(text, &r->box));
}

static tp_status grow_extents(struct checkpoint_source *s, struct tp_err *err)
{
    int64_t room = s->extents_room ? 2 * s->extents_room : 1024;
    void *extents, *stored;

    if (s->endpoint.n_extents < s->extents_room)
        return TP_OK;
    extents = realloc(s->extents, (size_t)room * sizeof *s->extents);
    if (extents)
        s->extents = extents;
    stored = realloc(s->stored, (size_t)room * sizeof *s->stored);
    if (stored)
        s->stored = stored;
    if (!extents || !stored)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->endpoint.name);
    s->extents_room = room;
    return TP_OK;
}

static bool same_box(const struct shard_row *a, const struct shard_row *b)
{
    return a->tensor == b->tensor && a->part == b->part;
}

/* Make a extent of every group of rows order[begin ..]. */
static tp_status group_rows(struct checkpoint_source *s, const struct manifest *m, int shard,
                            int64_t begin, struct tp_err *err)
{
    const struct shard_row *rows = s->shards[shard].rows;
    int64_t next;
    tp_status st = TP_OK;

    for (int64_t i = begin; i < s->n_order; i = next) {
        const struct shard_row *row = &rows[s->order[i]];
        int extent = s->endpoint.n_extents;

        for (next = i + 1; next < s->n_order && same_box(row, &rows[s->order[next]]); next++)
            ;
        TP_TRY(grow_extents(s, err));
        s->stored[extent] = (struct stored){ shard, i, next - i };
        s->extents[extent] = (struct reshard_extent){ s->engine_of[row->tensor],
                                                      hull(rows, s->order + i, next - i) };
        s->endpoint.n_extents++;
        TP_TRY(check_group(s, m->shards[shard].file, extent, m->layout.tensors[row->tensor].name,
                           err));
    }
done:
    return st;
}

/* Keep the wanted rows of a shard, sorted; close it when there are none. */
static tp_status take_shard(struct checkpoint_source *s, const struct manifest *m, int number,
                            struct tp_err *err)
{
    struct shard_parts *shard = &s->shards[number];
    int64_t begin = s->n_order;
    int64_t *order;
    tp_status st;

    order = realloc(s->order, (size_t)(s->n_order + shard->n_rows + 1) * sizeof *order);
    if (!order)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", s->endpoint.name);
    s->order = order;
    for (int64_t row = 0; row < shard->n_rows; row++) {
        int tensor = s->engine_of[shard->rows[row].tensor];

        if (tensor < 0)
            continue;
        digest_add(&s->digests[tensor], &shard->rows[row].digest);
        s->order[s->n_order++] = row;
    }
    if (s->n_order == begin) {
        shard_parts_close(shard);
        return TP_OK;
    }
    if ((st = shard_parts_begin(shard, err)))
        return st;
    qsort_r(s->order + begin, (size_t)(s->n_order - begin), sizeof *s->order, by_place,
            (void *)shard->rows);
    return group_rows(s, m, number, begin, err);
}

static tp_status open_shards(struct checkpoint_source *s, const struct manifest *m,
                             struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < m->n_shards; i++) {
        struct shard_parts *shard = &s->shards[i];

        shard->dir = s->endpoint.name;
        TP_TRY(shard_open(&shard->reader, s->endpoint.name, &m->shards[i], m->layout.tensors,
                          m->layout.n_tensors, err));
        shard->rows = shard_rows(shard->reader, &shard->n_rows);
        s->other_bytes += shard->n_rows * SHARD_ROW_BYTES;
        TP_TRY(take_shard(s, m, i, err));
    }
done:
    return st;
}

static tp_status allocate(struct checkpoint_source *s, const char *dir, const struct manifest *m,
                          const int *ids, int n_ids, struct tp_err *err)
{
    s->endpoint.name = strdup(dir);
    s->n_shards = m->n_shards;
    s->shards = calloc((size_t)m->n_shards + 1, sizeof *s->shards);
    s->dtypes = calloc((size_t)n_ids + 1, sizeof *s->dtypes);
    s->digests = calloc((size_t)n_ids + 1, sizeof *s->digests);
    s->engine_of = calloc((size_t)m->layout.n_tensors + 1, sizeof *s->engine_of);
    if (!s->endpoint.name || !s->shards || !s->dtypes || !s->digests || !s->engine_of)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", dir);
    for (int t = 0; t < m->layout.n_tensors; t++)
        s->engine_of[t] = -1;
    for (int i = 0; i < n_ids; i++) {
        if (ids[i] < 0 || ids[i] >= m->layout.n_tensors)
            return tp_fail(err, TP_E_INTERNAL, "%s: no tensor has the id %d", dir, ids[i]);
        s->engine_of[ids[i]] = i;
        s->dtypes[i] = m->layout.tensors[ids[i]].dtype;
    }
    return TP_OK;
}

tp_status checkpoint_source_open(struct checkpoint_source **out, const char *dir,
                                 const struct manifest *m, const int *ids, int n_ids,
                                 struct comm *comm, struct tp_err *err)
{
    struct checkpoint_source *s = calloc(1, sizeof *s);
    tp_status st;

    if (!s)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", dir);
    s->comm = comm;
    TP_TRY(allocate(s, dir, m, ids, n_ids, err));
    TP_TRY(open_shards(s, m, err));
    s->endpoint.extents = s->extents;
    s->endpoint.dtypes = s->dtypes;
    s->endpoint.ctx = s;
    s->endpoint.read = source_read;
    s->endpoint.check = source_check;
    *out = s;
    s = NULL;
done:
    checkpoint_source_close(s);
    return st;
}

const struct reshard_endpoint *checkpoint_source_endpoint(const struct checkpoint_source *s)
{
    return &s->endpoint;
}

int64_t checkpoint_source_rows(const struct checkpoint_source *s)
{
    int64_t n = 0;

    for (int i = 0; i < s->n_shards; i++)
        if (s->shards[i].reader)
            n += s->shards[i].n_rows;
    return n;
}

int checkpoint_source_sums(const struct checkpoint_source *s, struct reshard_sums *sums)
{
    int n = 0;

    for (int i = 0; i < s->n_shards; i++) {
        if (!s->shards[i].reader)
            continue;
        if (sums)
            sums[n] =
                (struct reshard_sums){ s->shards[i].sums, s->shards[i].n_rows * PART_SUM_WORDS };
        n++;
    }
    return n;
}

int64_t checkpoint_source_other_bytes(const struct checkpoint_source *s)
{
    return s->other_bytes;
}

tp_status checkpoint_source_compare(const struct checkpoint_source *s, int tensor, const char *name,
                                    const struct digest *written, struct tp_err *err)
{
    const struct digest *read = &s->digests[tensor];
    char read_text[DIGEST_TEXT_MAX], written_text[DIGEST_TEXT_MAX];

    if (read->d[0] == written->d[0] && read->d[1] == written->d[1])
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: tensor %s has the digest %s, but what was written has %s: nothing is kept",
                   s->endpoint.name, name, digest_format(read_text, read),
                   digest_format(written_text, written));
}

void checkpoint_source_close(struct checkpoint_source *s)
{
    if (!s)
        return;
    for (int i = 0; s->shards && i < s->n_shards; i++)
        shard_parts_close(&s->shards[i]);
    free((char *)s->endpoint.name);
    free(s->shards);
    free(s->stored);
    free(s->extents);
    free(s->order);
    free(s->dtypes);
    free(s->digests);
    free(s->engine_of);
    free(s);
}
