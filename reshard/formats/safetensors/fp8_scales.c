/* reshard/formats/safetensors/fp8_scales.c - see reshard/formats/safetensors/fp8_scales.h. */
#include "reshard/formats/safetensors/fp8_scales.h"

#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"

tp_status safetensors_bytes_read(const struct safetensors_bytes *b, void *to, struct tp_err *err)
{
    return object_read_at(b->object, b->path, b->begin, to, (size_t)b->size, err);
}

void safetensors_bytes_will_read(const struct safetensors_bytes *b)
{
    object_will_read(b->object, b->begin, b->size);
}

/* Scales in bytes are E8M0, as in transformers' Fp8Dequantize. */
tp_status fp8_scales_make(struct fp8_scales *c, const struct safetensors_tensor *t,
                          const struct safetensors_entry *entry,
                          const struct safetensors_bytes *all, struct tp_err *err)
{
    const struct safetensors_tensor *scales = &entry->tensor;
    char shape[BOX_TEXT_MAX], scale_shape[BOX_TEXT_MAX];

    *c = (struct fp8_scales){ .fp8 = scales->dtype == DTYPE_U8 ? FP8_E8M0 : entry->fp8,
                              .dtype = scales->dtype,
                              .all = *all,
                              .ndim = t->ndim };
    memcpy(c->shape, t->shape, sizeof c->shape);
    if (c->fp8 != FP8_E8M0 && (scales->dtype == DTYPE_COUNT || !dtype_is_float(scales->dtype)))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s, the scales of a weight in FP8, has a dtype that is not "
                       "supported; supported are F32, BF16, F16, F64, F8_E8M0 and U8",
                       all->path, scales->name);
    if (!fp8_grid_make(&c->grid, t->ndim, t->shape, scales->ndim, scales->shape))
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: tensor %s is %s in FP8, and its scales %s are %s; expected is one scale for all, "
            "one for each row, or one for each block, of 128 or another power of two",
            all->path, t->name, box_format_shape(shape, sizeof shape, t->ndim, t->shape),
            scales->name,
            box_format_shape(scale_shape, sizeof scale_shape, scales->ndim, scales->shape));
    return TP_OK;
}

static int bytes_of_one(const struct fp8_scales *c)
{
    return c->fp8 ? 1 : dtype_bytes(c->dtype);
}

/* The bytes of a run's scales; *first is the row of scales with which they begin. */
static struct safetensors_bytes bytes_of(const struct fp8_scales *c, const struct fp8_run *r,
                                         int64_t *first)
{
    struct safetensors_bytes b = c->all;
    int64_t n;

    fp8_scale_rows(&c->grid, r, first, &n);
    b.begin += *first * c->grid.cols * bytes_of_one(c);
    b.size = n * c->grid.cols * bytes_of_one(c);
    return b;
}

/* Read scales as f32; *out is malloc'ed. */
static tp_status read_scales(float **out, const struct fp8_scales *c,
                             const struct safetensors_bytes *b, struct tp_err *err)
{
    const int64_t n = b->size / bytes_of_one(c);
    float *scales = malloc((size_t)n * sizeof *scales);
    unsigned char *stored = malloc((size_t)b->size);
    tp_status st;

    *out = scales;
    if (scales && stored)
        st = safetensors_bytes_read(b, stored, err);
    else
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for scales", b->path);
    if (!st && c->fp8)
        fp8_scales_from_e8m0(scales, stored, n);
    else if (!st)
        cast(scales, DTYPE_F32, stored, c->dtype, n);
    free(stored);
    return st;
}

tp_status fp8_scales_read(const struct fp8_scales *c, const struct safetensors_bytes *stored,
                          const struct box *run, void *buf, struct tp_err *err)
{
    const struct fp8_run r = fp8_run_of(&c->grid, c->ndim, c->shape, run);
    float *scales = NULL;
    int64_t first;
    const struct safetensors_bytes b = bytes_of(c, &r, &first);
    tp_status st = read_scales(&scales, c, &b, err);

    if (!st)
        st = safetensors_bytes_read(stored, (char *)buf + stored->size, err);
    if (!st)
        fp8_decode(buf, &c->grid, &r, scales, first);
    free(scales);
    return st;
}

void fp8_scales_will_read(const struct fp8_scales *c, const struct box *run)
{
    const struct fp8_run r = fp8_run_of(&c->grid, c->ndim, c->shape, run);
    int64_t first;
    const struct safetensors_bytes b = bytes_of(c, &r, &first);

    safetensors_bytes_will_read(&b);
}
