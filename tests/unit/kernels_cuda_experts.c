/*
 * tests/unit/kernels_cuda_experts.c - the operations of mixtures of experts: the CUDA kernels
 * against the CPU's, on the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: kernels/cuda/router kernels/cuda/permute kernels/cuda/grouped_gemm kernels/cuda/blas
 */
#include "tests/unit/cuda_arrays.h"

static enum dtype any_type(struct rng *r)
{
    return rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
}

/* Scores of which many are equal. */
static struct pair scores(struct rng *r, int64_t n)
{
    float *x = random_floats(r, n, 3);
    struct pair p;

    for (int64_t i = 0; i < n; i++)
        x[i] = rng_int(r, 0, 2) ? x[i] : (float)rng_int(r, 0, 2);
    p = pair_of(x, n * (int64_t)sizeof *x);
    free(x);
    return p;
}

/* Some sequences of tokens through a router. */
static void router_case(struct rng *r)
{
    int64_t seq = rng_int(r, 1, 12), sequences = rng_int(r, 0, 4), rows = seq * sequences;
    int experts = (int)rng_int(r, 1, rng_int(r, 0, 3) ? 9 : 90);
    int per_row = (int)rng_int(r, 1, experts < 5 ? experts : 5);
    bool is_normalized = rng_int(r, 0, 1), has_counts = rng_int(r, 0, 1);
    enum dtype type = any_type(r);
    struct pair probs = scores(r, rows * experts), chosen = integers(r, rows * per_row, -9, -9);
    struct pair weights = floats(r, rows * per_row, 1), dweights = floats(r, rows * per_row, 1);
    struct pair dlogits = numbers(r, type, rows * experts, 1);
    struct pair load = floats(r, sequences * 2 * experts, 1), total = doubles(r, 1);

    BOTH(router_forward, router_forward, AT(probs), AT(chosen), AT(weights), rows, experts, per_row,
         is_normalized);
    assert_similar(probs, DTYPE_F32, 0, 1e-6, "probabilities");
    assert_same_bits(chosen, "experts");
    assert_similar(weights, DTYPE_F32, 0, 2e-6, "weights");
    BOTH(router_load, router_load, AT(load), AT(probs), AT(chosen), rows, seq, experts, per_row);
    assert_similar(load, DTYPE_F32, 1, 1e-6, "load");
    BOTH(router_balance, router_balance, AT(total), AT(load), sequences, experts, 0.7);
    assert_similar(total, DTYPE_F64, 1, 3e-6, "loss of the balance");
    BOTH(router_backward, router_backward, AT(dlogits), type, AT(dweights), AT(probs), AT(weights),
         AT(chosen), rows, experts, per_row, is_normalized, has_counts ? AT(load) : NULL, seq,
         0.3f);
    assert_similar(dlogits, type, 1, 1e-5, "gradient of scores");
}

Test(cuda_experts, router)
{
    struct rng r = rng_start("cuda/router");

    for (int i = 0; i < 15; i++) {
        start(&r);
        router_case(&r);
        end();
    }
}

/* A row that is not a number has experts too, and its weights are not numbers. */
Test(cuda_experts, router_of_nan)
{
    const float row[4] = { 1, NAN, 2, 3 };
    struct rng r = rng_start("cuda/router of NaN");
    int32_t *experts;
    float *w;

    start(&r);
    struct pair probs = pair_of(row, sizeof row), chosen = integers(&r, 3, -9, -9);
    struct pair weights = floats(&r, 3, 1);
    BOTH(router_forward, router_forward, AT(probs), AT(chosen), AT(weights), 1, 4, 3, true);
    experts = from_gpu(&chosen);
    w = from_gpu(&weights);
    for (int k = 0; k < 3; k++)
        cr_assert(experts[k] == k && isnan(w[k]), "expert %d, weight %g", experts[k], (double)w[k]);
    free(experts);
    free(w);
    end();
}

/* Copies of tokens, sorted by expert, and everything that is done with them. */
static void permute_case(struct rng *r)
{
    int experts = (int)rng_int(r, 1, rng_int(r, 0, 2) ? 9 : 300), per_row = (int)rng_int(r, 1, 4);
    int64_t rows = rng_int(r, 0, rng_int(r, 0, 2) ? 20 : 200), n = rows * per_row;
    int64_t cols = rng_int(r, 0, 1) ? rng_int(r, 1, 80) : 8 * rng_int(r, 1, 9);
    enum dtype type = any_type(r);
    bool has_weights = rng_int(r, 0, 1), add = rng_int(r, 0, 1), is_sorted = rng_int(r, 0, 1);
    int32_t some = (int32_t)rng_int(r, 0, n);
    struct pair chosen = integers(r, n, 0, experts - 1), offsets = integers(r, experts + 1, -1, -1);
    struct pair place = integers(r, n, -1, -1), source = integers(r, n, -1, -1);
    struct pair x = numbers(r, type, rows * cols, 1), copies = numbers(r, type, n * cols, 1);
    struct pair results = floats(r, n * cols, 1), y = floats(r, rows * cols, 1);
    struct pair weights = floats(r, n, 1), dweights = floats(r, n, 1);
    struct pair count = integers(r, 1, some, some);

    BOTH(permute_sort, permute_sort, AT(offsets), AT(place), AT(source), AT(chosen), n, experts);
    assert_same_bits(offsets, "offsets");
    assert_same_bits(place, "places");
    assert_same_bits(source, "sources");
    BOTH(permute_rows, permute_rows, AT(copies), AT(x), type, AT(source), n, cols, per_row);
    assert_same_bits(copies, "copies");
    BOTH(permute_sum, permute_sum, AT(y), AT(results), AT(place), has_weights ? AT(weights) : NULL,
         rows, cols, per_row, add, .x_type = DTYPE_F32);
    assert_similar(y, DTYPE_F32, 1, 2e-6, "sums of copies");
    BOTH(permute_weight_backward, permute_weight_backward, AT(dweights), AT(results), AT(copies),
         type, AT(weights), is_sorted ? AT(source) : NULL, n, cols, is_sorted ? NULL : AT(count),
         DTYPE_F32);
    assert_similar(dweights, DTYPE_F32, 10, 1e-6, "gradients of weights");
    assert_similar(results, DTYPE_F32, 0, 1e-7, "weighted gradients");
    assert_similar(copies, type, 0, 1e-7, "weighted rows");
}

/* The gradient of hidden as a product wrote it in bf16. */
Test(cuda_experts, weights_of_gradients_that_are_kept_in_bf16)
{
    struct rng r = rng_start("cuda/permute kept");

    for (int i = 0; i < 8; i++) {
        int64_t n = rng_int(&r, 0, 40);
        int64_t cols = i % 2 ? rng_int(&r, 1, 80) : 8 * rng_int(&r, 1, 600);

        start(&r);
        struct pair dhidden = numbers_kept(&r, n * cols, 1);
        struct pair hidden = numbers(&r, DTYPE_BF16, n * cols, 1);
        struct pair weights = floats(&r, n, 1), dweights = floats(&r, n, 1);
        BOTH(permute_weight_backward, permute_weight_backward, AT(dweights), AT(dhidden),
             AT(hidden), DTYPE_BF16, AT(weights), NULL, n, cols, NULL, KEPT);
        assert_similar(dweights, DTYPE_F32, 10, 1e-6, "gradients of weights");
        assert_similar_kept(dhidden, 0, 1e-7, "weighted gradients");
        assert_similar(hidden, DTYPE_BF16, 0, 1e-7, "weighted rows");
        end();
    }
}

/* Results as a product wrote them in bf16. */
Test(cuda_experts, sums_of_copies_that_are_kept_in_bf16)
{
    struct rng r = rng_start("cuda/sums of copies kept");

    for (int i = 0; i < 8; i++) {
        int64_t rows = rng_int(&r, 0, 20), n = 3 * rows;
        int64_t cols = i % 2 ? rng_int(&r, 1, 80) : 8 * rng_int(&r, 1, 90);
        bool has_weights = rng_int(&r, 0, 1), add = rng_int(&r, 0, 1);

        start(&r);
        skew = i % 4 / 3;
        struct pair results = numbers_kept(&r, n * cols, 1);
        struct pair place = integers(&r, n, 0, (int32_t)n - 1), weights = floats(&r, n, 1);
        struct pair y = floats(&r, rows * cols, 1), kept = numbers_kept(&r, rows * cols, 1);
        BOTH(permute_sum, permute_sum, AT(y), AT(results), AT(place),
             has_weights ? AT(weights) : NULL, rows, cols, 3, add, .x_type = KEPT);
        assert_similar(y, DTYPE_F32, 1, 2e-6, "sums of copies");
        BOTH(permute_sum, permute_sum, AT(kept), AT(results), AT(place),
             has_weights ? AT(weights) : NULL, rows, cols, 3, add, KEPT, KEPT);
        assert_similar_kept(kept, 1, 2e-6, "sums of copies in bf16");
        end();
    }
}

Test(cuda_experts, permute)
{
    struct rng r = rng_start("cuda/permute");

    for (int i = 0; i < 12; i++) {
        start(&r);
        permute_case(&r);
        end();
    }
}

Test(cuda_experts, what_ranks_exchange)
{
    struct rng r = rng_start("cuda/dispatch");

    for (int i = 0; i < 8; i++) {
        int size = (int)rng_int(&r, 1, 5), own = (int)rng_int(&r, 1, i ? 4 : 90);
        int experts = size * own, rank = (int)rng_int(&r, 0, size - 1);
        int32_t *numbers = calloc((size_t)(size * (experts + 1)), sizeof *numbers);

        for (int k = 0; k < size; k++)
            for (int e = 0; e < experts; e++)
                numbers[k * (experts + 1) + e + 1] =
                    numbers[k * (experts + 1) + e] + (int32_t)rng_int(&r, 0, 3);
        start(&r);
        struct pair all = pair_of(numbers, size * (experts + 1) * (int64_t)sizeof *numbers);
        struct pair send = integers(&r, size + 1, -1, -1), recv = integers(&r, size + 1, -1, -1);
        struct pair groups = integers(&r, experts + 1, -1, -1);
        BOTH(permute_dispatch, permute_dispatch, AT(send), AT(recv), AT(groups), AT(all), size,
             rank, experts);
        assert_same_bits(send, "rows to send");
        assert_same_bits(recv, "rows to receive");
        assert_same_bits(groups, "groups");
        end();
        free(numbers);
    }
}

/* Products along the rows (GEMM_M), or sums over them, of groups of which some are empty. */
struct groups {
    enum gemm_axis axis;
    enum dtype type;
    bool is_kept; /* C is bf16 on the GPU */
    int groups, matrices, rows_max;
    int64_t in, out;
    float beta;
};

/* Returns the number of calls for several groups. That number depends on which groups are empty, so
 * tests of it pass full_every: groups 0, full_every, 2 full_every and so on have rows_max rows, and
 * only the others have a random number. With 0 all have a random number. */
static int64_t grouped_case(struct rng *r, const struct groups *x, int full_every)
{
    const bool is_m = x->axis == GEMM_M;
    int64_t rows = 0, step = x->in * x->out + 8, before = fake ? fake->grouped_calls() : 0;
    int n_matrices = x->matrices ? x->matrices : x->groups;
    int32_t *offsets = calloc((size_t)x->groups + 1, sizeof *offsets);

    for (int g = 0; g < x->groups; g++) {
        bool is_full = full_every && g % full_every == 0;

        rows += is_full ? x->rows_max : rng_int(r, 0, 1) * rng_int(r, 0, x->rows_max);
        offsets[g + 1] = (int32_t)rows;
    }
    struct pair at = pair_of(offsets, (x->groups + 1) * (int64_t)sizeof *offsets);
    struct pair a = numbers(r, x->type, rows * x->in, 1);
    struct pair b = numbers(r, x->type, is_m ? step * n_matrices : rows * x->out, 1);
    struct pair c = x->is_kept ? numbers_kept(r, rows * x->out, 1)
                               : floats(r, is_m ? rows * x->out : step * n_matrices, 1);
    struct gemm g = { .trans_a = !is_m,
                      .m = x->in,
                      .n = x->out,
                      .k = x->in,
                      .lda = x->in,
                      .ldb = x->out,
                      .ldc = x->out,
                      .alpha = 1,
                      .beta = x->beta,
                      .type = x->type };

    for (on_gpu = false;; on_gpu = true) {
        g.a = AT(a);
        g.b = AT(b);
        g.c = AT(c);
        g.c_type = x->is_kept ? KEPT : DTYPE_F32;
        (on_gpu ? cuda->kernels : &kernels_cpu)
            ->grouped_gemm(on_gpu ? queue : kernels_on(),
                           &(struct grouped_gemm){ g, x->axis, x->groups, x->matrices, step, AT(at),
                                                   offsets });
        if (on_gpu)
            break;
    }
    memset(offsets, 0x7f, ((size_t)x->groups + 1) * sizeof *offsets); /* they have been read */
    assert_similar_types(c, x->is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, 10, 1e-6,
                         "grouped products");
    free(offsets);
    return fake ? fake->grouped_calls() - before : 0;
}

Test(cuda_experts, grouped_products)
{
    struct rng r = rng_start("cuda/grouped products");

    for (int i = 0; i < 20; i++) {
        struct groups x = { rng_int(&r, 0, 1) ? GEMM_M : GEMM_K,
                            any_type(&r),
                            false,
                            4,
                            rng_int(&r, 0, 1) ? 2 : 0,
                            9,
                            rng_int(&r, 1, 12),
                            rng_int(&r, 1, 12),
                            (float)rng_int(&r, 0, 2) / 2 };

        x.is_kept = x.axis == GEMM_M && x.type == DTYPE_BF16 && rng_int(&r, 0, 1);
        start(&r);
        skew = (int)rng_int(&r, 0, 1);
        grouped_case(&r, &x, 0);
        end();
    }
}

/* All groups in one call: at most 256 of them, and with GEMM_K those that do not share a matrix.
 * f32 results of bf16 matrices, bf16 rows of 24 bytes where k elements are 32, and groups of many
 * bf16 rows are computed one by one. Each call has at least one full group (16 is also the number
 * of matrices), and 8 groups of which one is full have at least 3750 rows on average. */
Test(cuda_experts, grouped_products_are_few_calls)
{
    static const struct {
        struct groups of;
        int64_t calls;
    } cases[] = { { { GEMM_M, DTYPE_F32, false, 64, 0, 3, 16, 5, 0 }, 1 },
                  { { GEMM_M, DTYPE_F32, false, 64, 16, 3, 7, 5, 1 }, 1 },
                  { { GEMM_M, DTYPE_F32, false, 300, 0, 2, 3, 2, 0 }, 2 },
                  { { GEMM_M, DTYPE_BF16, true, 64, 8, 3, 16, 8, 0 }, 1 },
                  { { GEMM_M, DTYPE_BF16, true, 64, 8, 3, 16, 8, 1 }, 1 },
                  { { GEMM_M, DTYPE_BF16, true, 64, 8, 3, 16, 12, 0 }, 0 },
                  { { GEMM_M, DTYPE_BF16, true, 64, 8, 3, 18, 12, 0 }, 1 },
                  { { GEMM_M, DTYPE_BF16, false, 64, 8, 3, 16, 8, 0 }, 0 },
                  { { GEMM_M, DTYPE_BF16, true, 8, 0, 30000, 8, 8, 0 }, 0 },
                  { { GEMM_M, DTYPE_F32, false, 8, 0, 30000, 8, 8, 0 }, 1 },
                  { { GEMM_K, DTYPE_F32, false, 64, 0, 3, 4, 5, 0 }, 1 },
                  { { GEMM_K, DTYPE_F32, false, 64, 16, 3, 4, 5, 0 }, 4 },
                  { { GEMM_K, DTYPE_F32, false, 64, 16, 3, 4, 5, 1 }, 4 },
                  { { GEMM_K, DTYPE_BF16, false, 64, 16, 3, 8, 8, 1 }, 0 },
                  { { GEMM_M, DTYPE_F32, false, 64, 0, 0, 4, 5, 0 }, 0 } };
    struct rng r = rng_start("cuda/grouped products, calls");

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        start(&r);
        int64_t calls = grouped_case(&r, &cases[i].of, 16);
        if (fake)
            cr_assert_eq(calls, cases[i].calls, "case %zu: %lld calls", i, (long long)calls);
        end();
    }
}

/* A cuBLAS without grouped products is asked once; then products are computed one by one. */
Test(cuda_experts, grouped_products_that_cublas_lacks)
{
    const struct groups f32 = { GEMM_M, DTYPE_F32, false, 16, 0, 3, 4, 5, 0.5 };
    const struct groups sums = { GEMM_K, DTYPE_F32, false, 16, 4, 3, 4, 5, 0.5 };
    const struct groups bf16 = { GEMM_M, DTYPE_BF16, true, 16, 0, 3, 8, 8, 0 };
    struct rng r = rng_start("cuda/grouped products, lacked");

    start(&r);
    if (!fake) {
        end();
        cr_skip_test("only the fake device can lack them");
    }
    fake->grouped_missing(true);
    cr_assert_eq(grouped_case(&r, &sums, 16), 0);
    fake->grouped_missing(false);
    cr_assert_eq(grouped_case(&r, &f32, 16), 0, "it was asked again");
    cr_assert_eq(grouped_case(&r, &bf16, 16), 1, "of another type");
    end();
}

Test(cuda_experts, grouped_products_without_numbers_on_the_host_are_refused)
{
    struct rng r = rng_start("cuda/grouped products, refused");
    struct tp_err err = { 0 };

    start(&r);
    cr_assert(cuda->kernels->reads_rows_on_host);
    cuda->kernels->grouped_gemm(queue, &(struct grouped_gemm){ .groups = 1 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "need the groups' rows on the host"), "%s", err.msg);
}

/* Elements [rows][cols] of the gate, of which some rows are there. */
Test(cuda_experts, gated_rows_up_to_a_count)
{
    struct rng r = rng_start("cuda/gated count");

    for (int i = 0; i < 8; i++) {
        int64_t rows = rng_int(&r, 1, 12), cols = rng_int(&r, 1, 40);
        int32_t some = (int32_t)rng_int(&r, 0, rows);

        start(&r);
        struct pair h = floats(&r, rows * 2 * cols, 4), y = floats(&r, rows * cols, 1);
        struct pair dy = floats(&r, rows * cols, 1), count = integers(&r, 1, some, some);
        BOTH(gated_forward, gated_forward, GATED_SWIGLU, DTYPE_F32, AT(y), AT(h),
             (float *)AT(h) + cols, 2 * cols, rows, cols, AT(count), DTYPE_F32);
        assert_similar(y, DTYPE_F32, 1e-1, 2e-6, "gated");
        BOTH(gated_backward, gated_backward, GATED_SWIGLU, DTYPE_F32, AT(h), (float *)AT(h) + cols,
             AT(dy), AT(h), (float *)AT(h) + cols, 2 * cols, rows, cols, AT(count), DTYPE_F32);
        assert_similar(h, DTYPE_F32, 1, 2e-6, "gated gradient");
        end();
    }
}
