/* ckpt/verify.c - see ckpt/verify.h. */
#include "ckpt/verify.h"

#include <dirent.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/step.h"
#include "core/thread_pool.h"

struct scan {
    struct verify *v;
    struct shard_reader **shards; /* [n_shards]; NULL: it could not be opened */
    int64_t *first;               /* [n_shards + 1]: number of each shard's first row */
    unsigned char **buffers;      /* [jobs] */
    pthread_mutex_t lock;         /* guards v's results */
};

/* What is wrong with the checkpoint is a finding and TP_OK; what is wrong here is returned. */
static tp_status take(struct scan *s, tp_status st, const struct tp_err *err)
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

static tp_status open_shards(struct scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    int64_t total = 0;

    for (int i = 0; i < m->n_shards; i++) {
        int64_t n = 0;
        tp_status st = shard_open(&s->shards[i], s->v->dir, &m->shards[i], m->layout.tensors,
                                  m->layout.n_tensors, err);

        if (!st) {
            const struct shard_row *rows = shard_rows(s->shards[i], &n);

            for (int64_t r = 0; r < n; r++)
                total += rows[r].stored_bytes;
            st = shard_check_meta(s->shards[i], err);
        }
        st = take(s, st, err);
        if (st)
            return st;
        s->first[i + 1] = s->first[i] + n;
    }
    progress_total(s->v->progress, total);
    return TP_OK;
}

static tp_status check_digest(const struct scan *s, int shard, const struct shard_row *row,
                              const struct digest *found, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    char box[BOX_TEXT_MAX], a[DIGEST_TEXT_MAX], b[DIGEST_TEXT_MAX];

    if (memcmp(found, &row->digest, sizeof *found) == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: tensor %s/%s, box %s: digest is %s, expected %s",
                   s->v->dir, m->shards[shard].file, m->layout.tensors[row->tensor].group,
                   m->layout.tensors[row->tensor].name, box_format(box, &row->box),
                   digest_format(a, found), digest_format(b, &row->digest));
}

/* Read and check one row; `item` counts over all shards. */
static tp_status scan_row(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct scan *s = ctx;
    const struct shard_row *row;
    const struct tensor *t;
    struct digest found;
    int64_t n;
    int shard = 0;
    tp_status st;

    while (item >= s->first[shard + 1])
        shard++;
    item -= s->first[shard];
    row = &shard_rows(s->shards[shard], &n)[item];
    t = &s->v->manifest.layout.tensors[row->tensor];
    st = shard_read_row(s->shards[shard], item, s->buffers[worker], err);
    if (st)
        return take(s, st, err);
    found = digest_box(s->buffers[worker], &row->box, t->ndim, t->shape, dtype_bytes(t->dtype));
    progress_add(s->v->progress, row->stored_bytes);
    pthread_mutex_lock(&s->lock);
    s->v->bytes += row->stored_bytes;
    digest_add(&s->v->digests[row->tensor], &found);
    pthread_mutex_unlock(&s->lock);
    return take(s, check_digest(s, shard, row, &found, err), err);
}

/* ---- boxes ---- */

/* A stored box and where it comes from. */
struct stored {
    struct box box;
    int tensor, shard;
};

static int by_tensor(const void *a, const void *b)
{
    const struct stored *x = a, *y = b;

    return x->tensor != y->tensor ? (x->tensor < y->tensor ? -1 : 1) : x->shard - y->shard;
}

/* The boxes of all rows, sorted by tensor; malloc'ed. */
static tp_status collect_boxes(const struct scan *s, struct stored **out, int64_t *count,
                               struct tp_err *err)
{
    const int n_shards = s->v->manifest.n_shards;
    struct stored *list = calloc((size_t)s->first[n_shards] + 1, sizeof *list);
    int64_t used = 0;

    if (!list)
        return tp_fail(err, TP_E_NOMEM, "no memory for the boxes of %s", s->v->dir);
    for (int i = 0; i < n_shards; i++) {
        int64_t n = 0;
        const struct shard_row *rows = shard_rows(s->shards[i], &n);

        for (int64_t r = 0; r < n; r++) {
            struct stored *last = used ? &list[used - 1] : NULL;

            /* rows of one dataset follow one another (shard_open has checked): one box */
            if (r > 0 && rows[r].tensor == rows[r - 1].tensor && rows[r].part == rows[r - 1].part)
                for (int d = 0; d < rows[r].box.ndim; d++)
                    last->box.len[d] = rows[r].box.lo[d] + rows[r].box.len[d] - last->box.lo[d];
            else
                list[used++] = (struct stored){ rows[r].box, rows[r].tensor, i };
        }
    }
    qsort(list, (size_t)used, sizeof *list, by_tensor);
    *out = list;
    *count = used;
    return TP_OK;
}

/* n boxes of one tensor must hold each of its elements once. */
static tp_status check_tiling(const struct scan *s, int tensor, const struct stored *boxes,
                              int64_t n, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    const struct tensor *t = &m->layout.tensors[tensor];
    const struct box whole = box_whole(t->ndim, t->shape);
    int64_t elements = 0, expected = box_elements(&whole);
    char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

    for (int64_t i = 0; i < n; i++) {
        elements += box_elements(&boxes[i].box);
        for (int64_t k = 0; k < i; k++) {
            struct box meet;

            if (box_meet(&meet, &boxes[k].box, &boxes[i].box))
                return tp_fail(err, TP_E_CORRUPT,
                               "%s: tensor %s/%s is there twice: %s of %s and %s of %s overlap",
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

static tp_status check_boxes(struct scan *s, struct tp_err *err)
{
    struct stored *list = NULL;
    int64_t count = 0, from = 0, to;
    tp_status st;

    for (int i = 0; i < s->v->manifest.n_shards; i++)
        if (!s->shards[i])
            return TP_OK; /* a shard is missing, and that was said */
    TP_TRY(collect_boxes(s, &list, &count, err));
    for (int t = 0; t < s->v->manifest.layout.n_tensors; t++, from = to) {
        for (to = from; to < count && list[to].tensor == t;)
            to++;
        TP_TRY(take(s, check_tiling(s, t, list + from, to - from, err), err));
    }
done:
    free(list);
    return st;
}

/* Shards that the manifest does not know. */
static tp_status check_extra(struct scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    DIR *d = opendir(s->v->dir);
    const struct dirent *entry;
    tp_status st = TP_OK;

    if (!d)
        return tp_fail_errno(err, "%s: cannot open directory", s->v->dir);
    while (!st && (entry = readdir(d))) {
        const char *dot = strrchr(entry->d_name, '.');
        bool known = !dot || strcmp(dot, ".h5") != 0;

        for (int i = 0; i < m->n_shards && !known; i++)
            known = strcmp(entry->d_name, m->shards[i].file) == 0;
        if (!known)
            st = take(s,
                      tp_fail(err, TP_E_CORRUPT, "%s/%s: no shard of this checkpoint", s->v->dir,
                              entry->d_name),
                      err);
    }
    closedir(d);
    return st;
}

/* ---- all of it ---- */

static tp_status prepare(struct scan *s, struct arena *arena, struct tp_err *err)
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
        if (!(s->buffers[i] = malloc(SHARD_CHUNK_BYTES)))
            return tp_fail(err, TP_E_NOMEM, "no memory for %d threads; use fewer --jobs", v->jobs);
    return TP_OK;
}

tp_status ckpt_verify(struct verify *v, struct arena *arena, struct tp_err *err)
{
    struct scan s = { .v = v, .lock = PTHREAD_MUTEX_INITIALIZER };
    tp_status st = step_manifest(&v->manifest, v->dir, arena, err);

    v->findings = 0;
    v->bytes = 0;
    if (st)
        return take(&s, st, err);
    TP_TRY(prepare(&s, arena, err));
    TP_TRY(open_shards(&s, err));
    TP_TRY(check_extra(&s, err));
    TP_TRY(check_boxes(&s, err));
    TP_TRY(thread_pool_run(scan_row, &s, s.first[v->manifest.n_shards], v->jobs, err));
done:
    for (int i = 0; s.shards && i < v->manifest.n_shards; i++)
        shard_reader_close(s.shards[i]);
    for (int i = 0; s.buffers && i < v->jobs; i++)
        free(s.buffers[i]);
    return st;
}
