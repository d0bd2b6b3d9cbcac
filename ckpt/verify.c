/* ckpt/verify.c - see ckpt/verify.h. */
#include "ckpt/verify.h"

#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/step.h"
#include "core/thread_pool.h"

struct verify_scan {
    struct verify *v;
    struct shard_reader **shards; /* [n_shards] NULL: could not be opened */
    int64_t *first;               /* [n_shards + 1] number of each shard's first chunk */
    unsigned char **buffers;      /* [jobs] */
    pthread_mutex_t lock;         /* guards v's results */
};

/* Turn a failure that the checkpoint causes into a finding, and return TP_OK; return others. */
static tp_status add_finding(struct verify_scan *s, tp_status st, const struct tp_err *err)
{
    if (st != TP_E_CORRUPT && st != TP_E_NOTFOUND)
        return st;
    pthread_mutex_lock(&s->lock);
    s->v->findings++;
    if (s->v->found)
        s->v->found(s->v->ctx, err->msg);
    pthread_mutex_unlock(&s->lock);
    return TP_OK;
}

static tp_status open_shards(struct verify_scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    int64_t total = 0;

    for (int i = 0; i < m->n_shards; i++) {
        int64_t n = 0;
        tp_status st = shard_open(&s->shards[i], s->v->dir, &m->shards[i], &m->layout, err);

        if (!st) {
            const struct chunk_entry *chunks = shard_chunks(s->shards[i], &n);

            for (int64_t r = 0; r < n; r++)
                total += chunks[r].stored_bytes;
            st = shard_check_meta(s->shards[i], err);
        }
        st = add_finding(s, st, err);
        if (st)
            return st;
        s->first[i + 1] = s->first[i] + n;
    }
    progress_total(s->v->progress, total);
    return TP_OK;
}

static tp_status check_digest(const struct verify_scan *s, int shard,
                              const struct chunk_entry *chunk, const struct digest *found,
                              struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    char box[BOX_TEXT_MAX], a[DIGEST_TEXT_MAX], b[DIGEST_TEXT_MAX];

    if (memcmp(found, &chunk->digest, sizeof *found) == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: tensor %s/%s, box %s: the digest is %s, expected %s",
                   s->v->dir, m->shards[shard].file, m->layout.tensors[chunk->tensor].group,
                   m->layout.tensors[chunk->tensor].name, box_format(box, &chunk->box),
                   digest_format(a, found), digest_format(b, &chunk->digest));
}

/* Read and check one chunk; `item` counts over all shards. */
static tp_status scan_chunk(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct verify_scan *s = ctx;
    const struct chunk_entry *chunk;
    const struct tensor *t;
    struct digest found;
    int64_t n;
    int shard = 0;
    tp_status st;

    while (item >= s->first[shard + 1])
        shard++;
    item -= s->first[shard];
    chunk = &shard_chunks(s->shards[shard], &n)[item];
    t = &s->v->manifest.layout.tensors[chunk->tensor];
    st = shard_read_chunk(s->shards[shard], item, s->buffers[worker], err);
    if (st)
        return add_finding(s, st, err);
    found = digest_box(s->buffers[worker], &chunk->box, t->ndim, t->shape, dtype_bytes(t->dtype));
    progress_add(s->v->progress, chunk->stored_bytes);
    pthread_mutex_lock(&s->lock);
    s->v->bytes += chunk->stored_bytes;
    digest_add(&s->v->digests[chunk->tensor], &found);
    pthread_mutex_unlock(&s->lock);
    return add_finding(s, check_digest(s, shard, chunk, &found, err), err);
}

/* ---- boxes ---- */

/* The box of a dataset. */
struct verify_box {
    struct box box;
    int tensor, shard;
};

static int by_tensor(const void *a, const void *b)
{
    const struct verify_box *x = a, *y = b;

    return x->tensor != y->tensor ? (x->tensor < y->tensor ? -1 : 1) : x->shard - y->shard;
}

/* The boxes of all datasets, sorted by tensor; malloc'ed. */
static tp_status collect_boxes(const struct verify_scan *s, struct verify_box **out, int64_t *count,
                               struct tp_err *err)
{
    const int n_shards = s->v->manifest.n_shards;
    struct verify_box *list = calloc((size_t)s->first[n_shards] + 1, sizeof *list);
    int64_t used = 0;

    if (!list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the boxes of %s", s->v->dir);
    for (int i = 0; i < n_shards; i++) {
        int64_t n = 0;
        const struct chunk_entry *chunks = shard_chunks(s->shards[i], &n);

        for (int64_t r = 0; r < n; r++) {
            struct verify_box *last = used ? &list[used - 1] : NULL;

            /* chunks of one dataset are consecutive, which shard_open has checked; they make one
             * box */
            if (r > 0 && chunks[r].tensor == chunks[r - 1].tensor &&
                chunks[r].part == chunks[r - 1].part)
                for (int d = 0; d < chunks[r].box.ndim; d++)
                    last->box.len[d] = chunks[r].box.lo[d] + chunks[r].box.len[d] - last->box.lo[d];
            else
                list[used++] = (struct verify_box){ chunks[r].box, chunks[r].tensor, i };
        }
    }
    qsort(list, (size_t)used, sizeof *list, by_tensor);
    *out = list;
    *count = used;
    return TP_OK;
}

/* n boxes of one tensor must hold each of its elements exactly once. */
static tp_status check_tiling(const struct verify_scan *s, int tensor,
                              const struct verify_box *boxes, int64_t n, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    const struct tensor *t = &m->layout.tensors[tensor];
    const struct box whole = box_whole(t->ndim, t->shape);
    int64_t elements = 0, expected = box_elements(&whole);
    char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

    for (int64_t i = 0; i < n; i++) {
        elements += box_elements(&boxes[i].box);
        for (int64_t k = 0; k < i; k++) {
            struct box overlap;

            if (box_meet(&overlap, &boxes[k].box, &boxes[i].box))
                return tp_fail(err, TP_E_CORRUPT,
                               "%s: tensor %s/%s: the boxes %s in %s and %s in %s overlap",
                               s->v->dir, t->group, t->name, box_format(a, &boxes[k].box),
                               m->shards[boxes[k].shard].file, box_format(b, &boxes[i].box),
                               m->shards[boxes[i].shard].file);
        }
    }
    if (elements != expected)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s has %lld elements in %lld boxes, expected %lld: "
                       "%lld are in no shard",
                       s->v->dir, t->group, t->name, (long long)elements, (long long)n,
                       (long long)expected, (long long)(expected - elements));
    return TP_OK;
}

static tp_status check_boxes(struct verify_scan *s, struct tp_err *err)
{
    struct verify_box *list = NULL;
    int64_t count = 0, from = 0, to;
    tp_status st;

    for (int i = 0; i < s->v->manifest.n_shards; i++)
        if (!s->shards[i])
            return TP_OK; /* it is missing, which was reported; its boxes are unknown */
    TP_TRY(collect_boxes(s, &list, &count, err));
    for (int t = 0; t < s->v->manifest.layout.n_tensors; t++, from = to) {
        for (to = from; to < count && list[to].tensor == t;)
            to++;
        TP_TRY(add_finding(s, check_tiling(s, t, list + from, to - from, err), err));
    }
done:
    free(list);
    return st;
}

/* Find shards that the manifest does not list. */
static tp_status check_extra(struct verify_scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    DIR *d = opendir(s->v->dir);
    const struct dirent *entry;
    tp_status st = TP_OK;

    if (!d)
        return tp_fail_errno(err, "%s: cannot open the directory", s->v->dir);
    while (!st && (entry = readdir(d))) {
        const char *dot = strrchr(entry->d_name, '.');
        bool known = !dot || strcmp(dot, ".h5") != 0;

        for (int i = 0; i < m->n_shards && !known; i++)
            known = strcmp(entry->d_name, m->shards[i].file) == 0;
        if (!known)
            st = add_finding(s,
                             tp_fail(err, TP_E_CORRUPT,
                                     "%s/%s: is not a shard of this checkpoint; remove it",
                                     s->v->dir, entry->d_name),
                             err);
    }
    closedir(d);
    return st;
}

/* ---- everything ---- */

static tp_status prepare(struct verify_scan *s, struct arena *arena, struct tp_err *err)
{
    struct verify *v = s->v;
    const size_t n = (size_t)v->manifest.n_shards;

    if (v->jobs < 1)
        v->jobs = 1;
    s->shards = arena_array(arena, n, sizeof(struct shard_reader *));
    s->first = arena_array(arena, n + 1, sizeof *s->first);
    s->buffers = arena_array(arena, (size_t)v->jobs, sizeof(unsigned char *));
    v->digests = arena_array(arena, (size_t)v->manifest.layout.n_tensors, sizeof *v->digests);
    if (!s->shards || !s->first || !s->buffers || !v->digests)
        return tp_fail(err, TP_E_NOMEM, "no memory to verify %s", v->dir);
    for (int i = 0; i < v->jobs; i++)
        if (!(s->buffers[i] = malloc(CHUNK_BYTES_MAX)))
            return tp_fail(err, TP_E_NOMEM, "no memory for %d threads; use fewer --jobs", v->jobs);
    return TP_OK;
}

tp_status ckpt_verify(struct verify *v, struct arena *arena, struct tp_err *err)
{
    struct verify_scan s = { .v = v, .lock = PTHREAD_MUTEX_INITIALIZER };
    tp_status st = step_read_manifest(&v->manifest, v->dir, arena, err);

    v->findings = 0;
    v->bytes = 0;
    if (st)
        return add_finding(&s, st, err);
    TP_TRY(prepare(&s, arena, err));
    TP_TRY(open_shards(&s, err));
    TP_TRY(check_extra(&s, err));
    TP_TRY(check_boxes(&s, err));
    TP_TRY(thread_pool_run(scan_chunk, &s, s.first[v->manifest.n_shards], v->jobs, err));
done:
    for (int i = 0; s.shards && i < v->manifest.n_shards; i++)
        shard_reader_close(s.shards[i]);
    for (int i = 0; s.buffers && i < v->jobs; i++)
        free(s.buffers[i]);
    return st;
}
