/* tests/unit/kernels_grouped_gemm.c - a product for each group of rows, against one product after
 * the other; groups may be empty. */
#include "kernels/grouped_gemm.h"

#include "kernels/cpu/gemm.h"
#include "tests/unit/kernels_support.h"

enum { GROUPS = 5 };

/* Random sizes of groups, of n rows in all. */
static void random_offsets(struct rng *r, int32_t offsets[GROUPS + 1], int64_t n)
{
    offsets[0] = 0;
    for (int g = 1; g < GROUPS; g++)
        offsets[g] = (int32_t)rng_int(r, offsets[g - 1], n);
    offsets[GROUPS] = (int32_t)n;
}

/* Elements of the operands: of all rows, or of the matrices of all groups. */
struct shape {
    int64_t a, b, c;
};

static struct shape shape_of(const struct grouped_gemm *x, int64_t rows)
{
    const struct gemm *g = &x->product;

    if (x->axis == GEMM_M)
        return (struct shape){ rows * g->lda, GROUPS * x->step, rows * g->ldc };
    return (struct shape){ rows * g->lda, rows * g->ldb, GROUPS * x->step };
}

static void reference(const struct grouped_gemm *x)
{
    for (int i = 0; i < GROUPS; i++) {
        struct gemm g = x->product;
        int64_t first = x->offsets[i], e = dtype_bytes(g.type);
        int matrix = x->matrices ? i % x->matrices : i;
        bool is_m = x->axis == GEMM_M;

        *(is_m ? &g.m : &g.k) = x->offsets[i + 1] - first;
        g.a = (const char *)g.a + first * g.lda * e;
        g.b = (const char *)g.b + (is_m ? matrix * x->step : first * g.ldb) * e;
        g.c = (float *)g.c + (is_m ? first * g.ldc : matrix * x->step);
        g.beta = i == matrix ? g.beta : is_m ? g.beta : 1;
        gemm_reference(&g);
    }
}

static void compare(struct rng *r, struct grouped_gemm x, int64_t rows)
{
    struct gemm *g = &x.product;
    struct shape n = shape_of(&x, rows);
    float *fa = random_floats(r, n.a, 1), *fb = random_floats(r, n.b, 1);
    float *c = random_floats(r, n.c, 1), *want = filled_floats(n.c, 0);
    void *a = stored_as(g->type, fa, n.a), *b = stored_as(g->type, fb, n.b);

    memcpy(want, c, (size_t)n.c * sizeof *c);
    g->a = a;
    g->b = b;
    g->c = want;
    reference(&x);
    g->c = c;
    kernels_cpu.grouped_gemm(kernels_on(), &x);
    for (int64_t i = 0; i < n.c; i++)
        assert_near(c[i], want[i], 4e-6 * (1 + sqrt((double)rows)), "c");
    free(fa);
    free(fb);
    free(c);
    free(want);
    free(a);
    free(b);
}

Test(grouped_gemm, rows_and_matrices_of_each_group)
{
    struct rng r = rng_start("grouped_gemm");

    for (int i = 0; i < 40; i++) {
        int64_t rows = rng_int(&r, 0, 60), in = rng_int(&r, 1, 40), out = rng_int(&r, 1, 40);
        enum dtype type = i & 1 ? DTYPE_BF16 : DTYPE_F32;
        int32_t offsets[GROUPS + 1];
        struct gemm g = { .type = type, .alpha = 1, .beta = i & 2 ? 1 : 0 };
        struct grouped_gemm x = { .groups = GROUPS,
                                  .matrices = i % 3 == 0 ? 2 : 0,
                                  .step = in * out + 16,
                                  .offsets = offsets };

        use_threads(1 + i % 2);
        random_offsets(&r, offsets, rows);
        x.product = g; /* y = x W^T */
        x.axis = GEMM_M;
        x.product.trans_b = true;
        x.product.n = x.product.ldc = out;
        x.product.k = x.product.lda = x.product.ldb = in;
        compare(&r, x, rows);
        x.product = g; /* dW = dy^T x */
        x.axis = GEMM_K;
        x.product.trans_a = true;
        x.product.m = x.product.lda = out;
        x.product.n = x.product.ldb = x.product.ldc = in;
        compare(&r, x, rows);
    }
}
