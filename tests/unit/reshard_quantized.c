/*
 * tests/unit/reshard_quantized.c - weights in MXFP4: any run of one is what its elements and scales
 * say, and scales of other shapes are refused.
 *
 * covers: reshard/formats/safetensors/quantized reshard/formats/safetensors/mxfp4
 */
#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cast.h"
#include "reshard/formats/safetensors/mxfp4.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "tests/unit/random.h"
#include "tests/unit/temp_dir.h"

TestSuite(quantized, .init = temp_dir_make, .fini = temp_dir_remove);

enum { AXES = 4, HALF_BITS = 4, SIGN = 8, BIAS = 127 };

/* What is stored of a weight, and the weight's shape. */
struct stored {
    int64_t shape[AXES], weight[AXES - 1]; /* [matrices][rows][groups][16] */
    unsigned char *blocks, *scales;
};

static int64_t groups_of(const struct stored *s)
{
    return s->shape[0] * s->shape[1] * s->shape[2];
}

static struct stored stored_make(struct rng *r)
{
    struct stored s = { .shape = { rng_int(r, 1, 3), rng_int(r, 1, 90), rng_int(r, 1, 7),
                                   MXFP4_GROUP_BYTES } };
    const int64_t n = groups_of(&s);

    s.weight[0] = s.shape[0];
    s.weight[1] = s.shape[2] * MXFP4_GROUP;
    s.weight[2] = s.shape[1];
    s.blocks = malloc((size_t)(n * MXFP4_GROUP_BYTES));
    s.scales = malloc((size_t)n);
    cr_assert(s.blocks && s.scales);
    for (int64_t i = 0; i < n * MXFP4_GROUP_BYTES; i++)
        s.blocks[i] = (unsigned char)rng_int(r, 0, UCHAR_MAX);
    for (int64_t i = 0; i < n; i++)
        s.scales[i] = (unsigned char)rng_int(r, 0, BIAS + 120);
    return s;
}

static void stored_free(struct stored *s)
{
    free(s->blocks);
    free(s->scales);
}

static void stored_write(const struct stored *s, int scale_axes)
{
    struct safetensors_tensor tensors[] = { { "a.w_blocks", DTYPE_U8, AXES, { 0 } },
                                            { "a.w_scales", DTYPE_U8, scale_axes, { 0 } } };
    const void *data[] = { s->blocks, s->scales };
    struct tp_err err = { 0 };

    memcpy(tensors[0].shape, s->shape, sizeof s->shape);
    memcpy(tensors[1].shape, s->shape, sizeof s->weight);
    if (scale_axes == 1)
        tensors[1].shape[0] = groups_of(s);
    cr_assert_eq(safetensors_write_file(temp_path("model.safetensors"), tensors, data, 2, &err),
                 TP_OK, "%s", err.msg);
}

/* Element `at` of the weight, by the definition. */
static uint16_t element(const struct stored *s, int64_t at)
{
    static const float numbers[] = { 0, 0.5F, 1, 1.5F, 2, 3, 4, 6 };
    const int64_t column = at % s->weight[2], line = at / s->weight[2];
    const int64_t matrix = line / s->weight[1], i = line % s->weight[1];
    const int64_t group = (matrix * s->shape[1] + column) * s->shape[2] + i / MXFP4_GROUP;
    const int byte = s->blocks[group * MXFP4_GROUP_BYTES + i % MXFP4_GROUP / 2];
    const int half = i % 2 ? byte >> HALF_BITS : byte & (SIGN | (SIGN - 1));
    const float x = ldexpf(numbers[half & (SIGN - 1)], s->scales[group] - BIAS);
    const float signed_x = half & SIGN ? -x : x;
    uint16_t rounded;

    cast(&rounded, DTYPE_BF16, &signed_x, DTYPE_F32, 1);
    return rounded;
}

/* Read a run of the weight and compare each element of it. */
static void check_run(const struct stored *s, const struct reshard_endpoint *e,
                      const struct box *run)
{
    const struct box whole = box_whole(AXES - 1, s->weight);
    const int64_t n = box_elements(run), first = box_offset_in(&whole, run);
    uint16_t *buf = malloc((size_t)n * sizeof *buf);
    struct tp_err err = { 0 };

    cr_assert_not_null(buf);
    cr_assert_eq(e->read(e->ctx, 0, run, buf, &err), TP_OK, "%s", err.msg);
    for (int64_t i = 0; i < n; i++)
        cr_assert_eq(buf[i], element(s, first + i), "element %lld", (long long)i);
    free(buf);
}

static void check_runs(const struct stored *s, const struct reshard_endpoint *e, struct rng *r)
{
    const struct box whole = box_whole(AXES - 1, s->weight);
    const int64_t most = rng_int(r, 1, box_elements(&whole));
    const int64_t runs = box_run_count(&whole, most);

    for (int k = 0; k < 6; k++) {
        struct box run;

        box_run(&run, &whole, most, rng_int(r, 0, runs - 1));
        check_run(s, e, &run);
    }
}

/* Write what is stored, and open it. */
static struct safetensors_source *source_of(const struct stored *s, int scale_axes)
{
    struct safetensors_source *source;
    struct tp_err err = { 0 };

    stored_write(s, scale_axes);
    cr_assert_eq(safetensors_open(&source, temp_dir, &err), TP_OK, "%s", err.msg);
    return source;
}

Test(quantized, any_run_of_a_weight_in_mxfp4_is_what_its_elements_and_scales_say)
{
    struct rng r = rng_start("quantized");

    for (int i = 0; i < 40; i++) {
        struct stored s = stored_make(&r);
        struct reshard_tensor want = { .name = "a.w", .ndim = AXES - 1 };
        struct safetensors_source *source = source_of(&s, AXES - 1);
        struct tp_err err = { 0 };
        int n;

        memcpy(want.shape, s.weight, sizeof s.weight);
        cr_assert_eq(safetensors_dequantize(source, &n, &err), TP_OK, "%s", err.msg);
        cr_assert(n == 1 && safetensors_count(source) == 1);
        cr_assert_eq(safetensors_select(source, &want, 1, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(safetensors_source_endpoint(source)->dtypes[0], DTYPE_BF16);
        check_runs(&s, safetensors_source_endpoint(source), &r);
        safetensors_source_close(source);
        stored_free(&s);
    }
}

Test(quantized, scales_of_another_shape_are_refused)
{
    struct rng r = rng_start("quantized");
    struct stored s = stored_make(&r);
    struct safetensors_source *source = source_of(&s, 1);
    struct tp_err err = { 0 };

    cr_expect_eq(safetensors_dequantize(source, NULL, &err), TP_E_CORRUPT);
    cr_expect_not_null(strstr(err.msg, "a.w_blocks"), "%s", err.msg);
    cr_expect_not_null(strstr(err.msg, "a.w_scales"), "%s", err.msg);
    safetensors_source_close(source);
    stored_free(&s);
}
