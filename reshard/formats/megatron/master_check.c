/* reshard/formats/megatron/master_check.c - see reshard/formats/megatron/master_check.h. */
#include "reshard/formats/megatron/master_check.h"

#include <math.h>
#include <string.h>

#include "kernels/cast.h"

enum { SAMPLES = 16 };

static bool contains(const struct box *b, const int64_t *at)
{
    for (int d = 0; d < b->ndim; d++)
        if (at[d] < b->lo[d] || at[d] >= b->lo[d] + b->len[d])
            return false;
    return true;
}

/* An element of a piece as f32. */
static tp_status read_element(float *out, struct piece_source *s, const struct piece *p,
                              const int64_t *at, struct tp_err *err)
{
    const int size = dtype_bytes(p->dtype);
    char bytes[sizeof(double)];
    int64_t offset = 0;
    tp_status st;

    for (int d = 0; d < p->ndim; d++)
        offset += (at[d] - p->box.lo[d]) * p->stride[d];
    st =
        file_table_read(piece_source_files(s), p->file, p->begin + offset * size, bytes, size, err);
    if (!st)
        cast(out, DTYPE_F32, bytes, p->dtype, 1);
    return st;
}

/* Half of f16's smallest number. Masters are that small in the first steps of a warm-up, when
 * biases that began with 0 have moved by the learning rate. */
#define F16_HALF_STEP 0x1p-25F

/* Whether a weight may be its master, rounded to bf16 at worst. */
static bool is_copy(float weight, float master, enum dtype dtype)
{
    const float least = dtype == DTYPE_F16 ? F16_HALF_STEP : 0, apart = fabsf(weight - master);

    return weight == master || apart <= 0x1p-7F * fabsf(master) || apart <= least ||
           (isnan(weight) && isnan(master));
}

/* The piece of a tensor that has an element; NULL: none. */
static const struct piece *find_piece(const struct piece_tensor *t, const int64_t *at)
{
    for (int i = 0; i < t->n; i++)
        if (contains(&t->pieces[i].box, at))
            return &t->pieces[i];
    return NULL;
}

/* Sample number i: an element in the middle of one of the masters' pieces, which are taken
 * evenly. */
static const struct piece *choose(int64_t *at, const struct piece_tensor *masters, int i)
{
    const struct piece *p = &masters->pieces[(int64_t)masters->n * i / SAMPLES];

    for (int d = 0; d < p->ndim; d++) /* another place in each piece */
        at[d] = p->box.lo[d] + (p->box.len[d] - 1) * (1 + (i + d) % 3) / 4;
    return p;
}

/* Where buckets are padded, to a multiple of 128 and of the data-parallel ranks, Megatron-core
 * takes the tensors of fully_reshardable out of buffers without padding, at the places that they
 * have in those with it: what follows the first bucket is moved. */
static tp_status check_tensor(struct piece_source *s, const struct piece_tensor *masters,
                              const struct piece_tensor *weights, struct tp_err *err)
{
    int compared = 0, different = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < SAMPLES; i++) {
        int64_t at[BOX_NDIM_MAX] = { 0 };
        const struct piece *m = choose(at, masters, i), *w = find_piece(weights, at);
        float master, weight;

        if (!w)
            continue; /* a hole, which the transfer reports */
        TP_TRY(read_element(&master, s, m, at, err));
        TP_TRY(read_element(&weight, s, w, at, err));
        compared++;
        different += !is_copy(weight, master, w->dtype);
    }
    if (2 * different > compared)
        st = tp_fail(err, TP_E_CORRUPT,
                     "%s: the optimizer's masters of %s are not those of the weights: %d of %d "
                     "elements differ; its buffers have the parameters in an unknown order, or "
                     "Megatron-core saved them moved, as it does with fully_reshardable and padded "
                     "buckets. Give --no-optim to import the weights alone",
                     piece_source_path(s), masters->pieces->name, different, compared);
done:
    return st;
}

/* Types that have no f32 are the import's to refuse. */
static bool is_comparable(const struct piece_tensor *t)
{
    return t->pieces->dtype != DTYPE_COUNT && dtype_is_float(t->pieces->dtype);
}

tp_status master_check(struct piece_source *s, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < piece_source_count(s) && !st; i++) {
        const struct piece_tensor masters = piece_source_tensor(s, i);
        const int k = strcmp(masters.pieces->group, GROUP_MASTER) == 0
                          ? piece_source_find(s, GROUP_PARAM, masters.pieces->name)
                          : -1;
        struct piece_tensor weights;

        if (k < 0)
            continue;
        weights = piece_source_tensor(s, k);
        if (weights.pieces->ndim == masters.pieces->ndim && is_comparable(&masters) &&
            is_comparable(&weights))
            st = check_tensor(s, &masters, &weights, err);
    }
    return st;
}
