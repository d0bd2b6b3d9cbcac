/*
 * tests/unit/kernels_cuda_optimizer.c - the gradient norm and AdamW of the CUDA kernels against the
 * CPU's, on the fake CUDA device. Both take lists of tensors.
 *
 * needs: libtp-cuda.so
 */
#include "tests/unit/cuda_arrays.h"

/* ---- AdamW ---- */

enum { ADAMW_TENSORS = 500 };

/* The arrays of all tensors lie in five arrays, one tensor after the other. */
struct adamw_arrays {
    struct pair p, m, v, grad, half;
    struct adamw_tensor
        tensors[ADAMW_TENSORS]; /* without pointers; p_bf16: only whether it is NULL */
    int n;
};

static void adamw_run(const struct adamw_arrays *a, struct pair scale, struct pair rates, bool gpu)
{
    struct adamw_tensor tensors[ADAMW_TENSORS];
    int64_t at = 0;

    on_gpu = gpu;
    for (int i = 0; i < a->n; i++) {
        struct adamw_tensor *t = &tensors[i];

        *t = a->tensors[i];
        t->p = (float *)AT(a->p) + at;
        t->m = (float *)AT(a->m) + at;
        t->v = (float *)AT(a->v) + at;
        t->grad = (float *)AT(a->grad) + at;
        if (t->p_bf16)
            t->p_bf16 = (uint16_t *)AT(a->half) + at;
        at += t->n;
    }
    (gpu ? cuda->kernels : &kernels_cpu)
        ->adamw_step(
            gpu ? queue : kernels_on(),
            &(struct adamw_step){ tensors, a->n, AT(scale), AT(rates), { 0.9, 0.95, 1e-8 } });
}

/* More small tensors than one launch takes, or few that are large; some are empty. */
static void adamw_case(struct rng *r)
{
    static uint16_t not_null;
    struct adamw_arrays a = { .n = rng_int(r, 0, 3) ? (int)rng_int(r, 0, 4) : ADAMW_TENSORS };
    int64_t n = 0;

    for (int i = 0; i < a.n; i++) {
        a.tensors[i].n = rng_int(r, 0, a.n > 4 ? 9 : 2500);
        a.tensors[i].decays = rng_int(r, 0, 1);
        a.tensors[i].p_bf16 = rng_int(r, 0, 1) ? &not_null : NULL;
        n += a.tensors[i].n;
    }
    float *squares = random_floats(r, n, 1);
    for (int64_t i = 0; i < n; i++)
        squares[i] *= squares[i];
    a.p = floats(r, n, 1);
    a.m = floats(r, n, 0.1);
    a.v = pair_of(squares, n * (int64_t)sizeof *squares);
    a.grad = floats(r, n, 1);
    a.half = numbers(r, DTYPE_BF16, n, 1);
    const struct pair scale = doubles(r, 1);
    const struct adamw_rates values = { 0.1f, 4.5f, 0.999f };
    const struct pair rates = pair_of(&values, sizeof values);
    adamw_run(&a, scale, rates, false);
    adamw_run(&a, scale, rates, true);
    assert_similar(a.p, DTYPE_F32, 1, 1e-6, "p");
    assert_similar(a.m, DTYPE_F32, 1, 1e-6, "m");
    assert_similar(a.v, DTYPE_F32, 1, 1e-6, "v");
    assert_similar(a.half, DTYPE_BF16, 1, 1e-6, "p in bf16");
    free(squares);
}

Test(cuda_optimizer, adamw)
{
    struct rng r = rng_start("cuda/adamw");

    for (int i = 0; i < 20; i++) {
        start(&r);
        adamw_case(&r);
        end();
    }
}

/* ---- the gradient norm ---- */

enum { NORM_TENSORS = 500 };

/* Tensors that lie one after the other in x, and where their sums go. */
struct norm_arrays {
    struct pair x, sums;
    int64_t n[NORM_TENSORS];
    int count;
};

static void list_tensors(struct grad_norm_tensor *list, const struct norm_arrays *a)
{
    const float *x = AT(a->x);

    for (int i = 0; i < a->count; i++) {
        list[i] = (struct grad_norm_tensor){ x, a->n[i] };
        x += a->n[i];
    }
}

static void squares_on(const struct norm_arrays *a, bool gpu)
{
    struct grad_norm_tensor list[NORM_TENSORS];

    on_gpu = gpu;
    list_tensors(list, a);
    (gpu ? cuda->kernels : &kernels_cpu)
        ->grad_norm_squares(gpu ? queue : kernels_on(),
                            &(struct grad_norm_squares){ AT(a->sums), list, a->count });
}

/* More small tensors than one launch takes, or few that have several parts; some are empty. */
static struct norm_arrays norm_arrays(struct rng *r)
{
    struct norm_arrays a = { .count = rng_int(r, 0, 2) ? (int)rng_int(r, 0, 4) : NORM_TENSORS };
    int64_t total = 0;

    for (int i = 0; i < a.count; i++) {
        a.n[i] = rng_int(r, 0, a.count > 4 ? 20 : 30000);
        total += a.n[i];
    }
    a.x = floats(r, total, 1);
    a.sums = doubles(r, a.count);
    return a;
}

Test(cuda_optimizer, squares_of_many_tensors)
{
    struct rng r = rng_start("cuda/squares");

    for (int i = 0; i < 12; i++) {
        start(&r);
        const struct norm_arrays a = norm_arrays(&r);
        squares_on(&a, false);
        squares_on(&a, true);
        assert_similar(a.sums, DTYPE_F64, 0, 1e-13, "sums of squares");
        end();
    }
}

/* On the GPU alone: bits, and the number of launches. */
Test(cuda_optimizer, a_sum_of_squares_depends_on_its_tensor_only)
{
    struct rng r = rng_start("cuda/squares alone");

    for (int i = 0; i < 4; i++) {
        struct grad_norm_tensor list[NORM_TENSORS];

        start(&r);
        const struct norm_arrays a = norm_arrays(&r);
        const struct pair alone = doubles(&r, a.count);
        squares_on(&a, true);
        list_tensors(list, &a);
        for (int t = 0; t < a.count; t++)
            cuda->kernels->grad_norm_squares(
                queue, &(struct grad_norm_squares){ (double *)alone.gpu + t, &list[t], 1 });
        double *together = from_gpu(&a.sums);
        double *one = from_gpu(&alone);
        cr_assert_eq(memcmp(together, one, (size_t)a.sums.n_bytes), 0);
        free(together);
        free(one);
        end();
    }
}

/* The same numbers where packs can be loaded, and where they cannot. */
Test(cuda_optimizer, a_sum_of_squares_does_not_depend_on_its_address)
{
    struct rng r = rng_start("cuda/squares moved");

    for (int i = 0; i < 12; i++) {
        const int64_t n = rng_int(&r, 1000, 30000), skip = 1 + i % 3;
        float *moved = random_floats(&r, n + skip, 1);

        for (int64_t k = 0; k < n + skip; k++) /* so that each order is rounded differently */
            moved[k] = ldexpf(moved[k], (int)rng_int(&r, -20, 0));
        start(&r);
        const struct pair x = pair_of(moved + skip, n * (int64_t)sizeof *moved);
        const struct pair y = pair_of(moved, (n + skip) * (int64_t)sizeof *moved);
        const struct pair sums = doubles(&r, 2);
        const struct grad_norm_tensor list[] = { { x.gpu, n }, { (float *)y.gpu + skip, n } };
        cuda->kernels->grad_norm_squares(queue, &(struct grad_norm_squares){ sums.gpu, list, 2 });
        double *got = from_gpu(&sums);
        cr_assert_eq(got[0], got[1], "%.17g and %.17g", got[0], got[1]);
        free(got);
        free(moved);
        end();
    }
}

Test(cuda_optimizer, squares_of_480_tensors_are_two_launches)
{
    struct rng r = rng_start("cuda/squares launches");
    struct grad_norm_tensor list[480];
    struct tp_err err = { 0 };

    start(&r);
    struct pair x = floats(&r, 64, 1), sums = doubles(&r, 480);
    for (int i = 0; i < 480; i++)
        list[i] = (struct grad_norm_tensor){ x.gpu, 1 + i % 64 };
    cr_assert_eq(staging_finish(&staging, &err), TP_OK, "%s", err.msg);
    const uint64_t before = fake ? fake->operations() : 0;
    cuda->kernels->grad_norm_squares(queue, &(struct grad_norm_squares){ sums.gpu, list, 480 });
    if (fake)
        cr_expect_eq(fake->operations() - before, 2);
    end();
}

Test(cuda_optimizer, grad_norm)
{
    struct rng r = rng_start("cuda/grad_norm");

    for (int i = 0; i < 20; i++) {
        int64_t rows = rng_int(&r, 1, 40), cols = rng_int(&r, 1, rows > 5 ? 70 : 600);
        double clip = (double)rng_int(&r, 0, 2) * 0.7;

        start(&r);
        struct pair x = floats(&r, rows * cols, 1), sums = doubles(&r, rows);
        struct pair sum = doubles(&r, 1), norm = doubles(&r, 1), scale = doubles(&r, 1);
        BOTH(grad_norm_squares_rows, grad_norm_squares_rows, AT(sums), AT(x), rows, cols);
        assert_similar(sums, DTYPE_F64, 0, 1e-13, "sums of squares");
        BOTH(sum_doubles, sum_doubles, AT(sum), AT(sums), 1, rows);
        BOTH(grad_norm_clip, grad_norm_clip, AT(sum), clip, AT(norm), AT(scale));
        assert_similar(norm, DTYPE_F64, 0, 1e-13, "norm");
        assert_similar(scale, DTYPE_F64, 0, 1e-13, "clip factor");
        end();
    }
}
