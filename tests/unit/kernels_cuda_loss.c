/*
 * tests/unit/kernels_cuda_loss.c - the loss over a part of the vocabulary, of f32 and bf16 logits:
 * the CUDA kernels against the CPU's, on the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: kernels/cuda/loss
 */
#include "tests/unit/cuda_arrays.h"

#define TYPE (is_kept ? KEPT : DTYPE_F32) /* of logits */

/* A part of a vocabulary. */
struct loss_part {
    struct pair logits, d, sum, target;
    int64_t first, cols;
};

static struct loss_part loss_part_of(struct rng *r, bool is_kept, int64_t rows, int64_t first)
{
    const int64_t width = rng_int(r, 0, 2) ? rng_int(r, 1, 600) : rng_int(r, 2000, 20000);
    const int64_t cols = rng_int(r, 0, 1) ? (width + 7) / 8 * 8 : width, n = rows * cols;
    struct loss_part p = { .first = first, .cols = cols };

    p.logits = is_kept ? numbers_kept(r, n, 5) : floats(r, n, 5);
    p.d = is_kept ? numbers_kept(r, n, 1) : floats(r, n, 1);
    p.sum = floats(r, rows, 1);
    p.target = floats(r, rows, 1);
    return p;
}

/* In one of two parts of the vocabulary, or elsewhere. On the GPU, the first part's sums are over a
 * maximum that the second part's may replace. */
static void loss_case(struct rng *r, bool is_kept)
{
    const int64_t rows = rng_int(r, 1, 9);
    struct pair max = floats(r, rows, 1), total = doubles(r, 1);
    struct loss_part part[2] = { loss_part_of(r, is_kept, rows, rng_int(r, 0, 5)) };
    const float cap = rng_int(r, 0, 1) ? 6 : 0; /* above every logit */

    part[1] = loss_part_of(r, is_kept, rows, part[0].first + part[0].cols);
    struct pair targets =
        integers(r, rows, 0, (int32_t)(part[1].first + part[1].cols + rng_int(r, 0, 9) - 1));

    for (int i = 0; i < 2; i++) {
        struct loss_part *p = &part[i];

        BOTH(loss_max, loss_max, AT(max), AT(p->sum), AT(p->target), AT(p->logits), TYPE, rows,
             p->cols, i > 0);
        assert_same_bits(max, "maxima");
    }
    for (int i = 0; i < 2; i++) {
        struct loss_part *p = &part[i];

        BOTH(loss_sum_exp, loss_sum_exp, AT(p->sum), AT(p->target), AT(p->logits), TYPE, AT(max),
             AT(targets), p->first, rows, p->cols, cap);
        assert_similar(p->sum, DTYPE_F32, 0, 3e-6, "sums");
        assert_same_bits(p->target, "targets");
        BOTH(loss_total, loss_total, AT(total), AT(p->sum), AT(p->target), rows);
        assert_similar(total, DTYPE_F64, 1, 1e-6, "loss");
        bool in_place = rng_int(r, 0, 1);
        struct pair d = in_place ? p->logits : p->d;

        BOTH(loss_backward, loss_backward, AT(d), TYPE, AT(p->logits), TYPE, AT(p->sum),
             AT(targets), p->first, rows, p->cols, 0.125f, cap, AT(max));
        assert_similar_types(d, is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, 0.125, 2e-6,
                             "gradient of the loss");
    }
}

static void loss_of(const char *name, bool is_kept)
{
    struct rng r = rng_start(name);

    for (int i = 0; i < 20; i++) {
        start(&r);
        skew = rng_int(&r, 0, 3) == 0;
        loss_case(&r, is_kept);
        end();
    }
}

Test(cuda_loss, f32_logits)
{
    loss_of("cuda/loss", false);
}

Test(cuda_loss, bf16_logits)
{
    loss_of("cuda/loss kept", true);
}

/* The sum that the GPU computes for a row whose logits from column `first` on are `value`. */
static double sum_with(struct rng *r, bool is_kept, int64_t cols, int64_t first, float value)
{
    float *x = random_floats(r, cols, 5), got;
    struct pair logits, max = floats(r, 1, 1), sum = floats(r, 1, 1), target = floats(r, 1, 1);
    struct pair targets = integers(r, 1, 0, 0);

    for (int64_t c = first; c < cols; c++)
        x[c] = value;
    logits = is_kept ? kept(x, cols) : pair_of(x, cols * (int64_t)sizeof *x);
    BOTH(loss_max, loss_max, AT(max), AT(sum), AT(target), AT(logits), TYPE, 1, cols, false);
    BOTH(loss_sum_exp, loss_sum_exp, AT(sum), AT(target), AT(logits), TYPE, AT(max), AT(targets), 0,
         1, cols, 0.0f);
    float *all = from_gpu(&sum);
    got = *all;
    free(all);
    free(x);
    if (isfinite(got))
        assert_similar(sum, DTYPE_F32, 0, 3e-6, "sums");
    return (double)got;
}

/* A loss that is not finite stops the job (tp-run), so it must not be lost. */
Test(cuda_loss, a_logit_that_is_not_a_number_makes_a_loss_that_is_none)
{
    struct rng r = rng_start("cuda/loss NaN");

    for (int i = 0; i < 16; i++) {
        const int64_t cols = rng_int(&r, 2, 3000);
        const bool is_kept = i % 2;

        start(&r);
        cr_expect(isfinite(sum_with(&r, is_kept, cols, 1, -INFINITY)));
        cr_expect(isnan(sum_with(&r, is_kept, cols, cols - 1, INFINITY)));
        cr_expect(isnan(sum_with(&r, is_kept, cols, cols - 1, NAN)));
        cr_expect(isnan(sum_with(&r, is_kept, cols, 0, NAN)));
        end();
    }
}

Test(cuda_loss, gradients_of_another_type_than_the_logits_are_refused)
{
    struct rng r = rng_start("cuda/loss refused");
    struct tp_err err = { 0 };

    start(&r);
    cuda->kernels->loss_backward(queue, &(struct loss_backward){ .type = DTYPE_BF16 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "the gradient of f32 logits is not bf16 on a GPU"), "%s", err.msg);
}

/* Rounded to bf16, a capped logit may lie beyond the cap, where the derivative would be
 * negative. */
Test(cuda_loss, a_logit_at_the_cap_has_no_gradient)
{
    enum { COLS = 8 };
    const float cap = 30.1f; /* between two bf16 */
    struct rng r = rng_start("cuda/loss cap");
    struct pair x, max, sum, target, targets;
    float at_cap[COLS], *d;
    void *kept, *got;

    start(&r);
    for (int c = 0; c < COLS; c++)
        at_cap[c] = c % 2 ? 1000 : -1000;
    kept = stored_as(DTYPE_BF16, at_cap, COLS);
    x = pair_of(kept, COLS * 2);
    max = floats(&r, 1, 1), sum = floats(&r, 1, 1), target = floats(&r, 1, 1);
    targets = integers(&r, 1, 0, 0);
    const struct kernel_ops *ops = cuda->kernels;
    ops->soft_cap(queue, &(struct soft_cap){ x.gpu, COLS, cap, DTYPE_BF16 });
    ops->loss_max(queue, &(struct loss_max){ max.gpu, sum.gpu, target.gpu, x.gpu, DTYPE_BF16, 1,
                                             COLS, false });
    ops->loss_sum_exp(queue, &(struct loss_sum_exp){ sum.gpu, target.gpu, x.gpu, DTYPE_BF16,
                                                     max.gpu, targets.gpu, 0, 1, COLS, cap });
    ops->loss_backward(queue,
                       &(struct loss_backward){ x.gpu, DTYPE_BF16, x.gpu, DTYPE_BF16, sum.gpu,
                                                targets.gpu, 0, 1, COLS, 1, cap, max.gpu });
    got = from_gpu(&x);
    d = as_floats(DTYPE_BF16, got, COLS);
    for (int c = 0; c < COLS; c++)
        cr_expect_eq(d[c], 0, "column %d: %g", c, (double)d[c]);
    free(d);
    free(got);
    free(kept);
    end();
}
