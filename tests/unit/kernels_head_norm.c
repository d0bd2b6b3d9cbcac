/* tests/unit/kernels_head_norm.c - norms of heads in rows of more than those: the bits of an RMS
 * norm of the same heads, side by side. */
#include "kernels/head_norm.h"

#include "kernels/rms_norm.h"
#include "tests/unit/kernels_support.h"

struct heads {
    int64_t rows, heads, head_dim, ld, column; /* heads begin at a column of rows of ld elements */
};

static struct heads any_heads(struct rng *r)
{
    struct heads h = { rng_int(r, 0, 30), rng_int(r, 1, 5), rng_int(r, 1, 90), 0,
                       rng_int(r, 0, 9) };

    h.ld = h.heads * h.head_dim + h.column + rng_int(r, 0, 9);
    return h;
}

/* Copy the heads out of rows, or back. */
static void copy_heads(const struct heads *h, float *dense, float *rows, bool is_back)
{
    int64_t width = h->heads * h->head_dim;

    for (int64_t i = 0; i < h->rows; i++) {
        float *at = rows + i * h->ld + h->column;

        memcpy(is_back ? at : dense + i * width, is_back ? dense + i * width : at,
               (size_t)width * sizeof *at);
    }
}

static bool is_equal(const float *a, const float *b, int64_t n)
{
    return memcmp(a, b, (size_t)n * sizeof *a) == 0;
}

static void forward_case(struct rng *r)
{
    struct heads h = any_heads(r);
    int64_t n = h.rows * h.ld, count = h.rows * h.heads;
    float *x = random_floats(r, n, 3), *y = random_floats(r, n, 1), *want = filled_floats(n, 0);
    float *w = random_floats(r, h.head_dim, 2), *rstd = filled_floats(count, 0);
    float *dense = filled_floats(count * h.head_dim, 0), *want_rstd = filled_floats(count, 0);

    memcpy(want, y, (size_t)n * sizeof *y); /* also what lies beside the heads */
    copy_heads(&h, dense, x, false);
    RUN(rms_norm_forward, rms_norm_forward, dense, DTYPE_F32, want_rstd, dense, NULL, w, count,
        h.head_dim, 1e-5f, .block = NULL);
    copy_heads(&h, dense, want, true);
    RUN(head_norm_forward, head_norm_forward, y + h.column, x + h.column, h.ld, h.ld, DTYPE_F32,
        rstd, w, h.rows, h.heads, h.head_dim, 1e-5f);
    cr_expect(is_equal(y, want, n), "y");
    cr_expect(is_equal(rstd, want_rstd, count), "rstd");
    free(x), free(y), free(want), free(w), free(rstd), free(dense), free(want_rstd);
}

static void backward_case(struct rng *r)
{
    enum { STEP = 100 };
    struct heads h = any_heads(r);
    int blocks = h.rows % 3 == 0 ? 3 : 0;
    int64_t n = h.rows * h.ld, count = h.rows * h.heads, dense = count * h.head_dim;
    float *x = random_floats(r, n, 3), *d = random_floats(r, n, 1), *want = filled_floats(n, 0);
    float *w = random_floats(r, h.head_dim, 2), *rstd = random_floats(r, count, 1);
    float *dw = filled_floats(3 * STEP, 0.25f), *want_dw = filled_floats(3 * STEP, 0.25f);
    float *dy = filled_floats(dense, 0), *of_x = filled_floats(dense, 0);
    float *dx = filled_floats(dense, 0);

    memcpy(want, d, (size_t)n * sizeof *d);
    copy_heads(&h, dy, d, false);
    copy_heads(&h, of_x, x, false);
    RUN(rms_norm_backward, rms_norm_backward, dx, want_dw, dy, of_x, rstd, w, count, h.head_dim,
        blocks, STEP, .dy_type = DTYPE_F32);
    copy_heads(&h, dx, want, true);
    RUN(head_norm_backward, head_norm_backward, d + h.column, x + h.column, h.ld, h.ld, DTYPE_F32,
        rstd, w, dw, h.rows, h.heads, h.head_dim, blocks, STEP);
    cr_expect(is_equal(dw, want_dw, 3 * (int64_t)STEP), "dw");
    cr_expect(is_equal(d, want, n), "dx, in the place of dy");
    free(x), free(d), free(want), free(w), free(rstd), free(dw), free(want_dw);
    free(dy), free(of_x), free(dx);
}

Test(head_norm, has_the_bits_of_a_norm_of_rows)
{
    struct rng r = rng_start("head_norm");

    for (int i = 0; i < 60; i++)
        forward_case(&r);
}

Test(head_norm, gradients_have_the_bits_of_a_norm_of_rows)
{
    struct rng r = rng_start("head_norm/backward");

    for (int threads = 1; threads <= 3; threads += 2) {
        use_threads(threads);
        for (int i = 0; i < 60; i++)
            backward_case(&r);
    }
}

Test(head_norm, the_cpu_refuses_bf16)
{
    struct tp_err err;

    RUN(head_norm_forward, head_norm_forward, .type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "a norm of heads on the CPU has f32 inputs, not bf16"), "%s",
              err.msg);
    RUN(head_norm_backward, head_norm_backward, .type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
}
