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
        rstd, w, h.rows, h.heads, h.head_dim, 1e-5f, .sums = NULL);
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
        rstd, w, dw, h.rows, h.heads, h.head_dim, blocks, STEP, .sums = NULL);
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

/* ---- a head whose columns are cut ---- */

/* Run both directions of a norm of rows of n columns, in parts that begin at multiples of `part`.
 * With dy in y, it becomes dx; the forward pass writes to out. */
static void norm_in_parts(float *out, float *d, float *dw, const float *x, const float *w,
                          int64_t rows, int64_t n, int64_t part)
{
    float *squares = filled_floats(rows, 0), *dots = filled_floats(rows, 0);
    float *one = filled_floats(rows, 0), *rstd = filled_floats(rows, 0);

    for (int backward = 0; backward < 2; backward++)
        for (int64_t c = 0; c < n; c += part) {
            RUN(head_norm_sums, head_norm_sums, one, x + c, backward ? d + c : NULL, n, n,
                DTYPE_F32, w + c, rows, 1, n - c < part ? n - c : part);
            for (int64_t i = 0; i < rows; i++)
                (backward ? dots : squares)[i] += one[i];
        }
    for (int64_t c = 0; c < n; c += part) {
        int64_t width = n - c < part ? n - c : part;

        RUN(head_norm_forward, head_norm_forward, out + c, x + c, n, n, DTYPE_F32, rstd, w + c,
            rows, 1, width, 1e-5f, squares, (float)n);
        RUN(head_norm_backward, head_norm_backward, d + c, x + c, n, n, DTYPE_F32, rstd, w + c,
            dw + c, rows, 1, width, 0, 0, dots, (float)n);
    }
    free(squares), free(dots), free(one), free(rstd);
}

Test(head_norm, parts_of_a_head_with_their_sums_are_the_whole_head)
{
    struct rng r = rng_start("head_norm/parts");

    for (int i = 0; i < 40; i++) {
        int64_t rows = rng_int(&r, 1, 12), n = rng_int(&r, 2, 90), part = rng_int(&r, 1, (int)n);
        float *x = random_floats(&r, rows * n, 3), *w = random_floats(&r, n, 2);
        float *d = random_floats(&r, rows * n, 1), *want_d = filled_floats(rows * n, 0);
        float *y = filled_floats(rows * n, 0), *want = filled_floats(rows * n, 0);
        float *dw = filled_floats(n, 0.5f), *want_dw = filled_floats(n, 0.5f);
        float *rstd = filled_floats(rows, 0);

        memcpy(want_d, d, (size_t)(rows * n) * sizeof *d);
        norm_in_parts(y, d, dw, x, w, rows, n, part);
        RUN(head_norm_forward, head_norm_forward, want, x, n, n, DTYPE_F32, rstd, w, rows, 1, n,
            1e-5f, .sums = NULL);
        RUN(head_norm_backward, head_norm_backward, want_d, x, n, n, DTYPE_F32, rstd, w, want_dw,
            rows, 1, n, 0, 0, .sums = NULL);
        for (int64_t k = 0; k < rows * n; k++) {
            assert_near(y[k], want[k], 1e-5, "y");
            assert_near(d[k], want_d[k], 1e-4, "dx");
        }
        for (int64_t k = 0; k < n; k++)
            assert_near(dw[k], want_dw[k], 1e-4, "dw");
        free(x), free(w), free(d), free(want_d), free(y), free(want), free(dw), free(want_dw);
        free(rstd);
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
    RUN(head_norm_sums, head_norm_sums, .type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
}
