/* tests/unit/kernels_permute.c - rows sorted by expert and back; the gradient of a row's weight. */
#include "kernels/permute.h"

#include "tests/unit/kernels_support.h"

/* Rows and their sorted copies. */
struct copies {
    int64_t rows, cols, n;
    int per_row, experts;
    int32_t *chosen, *place, *source, *offsets;
};

static struct copies random_copies(struct rng *r)
{
    struct copies c = { .rows = rng_int(r, 0, 40), .cols = rng_int(r, 1, 600) };

    c.experts = (int)rng_int(r, 1, 9);
    c.per_row = (int)rng_int(r, 1, c.experts);
    c.n = c.rows * c.per_row;
    c.chosen = calloc((size_t)c.n + 1, 4);
    c.place = calloc((size_t)c.n + 1, 4);
    c.source = calloc((size_t)c.n + 1, 4);
    c.offsets = calloc((size_t)c.experts + 1, 4);
    for (int64_t i = 0; i < c.n; i++)
        c.chosen[i] = (int32_t)rng_int(r, 0, c.experts - 1);
    RUN(permute_sort, permute_sort, c.offsets, c.place, c.source, c.chosen, c.n, c.experts);
    return c;
}

static void copies_free(struct copies *c)
{
    free(c->chosen);
    free(c->place);
    free(c->source);
    free(c->offsets);
}

Test(permute, copies_are_sorted_by_expert_and_stay_in_order)
{
    struct rng r = rng_start("permute/sort");

    for (int i = 0; i < 50; i++) {
        struct copies c = random_copies(&r);

        cr_assert(c.offsets[0] == 0 && c.offsets[c.experts] == c.n);
        for (int e = 0; e < c.experts; e++)
            for (int64_t j = c.offsets[e]; j < c.offsets[e + 1]; j++) {
                cr_assert_eq(c.chosen[c.source[j]], e);
                cr_assert_eq(c.place[c.source[j]], j);
                cr_assert(j == c.offsets[e] || c.source[j - 1] < c.source[j]);
            }
        copies_free(&c);
    }
}

/* Several ranks share the experts: what one has for another is what the other expects from it, and
 * its groups are the rows of each of its experts. */
Test(permute, ranks_agree_on_what_they_exchange)
{
    struct rng r = rng_start("permute/dispatch");

    for (int i = 0; i < 50; i++) {
        enum { RANKS = 4, OWN = 3, EXPERTS = RANKS * OWN };
        int32_t all[RANKS][EXPERTS + 1], send[RANKS][RANKS + 1], recv[RANKS][RANKS + 1];
        int32_t groups[RANKS][EXPERTS + 1];

        for (int k = 0; k < RANKS; k++) {
            all[k][0] = 0;
            for (int e = 0; e < EXPERTS; e++)
                all[k][e + 1] = all[k][e] + (int32_t)rng_int(&r, 0, 3);
        }
        for (int k = 0; k < RANKS; k++)
            RUN(permute_dispatch, permute_dispatch, send[k], recv[k], groups[k], all[0], RANKS, k,
                EXPERTS);
        for (int k = 0; k < RANKS; k++) {
            cr_assert(send[k][0] == 0 && send[k][RANKS] == all[k][EXPERTS]);
            cr_assert_eq(groups[k][EXPERTS], recv[k][RANKS]);
            for (int q = 0; q < RANKS; q++) {
                cr_assert_eq(send[k][q + 1] - send[k][q], recv[q][k + 1] - recv[q][k]);
                cr_assert_eq(groups[k][q * OWN], recv[k][q]);
                for (int e = 0; e < OWN; e++)
                    cr_assert_eq(groups[k][q * OWN + e + 1] - groups[k][q * OWN + e],
                                 all[q][k * OWN + e + 1] - all[q][k * OWN + e]);
            }
        }
    }
}

/* With weights that add up to 1 the weighted sum of a row's copies is the row. */
Test(permute, a_sum_of_copies_is_the_row)
{
    struct rng r = rng_start("permute/sum");

    for (int i = 0; i < 50; i++) {
        struct copies c = random_copies(&r);
        enum dtype type = i & 1 ? DTYPE_BF16 : DTYPE_F32;
        float *x = random_floats(&r, c.rows * c.cols, 1), *y = filled_floats(c.rows * c.cols, NAN);
        float *w = filled_floats(c.n, 1 / (float)c.per_row), *sorted;
        void *stored = stored_as(type, x, c.rows * c.cols),
             *out = calloc((size_t)(c.n * c.cols) + 1, 4);

        use_threads(1 + i % 3);
        RUN(permute_rows, permute_rows, out, stored, type, c.source, c.n, c.cols, c.per_row);
        sorted = as_floats(type, out, c.n * c.cols);
        RUN(permute_sum, permute_sum, y, sorted, c.place, w, c.rows, c.cols, c.per_row, false,
            .x_type = DTYPE_F32);
        for (int64_t k = 0; k < c.rows * c.cols; k++)
            assert_near(y[k], x[k], 1e-6, "weighted");
        RUN(permute_sum, permute_sum, y, sorted, c.place, NULL, c.rows, c.cols, c.per_row, true,
            .x_type = DTYPE_F32);
        for (int64_t k = 0; k < c.rows * c.cols; k++)
            assert_near(y[k], (1 + c.per_row) * x[k], 1e-5, "added");
        free(x);
        free(y);
        free(w);
        free(sorted);
        free(stored);
        free(out);
        copies_free(&c);
    }
}

Test(permute, the_gradient_of_a_weight_is_a_product_of_rows)
{
    struct rng r = rng_start("permute/weights");

    for (int i = 0; i < 50; i++) {
        struct copies c = random_copies(&r);
        enum dtype type = i & 1 ? DTYPE_BF16 : DTYPE_F32;
        int64_t all = c.n * c.cols;
        float *d = random_floats(&r, all, 1), *hidden = random_floats(&r, all, 1), *got;
        float *w = random_floats(&r, c.n, 1), *dw = filled_floats(c.n, NAN);
        float *was = filled_floats(all, 0);
        void *stored = stored_as(type, hidden, all);

        memcpy(was, d, (size_t)all * sizeof *d);
        RUN(permute_weight_backward, permute_weight_backward, dw, d, stored, type, w, c.source, c.n,
            c.cols, NULL, DTYPE_F32);
        got = as_floats(type, stored, all);
        for (int64_t j = 0; j < c.n; j++) {
            double want = 0, by = (double)w[c.source[j]];

            for (int64_t k = j * c.cols; k < (j + 1) * c.cols; k++) {
                want += (double)was[k] * (double)hidden[k];
                assert_near(d[k], by * (double)was[k], 1e-6, "dhidden");
                assert_near(got[k], by * (double)hidden[k], 2 * epsilon(type), "hidden");
            }
            assert_near(dw[c.source[j]], want, 1e-6 * sqrt((double)c.cols) * 4, "dweights");
        }
        free(d);
        free(hidden);
        free(got);
        free(w);
        free(dw);
        free(was);
        free(stored);
        copies_free(&c);
    }
}

Test(permute, the_cpu_refuses_inputs_in_bf16)
{
    struct tp_err err;

    RUN(permute_weight_backward, permute_weight_backward, .dhidden_type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "the gradient of weights on the CPU has f32 inputs, not bf16"), "%s",
              err.msg);
}
