/* trainer/model/weight_init.c - see trainer/model/weight_init.h. */
#include "trainer/model/weight_init.h"

#include <math.h>

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

/* Numbers 2 index and 2 index + 1 of the stream, in (0, 1] and [0, 1), through Box and Muller. */
static double normal_at(uint64_t key, int64_t index)
{
    uint64_t step = UINT64_C(0x9e3779b97f4a7c15), n = 2 * (uint64_t)index + 1;
    double u = (double)((mix(key + n * step) >> 11) + 1) * 0x1p-53;
    double v = (double)(mix(key + (n + 1) * step) >> 11) * 0x1p-53;

    return sqrt(-2 * log(u)) * cos(TWO_PI * v);
}

double init_normal(uint64_t seed, const char *name, int64_t index)
{
    return normal_at(key_of(seed, name), index);
}

/* A box has at most two axes here: rows of `cols` elements, of a tensor `width` wide. */
static void fill(float *out, const struct tensor *t, const struct box *b, double std, uint64_t seed)
{
    int64_t width = t->shape[t->ndim - 1], cols = b->len[b->ndim - 1];
    int64_t rows = box_elements(b) / cols;
    int64_t row0 = b->ndim > 1 ? b->lo[0] : 0, col0 = b->lo[b->ndim - 1];
    uint64_t key = key_of(seed, t->name);

    for (int64_t r = 0; r < rows; r++)
        for (int64_t c = 0; c < cols; c++)
            *out++ = (float)(std * normal_at(key, (row0 + r) * width + col0 + c));
}

void init_weights(const struct params *p, const struct layout *l, const struct model *m,
                  uint64_t seed)
{
    for (int i = 0; i < p->n; i++) {
        const struct param *q = &p->list[i];
        const struct owned o = params_owned(p, q);

        if (o.n == 0)
            continue;
        if (q->decay)
            fill(o.value, &l->tensors[q->tensor], &q->own.box, m->init_std, seed);
        else
            for (int64_t j = 0; j < o.n; j++)
                o.value[j] = tensor_role_is_bias(l->tensors[q->tensor].role) ? 0 : 1;
    }
}
