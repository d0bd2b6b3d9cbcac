/* trainer/model/weight_init.c - see trainer/model/weight_init.h. */
#include "trainer/model/weight_init.h"

#include <math.h>

#include "device/staging.h"
#include "layout/family.h"

enum { STAGING_BYTES = 1 << 20, BLOCK = 256 };

static const double TWO_PI = 6.283185307179586476925286766559;

/* The finalizer of SplitMix64 (Steele, Lea and Flood 2014): a bijection that mixes all bits. */
static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 30)) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)) * UINT64_C(0x94d049bb133111eb);
    return x ^ (x >> 31);
}

/* A key of seed and name: FNV-1a over the name, mixed with the seed. */
static uint64_t key_of(uint64_t seed, const char *name)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);

    for (; *name; name++)
        h = (h ^ (unsigned char)*name) * UINT64_C(0x100000001b3);
    return mix(h ^ mix(seed + UINT64_C(0x9e3779b97f4a7c15)));
}

/* Numbers 2 index and 2 index + 1 of the sequence of `key`: u in (0, 1] and v in [0, 1). */
static inline void normal_uniforms(uint64_t key, int64_t index, double *u, double *v)
{
    uint64_t step = UINT64_C(0x9e3779b97f4a7c15), n = 2 * (uint64_t)index + 1;

    *u = (double)((mix(key + n * step) >> 11) + 1) * 0x1p-53;
    *v = (double)(mix(key + (n + 1) * step) >> 11) * 0x1p-53;
}

/* The transform of Box and Muller (1958). */
double weight_init_normal(uint64_t seed, const char *name, int64_t index)
{
    double u, v;

    normal_uniforms(key_of(seed, name), index, &u, &v);
    return sqrt(-2 * log(u)) * cos(TWO_PI * v);
}

/* Elements first .. first + n - 1 of a part of a tensor. */
struct weight_range {
    const struct tensor *tensor;
    const struct box *box; /* the part, of at most two axes */
    int64_t first, n;
};

/* Write n <= BLOCK normal numbers, those that weight_init_normal() names: index first .. first + n
 * - 1 of the sequence of `key`. One loop for each function: the calls of log() and cos() then
 * overlap, which a loop over all does not. */
static void normal_block(float *out, int64_t n, double std, uint64_t key, int64_t first)
{
    double u[BLOCK], v[BLOCK];

    for (int64_t i = 0; i < n; i++)
        normal_uniforms(key, first + i, &u[i], &v[i]);
    for (int64_t i = 0; i < n; i++)
        u[i] = log(u[i]);
    for (int64_t i = 0; i < n; i++)
        v[i] = cos(TWO_PI * v[i]);
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(std * (sqrt(-2 * u[i]) * v[i]));
}

/* Write normal numbers to the host memory `out`. */
static void fill_normal(float *out, const struct weight_range *w, double std, uint64_t seed)
{
    const struct box *b = w->box;
    int64_t width = w->tensor->shape[w->tensor->ndim - 1], cols = b->len[b->ndim - 1];
    int64_t row0 = b->ndim > 1 ? b->lo[0] : 0, col0 = b->lo[b->ndim - 1];
    uint64_t key = key_of(seed, w->tensor->name);

    for (int64_t done = 0, n; done < w->n; done += n) {
        int64_t row = (w->first + done) / cols, col = (w->first + done) % cols;

        n = cols - col < BLOCK ? cols - col : BLOCK;
        n = w->n - done < n ? w->n - done : n;
        normal_block(out + done, n, std, key, (row0 + row) * width + col0 + col);
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

tp_status weight_init(const struct params *p, const struct layout *l, const struct model *m,
                      uint64_t seed, struct tp_err *err)
{
    int64_t most = STAGING_BYTES / (int64_t)sizeof(float);
    struct staging staging;
    tp_status st;

    TP_TRY(staging_open(&staging, p->k.queue, STAGING_BYTES, err));
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        const struct param_owned o = params_owned(p, q);
        struct weight_range w = { .tensor = &l->tensors[q->tensor], .box = &q->own.box };
        void *buffer;

        for (; w.first < o.n; w.first += w.n) {
            w.n = o.n - w.first < most ? o.n - w.first : most;
            TP_TRY(staging_buffer(&staging, &buffer, err));
            if (q->decay)
                fill_normal(buffer, &w, m->init_std, seed);
            else
                fill_constant(buffer, w.n, constant_of(w.tensor->role, m));
            staging_send(&staging, o.value + w.first, w.n * (int64_t)sizeof(float));
        }
    }
    st = staging_finish(&staging, err);
done:
    staging_close(&staging);
    return st;
}
