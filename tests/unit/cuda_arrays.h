/*
 * tests/unit/cuda_arrays.h - arrays in host memory and in the memory of a GPU, with which an
 * operation is run by the CPU's kernels and by the CUDA kernels.
 */
#ifndef TESTS_UNIT_CUDA_ARRAYS_H
#define TESTS_UNIT_CUDA_ARRAYS_H

#include "comm/cuda/library.h"
#include "device/staging.h"
#include "tests/unit/cuda_support.h"
#include "tests/unit/device_read.h"
#include "tests/unit/kernels_support.h"

#define CUDA_ARRAYS static inline __attribute__((unused))

/* The same bytes in host memory, for the CPU's kernels, and in device memory. */
struct pair {
    void *cpu, *gpu;
    int64_t n_bytes;
};

enum { PAIRS_MAX = 32 };

static struct device_queue *queue; /* of the GPU */
static struct staging staging;
static struct pair pairs[PAIRS_MAX];
static int n_pairs;
static bool on_gpu; /* which side AT() means */
static int skew;    /* elements between an aligned address of the GPU and an array of numbers */

#define AT(p) (on_gpu ? (p).gpu : (p).cpu)

/* Run an operation on the CPU and on the GPU, with the argument (struct tag){ ... }. */
#define BOTH(op, tag, ...)                                          \
    do {                                                            \
        on_gpu = false;                                             \
        kernels_cpu.op(kernels_on(), &(struct tag){ __VA_ARGS__ }); \
        on_gpu = true;                                              \
        cuda->kernels->op(queue, &(struct tag){ __VA_ARGS__ });     \
    } while (0)

CUDA_ARRAYS void start(struct rng *r)
{
    struct tp_err err = { 0 };

    queue = NULL;
    cr_assert_eq(device_queue_open(open_cuda(rng_next(r)), &queue, DEVICE_QUEUE_COMPUTE, &err),
                 TP_OK, "%s", err.msg);
    cr_assert_eq(staging_open(&staging, queue, 1 << 16, &err), TP_OK, "%s", err.msg);
    n_pairs = 0;
    skew = 0;
}

CUDA_ARRAYS void end(void)
{
    struct device *d = queue->device;
    struct tp_err err = { 0 };

    cr_assert_eq(staging_finish(&staging, &err), TP_OK, "%s", err.msg);
    while (n_pairs > 0)
        free(pairs[--n_pairs].cpu);
    staging_close(&staging);
    device_queue_close(queue);
    device_close(d);
}

CUDA_ARRAYS struct pair skewed_pair_of(const void *content, int64_t n_bytes, int64_t skew_bytes)
{
    struct pair *p = &pairs[n_pairs++];
    struct tp_err err = { 0 };

    cr_assert(n_pairs <= PAIRS_MAX);
    p->n_bytes = n_bytes;
    p->cpu = aligned_alloc(64, (size_t)(n_bytes + 127) / 64 * 64);
    memcpy(p->cpu, content, (size_t)n_bytes);
    cr_assert_eq(device_alloc(queue->device, &p->gpu, n_bytes + skew_bytes, &err), TP_OK, "%s",
                 err.msg);
    p->gpu = (char *)p->gpu + skew_bytes;
    cr_assert_eq(staging_put(&staging, p->gpu, content, n_bytes, &err), TP_OK, "%s", err.msg);
    return *p;
}

CUDA_ARRAYS struct pair pair_of(const void *content, int64_t n_bytes)
{
    return skewed_pair_of(content, n_bytes, 0);
}

CUDA_ARRAYS struct pair floats(struct rng *r, int64_t n, double size)
{
    float *x = random_floats(r, n, size);
    struct pair p = skewed_pair_of(x, n * (int64_t)sizeof *x, skew * (int64_t)sizeof *x);

    free(x);
    return p;
}

/* Numbers whose sums are exact, in any order. */
CUDA_ARRAYS struct pair summands(struct rng *r, int64_t n)
{
    float *x = malloc((size_t)(n + 1) * sizeof *x);
    struct pair p;

    for (int64_t i = 0; i < n; i++)
        x[i] = (float)rng_int(r, -64, 64) / 64;
    p = skewed_pair_of(x, n * (int64_t)sizeof *x, skew * (int64_t)sizeof *x);
    free(x);
    return p;
}

CUDA_ARRAYS struct pair doubles(struct rng *r, int64_t n)
{
    double *x = malloc((size_t)(n + 1) * sizeof *x);
    struct pair p;

    for (int64_t i = 0; i < n; i++)
        x[i] = rng_real(r);
    p = pair_of(x, n * (int64_t)sizeof *x);
    free(x);
    return p;
}

CUDA_ARRAYS struct pair integers(struct rng *r, int64_t n, int32_t lo, int32_t hi)
{
    int32_t *x = malloc((size_t)(n + 1) * sizeof *x);
    struct pair p;

    for (int64_t i = 0; i < n; i++)
        x[i] = (int32_t)rng_int(r, lo, hi);
    p = pair_of(x, n * (int64_t)sizeof *x);
    free(x);
    return p;
}

/* Random f32 or bf16. */
CUDA_ARRAYS struct pair numbers(struct rng *r, enum dtype type, int64_t n, double size)
{
    float *x = random_floats(r, n, size);
    void *y = stored_as(type, x, n);
    struct pair p = skewed_pair_of(y, n * dtype_bytes(type), skew * dtype_bytes(type));

    free(x);
    free(y);
    return p;
}

/* bf16 on the GPU, and the same numbers in f32 on the CPU, which does not keep_bf16. */
#define KEPT (on_gpu ? DTYPE_BF16 : DTYPE_F32)

CUDA_ARRAYS struct pair kept(float *from, int64_t n)
{
    void *y = stored_as(DTYPE_BF16, from, n);
    float *x = as_floats(DTYPE_BF16, y, n);
    struct pair p = skewed_pair_of(y, n * dtype_bytes(DTYPE_BF16), skew * dtype_bytes(DTYPE_BF16));

    p.cpu = pair_of(x, n * (int64_t)sizeof *x).cpu;
    free(x);
    free(y);
    return p;
}

CUDA_ARRAYS struct pair numbers_kept(struct rng *r, int64_t n, double size)
{
    float *x = random_floats(r, n, size);
    struct pair p = kept(x, n);

    free(x);
    return p;
}

/* Element `at` of an array of such numbers. */
#define AT_KEPT(p, at) ((char *)AT(p) + (at)*dtype_bytes(KEPT))

CUDA_ARRAYS void *from_gpu(const struct pair *p)
{
    void *got = malloc((size_t)p->n_bytes + 1);
    struct tp_err err = { 0 };

    cr_assert_eq(device_read(&staging, got, p->gpu, p->n_bytes, &err), TP_OK, "%s", err.msg);
    return got;
}

CUDA_ARRAYS void assert_same_bits(struct pair p, const char *what)
{
    char *got = from_gpu(&p);

    for (int64_t i = 0; i < p.n_bytes; i++)
        cr_assert_eq(got[i], ((char *)p.cpu)[i], "%s: byte %lld of %lld", what, (long long)i,
                     (long long)p.n_bytes);
    free(got);
}

/* The GPU's numbers are `type`, the CPU's cpu_type. */
CUDA_ARRAYS void assert_similar_types(struct pair p, enum dtype type, enum dtype cpu_type,
                                      double size, double tolerance, const char *what)
{
    int64_t n = p.n_bytes / dtype_bytes(type);
    void *bytes = from_gpu(&p);
    double *got = malloc((size_t)(n + 1) * sizeof *got),
           *want = malloc((size_t)(n + 1) * sizeof *want);
    double step = type == DTYPE_BF16 ? 0x1p-7 : 0;

    cast(got, DTYPE_F64, bytes, type, n);
    cast(want, DTYPE_F64, p.cpu, cpu_type, n);
    for (int64_t i = 0; i < n; i++) {
        double allowed = tolerance * (size + fabs(want[i])) + step * fabs(want[i]);
        char where[500];

        if (fabs(got[i] - want[i]) <= allowed)
            continue;
        snprintf(where, sizeof where, "%s: the first of %lld that differs is number %lld", what,
                 (long long)n, (long long)i);
        assert_near(got[i], want[i], allowed, where);
    }
    free(bytes);
    free(got);
    free(want);
}

/* Within a relative error, where numbers are of the size `size`. bf16: one more step of it. */
CUDA_ARRAYS void assert_similar(struct pair p, enum dtype type, double size, double tolerance,
                                const char *what)
{
    assert_similar_types(p, type, type, size, tolerance, what);
}

CUDA_ARRAYS void assert_similar_kept(struct pair p, double size, double tolerance, const char *what)
{
    assert_similar_types(p, DTYPE_BF16, DTYPE_F32, size, tolerance, what);
}

/* Where the GPU adds the sums over rows of the dx of a layer norm. The CPU computes them apart. */
CUDA_ARRAYS float *kept_sum(bool sums, const struct pair *dx_sum)
{
    return sums && on_gpu ? dx_sum->gpu : NULL;
}

/* The GPU has added them to dx_sum; size: about what they are. */
CUDA_ARRAYS void assert_summed(struct pair dx_sum, const struct pair *dx, int64_t rows,
                               int64_t cols, double size)
{
    kernels_cpu.bias_gradient(
        kernels_on(),
        &(struct bias_gradient){
            .dbias = dx_sum.cpu, .dy = dx->cpu, .type = DTYPE_F32, .rows = rows, .cols = cols });
    assert_similar(dx_sum, DTYPE_F32, size, 3e-6, "sums of dx");
}

#endif
