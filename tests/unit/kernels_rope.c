/* tests/unit/kernels_rope.c - rotations against complex multiplication in double. */
#include "kernels/rope.h"

#include <complex.h>

#include "tests/unit/kernels_support.h"

/* Of its head_dim elements 2 half are rotated. */
struct head {
    int64_t head_dim, half;
    double theta;
    int64_t position;
};

static void check_head(const float *x, const float *before, const struct head *h)
{
    int64_t half = h->half;

    for (int64_t i = 0; i < half; i++) {
        double angle = (double)h->position / pow(h->theta, (double)i / (double)half);
        double complex z = (double)before[i] + (double)before[i + half] * I;

        z *= cexp(angle * I);
        for (int k = 0; k < 2; k++)
            assert_near(x[i + k * half], k ? cimag(z) : creal(z), 2.5e-7, "rotated");
    }
    for (int64_t i = 2 * half; i < h->head_dim; i++)
        cr_assert_eq(x[i], before[i], "what stays");
}

static void one_case(struct rng *r)
{
    int64_t head_dim = 2 * rng_int(r, 1, 40), heads = rng_int(r, 1, 4), seq = rng_int(r, 1, 20);
    int64_t rows = seq * rng_int(r, 0, 3), stride = heads * head_dim + rng_int(r, 0, 5);
    int64_t first = rng_int(r, 0, 1000),
            half = rng_int(r, 0, 1) ? head_dim / 2 : rng_int(r, 1, head_dim / 2);
    double theta = rng_int(r, 0, 1) ? 10000 : 500000;
    float *x = random_floats(r, rows * stride, 1), *table = filled_floats(seq * 2 * half, 0);
    float *before = filled_floats(rows * stride, 0);

    memcpy(before, x, (size_t)(rows * stride) * sizeof *x);
    RUN(rope_table, rope_table, table, first, seq, 2 * half, theta);
    RUN(rope_apply, rope_apply, x, table, rows, seq, heads, head_dim, 2 * half, stride, 1,
        DTYPE_F32);
    for (int64_t row = 0; row < rows; row++)
        for (int64_t head = 0; head < heads; head++)
            check_head(x + row * stride + head * head_dim, before + row * stride + head * head_dim,
                       &(struct head){ head_dim, half, theta, first + row % seq });
    for (int64_t row = 0; row < rows; row++)
        cr_assert_eq(memcmp(x + row * stride + heads * head_dim,
                            before + row * stride + heads * head_dim,
                            (size_t)(stride - heads * head_dim) * sizeof *x),
                     0, "between the rows");
    RUN(rope_apply, rope_apply, x, table, rows, seq, heads, head_dim, 2 * half, stride, -1,
        DTYPE_F32);
    for (int64_t i = 0; i < rows * stride; i++)
        assert_near(x[i], before[i], 5e-7, "and back");
    free(x);
    free(table);
    free(before);
}

Test(rope, rotates_pairs_and_back)
{
    struct rng r = rng_start("rope");

    for (int i = 0; i < 100; i++)
        one_case(&r);
}

Test(rope, the_cpu_refuses_bf16)
{
    struct tp_err err;

    RUN(rope_apply, rope_apply, .type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "a rotation on the CPU has f32 inputs, not bf16"), "%s", err.msg);
}
