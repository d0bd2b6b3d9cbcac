/* trainer/model/weight_init.c - see trainer/model/weight_init.h. */
#include "trainer/model/weight_init.h"

#include <pthread.h>
#include <stdlib.h>

#include "core/thread_pool.h"
#include "device/staging.h"
#include "kernels/normal.h"
#include "layout/family.h"

/* Threads take pieces of tensors. Pieces in host memory are longer than a huge page, so that
 * threads seldom meet in one at its first access. Others go through two pinned buffers of each
 * thread; this many threads make more than a bus carries. */
enum { PIECE_BYTES = 4 << 20, STAGED_BYTES = 512 << 10, STAGED_THREADS = 32 };

/* A key of seed and name: FNV-1a over the name, mixed with the seed. */
static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return normal_mix(h ^ normal_mix(seed + UINT64_C(0x9e3779b97f4a7c15)));
}

double weight_init_normal(uint64_t seed, const char *name, int64_t index)
{
    return normal_value(key_of(seed, name), index);
}

/* Elements first .. first + n - 1 of a part of a tensor. */
struct weight_range {
    const struct tensor *tensor;
    const struct box *box; /* the part, of at most two axes */
    int64_t first, n;
};

/* Write normal numbers to the host memory `out`, row by row: the index is that of the whole
 * tensor. */
static void fill_normal(float *out, const struct weight_range *w, double std, uint64_t seed)
{
    const struct box *b = w->box;
    int64_t width = w->tensor->shape[w->tensor->ndim - 1], cols = b->len[b->ndim - 1];
    int64_t row0 = b->ndim > 1 ? b->lo[0] : 0, col0 = b->lo[b->ndim - 1];
    uint64_t key = key_of(seed, w->tensor->name);

    for (int64_t done = 0, n; done < w->n; done += n) {
        int64_t row = (w->first + done) / cols, col = (w->first + done) % cols;

        n = cols - col < w->n - done ? cols - col : w->n - done;
        normal_fill(out + done, n, std, key, (row0 + row) * width + col0 + col);
    }
}

static void fill_constant(float *out, int64_t n, float x)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = x;
}

/* Norms begin as the identity; biases are 0. */
static float constant_of(enum tensor_role role, const struct model *m)
{
    bool is_zero = tensor_role_is_bias(role) || family_of(m)->norm == FAMILY_UNIT_RMS_NORM;

    return is_zero ? 0 : 1;
}

/* ---- pieces, by threads ---- */

struct weight_pieces {
    const struct params *params;
    const struct layout *layout;
    const struct model *model;
    uint64_t seed;
    int64_t length;          /* elements of a piece */
    int64_t *first;          /* [params->n + 1] number of the first piece of each entry */
    int n_workers;           /* threads */
    pthread_mutex_t lock;    /* of the device */
    struct staging *staging; /* [n_workers]; NULL: host code writes to the device's memory */
};

static void close_pieces(struct weight_pieces *w)
{
    for (int i = 0; w->staging && i < w->n_workers; i++)
        staging_close(&w->staging[i]);
    free(w->staging);
    free(w->first);
    pthread_mutex_destroy(&w->lock);
}

/* Count the pieces, and open what the threads need. Call close_pieces also after a failure. */
static tp_status open_pieces(struct weight_pieces *w, int threads, struct tp_err *err)
{
    const struct params *p = w->params;
    struct device_queue *q = p->k.queue;
    bool is_staged = !q->device->host_memory;
    tp_status st = TP_OK;

    pthread_mutex_init(&w->lock, NULL);
    w->n_workers = is_staged && threads > STAGED_THREADS ? STAGED_THREADS : threads;
    w->length = (is_staged ? STAGED_BYTES : PIECE_BYTES) / (int64_t)sizeof(float);
    w->first = calloc((size_t)p->n + 1, sizeof *w->first);
    w->staging = is_staged ? calloc((size_t)w->n_workers, sizeof *w->staging) : NULL;
    if (!w->first || (is_staged && !w->staging))
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of %d tensors", p->n);
    for (int i = 0; i < p->n; i++)
        w->first[i + 1] =
            w->first[i] + (params_owned(p, &p->list[i]).n + w->length - 1) / w->length;
    for (int i = 0; is_staged && i < w->n_workers && !st; i++)
        st = staging_open(&w->staging[i], q, STAGED_BYTES, err);
    return st;
}

/* The entry that a piece belongs to. */
static int entry_of(const struct weight_pieces *w, int64_t piece)
{
    int lo = 0, hi = w->params->n;

    while (hi - lo > 1) {
        int mid = lo + (hi - lo) / 2;

        if (w->first[mid] <= piece)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* Where a thread writes a piece that begins at device memory `to`. */
static tp_status find_buffer(struct weight_pieces *w, void **out, float *to, int worker,
                             struct tp_err *err)
{
    tp_status st;

    *out = to;
    if (!w->staging)
        return TP_OK;
    pthread_mutex_lock(&w->lock);
    st = staging_buffer(&w->staging[worker], out, err);
    pthread_mutex_unlock(&w->lock);
    return st;
}

static void send_buffer(struct weight_pieces *w, float *to, int64_t n, int worker)
{
    if (!w->staging)
        return;
    pthread_mutex_lock(&w->lock);
    staging_send(&w->staging[worker], to, n * (int64_t)sizeof *to);
    pthread_mutex_unlock(&w->lock);
}

/* A thread_pool_fn. */
static tp_status fill_piece(void *ctx, int64_t piece, int worker, struct tp_err *err)
{
    struct weight_pieces *w = ctx;
    const int entry = entry_of(w, piece);
    const struct param *q = &w->params->list[entry];
    const struct param_owned o = params_owned(w->params, q);
    struct weight_range r = { .tensor = &w->layout->tensors[q->tensor],
                              .box = &q->own.box,
                              .first = (piece - w->first[entry]) * w->length };
    void *buffer;
    tp_status st = find_buffer(w, &buffer, o.value + r.first, worker, err);

    if (st)
        return st;
    r.n = o.n - r.first < w->length ? o.n - r.first : w->length;
    if (q->decay)
        fill_normal(buffer, &r, w->model->init_std, w->seed);
    else
        fill_constant(buffer, r.n, constant_of(r.tensor->role, w->model));
    send_buffer(w, o.value + r.first, r.n, worker);
    return TP_OK;
}

tp_status weight_init(const struct params *p, const struct layout *l, const struct model *m,
                      uint64_t seed, int threads, struct tp_err *err)
{
    struct weight_pieces w = { .params = p, .layout = l, .model = m, .seed = seed };
    tp_status st;

    TP_TRY(open_pieces(&w, threads > 1 ? threads : 1, err));
    TP_TRY(thread_pool_run(fill_piece, &w, w.first[p->n], w.n_workers, err));
    for (int i = 0; w.staging && i < w.n_workers && !st; i++)
        st = staging_finish(&w.staging[i], err);
done:
    close_pieces(&w);
    return st;
}
