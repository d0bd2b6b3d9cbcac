/*
 * tests/unit/kernels_cuda_products.c - products and attention of the CUDA kernels against the
 * CPU's, on the fake CUDA device.
 *
 * needs: libtp-cuda.so
 * covers: kernels/cuda/attention_mma_forward kernels/cuda/attention_mma_backward
 * covers: kernels/cuda/attention_wgmma_forward kernels/cuda/attention_wgmma_backward
 * covers: kernels/cuda/gemm_bias
 */
#include <sys/wait.h>
#include <unistd.h>

#include "tests/unit/cuda_arrays.h"

static enum dtype any_type(struct rng *r)
{
    return rng_int(r, 0, 1) ? DTYPE_BF16 : DTYPE_F32;
}

/* A matrix with more room between its rows than they need. */
static struct pair matrix(struct rng *r, enum dtype type, bool trans, int64_t rows, int64_t cols,
                          int64_t *ld)
{
    *ld = (trans ? rows : cols) + rng_int(r, 0, 3);
    return numbers(r, type, (trans ? cols : rows) * *ld, 1);
}

Test(cuda_products, gemm)
{
    struct rng r = rng_start("cuda/gemm");

    for (int i = 0; i < 30; i++) {
        enum dtype type = any_type(&r);
        bool trans_a = rng_int(&r, 0, 1), trans_b = rng_int(&r, 0, 1);
        int64_t m = rng_int(&r, 0, 40), n = rng_int(&r, 0, 40), k = rng_int(&r, 0, 40);
        int64_t lda, ldb, ldc;
        float alpha = rng_int(&r, 0, 3) ? 1 : 0.5f, beta = (float)rng_int(&r, 0, 2) / 2;

        start(&r);
        struct pair a = matrix(&r, type, trans_a, m, k, &lda);
        struct pair b = matrix(&r, type, trans_b, k, n, &ldb);
        struct pair c = matrix(&r, DTYPE_F32, false, m, n, &ldc);
        BOTH(gemm, gemm, trans_a, trans_b, m, n, k, AT(a), AT(b), AT(c), lda > 0 ? lda : 1,
             ldb > 0 ? ldb : 1, ldc > 0 ? ldc : 1, alpha, beta, type, NULL, NULL, { 0 }, DTYPE_F32,
             GEMM_EPILOGUE_NONE, .gelu_input = NULL);
        assert_similar(c, DTYPE_F32, 10, 1e-6, "a product");
        end();
    }
}

/* The last products of a batch are shorter. */
Test(cuda_products, batches)
{
    struct rng r = rng_start("cuda/gemm batches");

    for (int i = 0; i < 20; i++) {
        enum dtype type = any_type(&r);
        enum gemm_axis axis = (enum gemm_axis)rng_int(&r, GEMM_NO_AXIS, GEMM_K);
        int count = (int)rng_int(&r, 1, 4);
        int64_t m = rng_int(&r, 1, 12), n = rng_int(&r, 1, 12), k = rng_int(&r, 1, 12);
        int64_t size = axis == GEMM_M ? m : axis == GEMM_N ? n : k;
        int64_t total = rng_int(&r, 1, size * count);

        start(&r);
        struct pair a = numbers(&r, type, m * k * count, 1),
                    b = numbers(&r, type, k * n * count, 1);
        struct pair c = floats(&r, m * n * count, 1);
        struct pair bias = floats(&r, n * count, 1);
        BOTH(gemm, gemm, false, true, m, n, k, AT(a), AT(b), AT(c), k, k, n, 1, 0, type,
             i % 2 ? AT(bias) : NULL, NULL, { count, m * k, k * n, m * n, n, axis, total, false },
             DTYPE_F32, GEMM_EPILOGUE_NONE, .gelu_input = NULL);
        assert_similar(c, DTYPE_F32, 10, 1e-6, "products");
        end();
    }
}

/* cuBLASLt adds the bias where C and the bias are aligned as it wants them, a kernel elsewhere. */
Test(cuda_products, biases)
{
    struct rng r = rng_start("cuda/gemm bias");

    for (int i = 0; i < 30; i++) {
        enum dtype type = any_type(&r);
        bool trans_a = rng_int(&r, 0, 1), trans_b = rng_int(&r, 0, 1), aligned = rng_int(&r, 0, 2);
        int64_t m = rng_int(&r, 1, 40), n = rng_int(&r, 1, 40), k = rng_int(&r, 0, 40);
        int64_t lda, ldb, ldc, at = aligned ? 4 * rng_int(&r, 0, 2) : 1 + rng_int(&r, 0, 2);
        float beta = (float)rng_int(&r, 0, 2) / 2;

        start(&r);
        int64_t before = fake ? fake->epilogue_products() : 0;
        struct pair a = matrix(&r, type, trans_a, m, k, &lda);
        struct pair b = matrix(&r, type, trans_b, k, n, &ldb);
        struct pair c = matrix(&r, DTYPE_F32, false, m, n, &ldc), bias = floats(&r, n + at, 1);
        BOTH(gemm, gemm, trans_a, trans_b, m, n, k, AT(a), AT(b), AT(c), lda > 0 ? lda : 1,
             ldb > 0 ? ldb : 1, ldc, 1, beta, type, (float *)AT(bias) + at, NULL, { 0 }, DTYPE_F32,
             GEMM_EPILOGUE_NONE, .gelu_input = NULL);
        if (fake)
            cr_assert_eq(fake->epilogue_products() - before, aligned && k > 0);
        assert_similar(c, DTYPE_F32, 10, 1e-6, "a product with a bias");
        end();
    }
}

/* Products that are one call, of parts whose columns of C are side by side, or that are apart. */
struct parts {
    struct gemm g; /* without pointers */
    int64_t at_c, at_bias;
    bool has_bias, is_rounded, is_missing; /* is_missing: cuBLAS has no batches */
};

static struct parts any_parts(struct rng *r)
{
    const bool side_by_side = rng_int(r, 0, 1), is_whole = rng_int(r, 0, 3);
    const int64_t n = is_whole ? 8 * rng_int(r, 1, 3) : rng_int(r, 1, 24);
    struct parts p = { .g = { .trans_a = rng_int(r, 0, 1),
                              .trans_b = rng_int(r, 0, 1),
                              .m = rng_int(r, 1, 20),
                              .n = n,
                              .k = rng_int(r, 0, 20),
                              .alpha = 1,
                              .beta = (float)rng_int(r, 0, 2) / 2,
                              .type = any_type(r) },
                       .has_bias = rng_int(r, 0, 2),
                       .is_rounded = rng_int(r, 0, 1),
                       .is_missing = rng_int(r, 0, 5) == 0,
                       .at_c = rng_int(r, 0, 3) ? 0 : 1,
                       .at_bias = rng_int(r, 0, 3) ? 0 : 1 };
    struct gemm_batch *b = &p.g.batch;

    *b = (struct gemm_batch){ .count = (int)rng_int(r, 2, 4), .together = true };
    p.g.lda = (p.g.trans_a ? p.g.m : p.g.k) + 1;
    p.g.ldb = (p.g.trans_b ? p.g.k : p.g.n) + 1;
    p.g.ldc = side_by_side ? n * b->count : n;
    b->step_a = rng_int(r, 0, 1) ? 0 : 32 * 32;
    b->step_b = rng_int(r, 0, 3) ? 32 * 32 : 0;
    b->step_c = side_by_side ? n : p.g.m * n;
    b->step_bias = n;
    return p;
}

/* Whether all addresses of a matrix that begins `at` elements after a multiple of 256 bytes are
 * multiples of 16 bytes. */
static bool by_16(int64_t at, int64_t step, enum dtype type)
{
    return at * dtype_bytes(type) % 16 == 0 && step * dtype_bytes(type) % 16 == 0;
}

static void check_parts(struct rng *r, struct parts p, bool is_kept)
{
    const struct gemm_batch *b = &p.g.batch;
    const int64_t n_c = p.g.m * p.g.n * b->count + p.at_c, n_bias = p.g.n * b->count + p.at_bias;
    const enum dtype c_type = is_kept ? DTYPE_BF16 : DTYPE_F32;
    /* An f32 bias that is not given in bf16 is rounded to aligned scratch. */
    const bool is_aligned = by_16(p.at_c, b->step_c, c_type) && by_16(0, b->step_bias, c_type) &&
                            (is_kept || p.at_bias == 0);
    const bool is_one = p.g.k > 0 && !p.is_missing && (!p.has_bias || is_aligned);
    int64_t before = fake ? fake->batched_calls() : 0;
    struct pair a = numbers(r, p.g.type, b->count * 32 * 32, 1);
    struct pair bb = numbers(r, p.g.type, b->count * 32 * 32, 1);
    struct pair c = is_kept ? numbers_kept(r, n_c, 1) : floats(r, n_c, 1);
    float *rounded = random_floats(r, n_bias, 1);
    free(stored_as(DTYPE_BF16, rounded, n_bias));
    struct pair bias = pair_of(rounded, n_bias * (int64_t)sizeof *rounded);
    struct pair in_bf16 = kept(rounded, n_bias);

    for (int side = 0; side < 2; side++) {
        struct gemm g = p.g;

        on_gpu = side;
        g.a = AT(a), g.b = AT(bb);
        g.c = is_kept ? AT_KEPT(c, p.at_c) : (char *)((float *)AT(c) + p.at_c);
        g.c_type = is_kept && side ? DTYPE_BF16 : DTYPE_F32;
        if (p.has_bias)
            g.bias = (float *)AT(bias) + p.at_bias;
        if (p.has_bias && p.is_rounded && side)
            g.rounded_bias = (uint16_t *)in_bf16.gpu + p.at_bias;
        if (fake)
            fake->batched_missing(p.is_missing);
        (side ? cuda->kernels : &kernels_cpu)->gemm(side ? queue : kernels_on(), &g);
    }
    if (fake)
        cr_assert_eq(fake->batched_calls() - before, is_one, "%d products", b->count);
    if (is_kept)
        assert_similar_kept(c, 10, 0x1p-8, "products of parts in bf16");
    else
        assert_similar(c, DTYPE_F32, 10, 1e-6, "products of parts");
    free(rounded);
}

/* One by one, where cuBLAS or cuBLASLt has no batches, or a matrix or a bias is not aligned. */
Test(cuda_products, parts_are_one_call)
{
    struct rng r = rng_start("cuda/gemm parts");

    for (int i = 0; i < 60; i++) {
        struct parts p = any_parts(&r);

        start(&r);
        check_parts(&r, p, p.g.type == DTYPE_BF16 && i % 2);
        end();
    }
}

/* A bf16 C, whose old content counts, with and without a bias. cuBLASLt rounds the bias, which is a
 * bf16 number here. NVIDIA's may have no kernel for some of these shapes; then C is rounded before
 * the bias is added, too. */
Test(cuda_products, products_that_are_kept_in_bf16)
{
    struct rng r = rng_start("cuda/gemm kept");

    for (int i = 0; i < 30; i++) {
        bool trans_a = rng_int(&r, 0, 1), trans_b = rng_int(&r, 0, 1), has_bias = rng_int(&r, 0, 2);
        int64_t m = rng_int(&r, 1, 40), n = rng_int(&r, 1, 40), k = rng_int(&r, 0, 40);
        int64_t lda, ldb, ldc = n + rng_int(&r, 0, 3), at = rng_int(&r, 0, 2) ? 0 : 1;
        float beta = (float)rng_int(&r, 0, 2) / 2;

        start(&r);
        int64_t before = fake ? fake->epilogue_products() : 0;
        struct pair a = matrix(&r, DTYPE_BF16, trans_a, m, k, &lda);
        struct pair b = matrix(&r, DTYPE_BF16, trans_b, k, n, &ldb);
        struct pair c = numbers_kept(&r, m * ldc + at, 1);
        float *rounded = random_floats(&r, n, 1);
        free(stored_as(DTYPE_BF16, rounded, n));
        struct pair bias = pair_of(rounded, n * (int64_t)sizeof *rounded),
                    in_bf16 = kept(rounded, n);
        bool is_rounded = has_bias && rng_int(&r, 0, 1); /* then bf16 numbers suffice */
        struct pair unused = floats(&r, n, 1);
        if (fake && is_rounded && at == 0 && k > 0)
            bias.gpu = unused.gpu;
        BOTH(gemm, gemm, trans_a, trans_b, m, n, k, AT(a), AT(b), AT_KEPT(c, at), lda > 0 ? lda : 1,
             ldb > 0 ? ldb : 1, ldc, 1, beta, DTYPE_BF16, has_bias ? AT(bias) : NULL,
             on_gpu && is_rounded ? in_bf16.gpu : NULL, { 0 }, KEPT, GEMM_EPILOGUE_NONE,
             .gelu_input = NULL);
        if (fake)
            cr_assert_eq(fake->epilogue_products() - before, has_bias && at == 0 && k > 0);
        assert_similar_kept(c, 10, at || !fake ? 0x1p-8 : 1e-6, "a product in bf16");
        free(rounded);
        end();
    }
}

/* Of cublasLtEpilogue_t. */
enum { GELU_AUX = 160, GELU_AUX_BIAS = 164, DGELU = 192 };

/* GELU and its gradient in cuBLASLt's epilogue, or after it where rows of its input are not a
 * multiple of 16 bytes, or where cuBLASLt has no algorithm for the epilogue: then what GELU reads
 * is rounded before. The CPU does it step by step. NVIDIA does not say for which GPUs it has an
 * algorithm, nor how exact its tanh is: the processor's instruction (PTX: tanh.approx.f32) has 11
 * bits. So a GPU may differ by as much as the rounding does. */
Test(cuda_products, gelu_and_its_gradient)
{
    struct rng r = rng_start("cuda/gemm gelu");

    for (int i = 0; i < 30; i++) {
        bool is_back = rng_int(&r, 0, 1), has_bias = !is_back && rng_int(&r, 0, 2);
        bool is_whole = rng_int(&r, 0, 2), is_missing = rng_int(&r, 0, 3) == 0;
        int64_t m = rng_int(&r, 1, 40), k = rng_int(&r, 0, 40);
        int64_t n = is_whole ? 8 * rng_int(&r, 1, 5) : 8 * rng_int(&r, 0, 4) + rng_int(&r, 1, 7);

        start(&r);
        int64_t before = fake ? fake->epilogue_products() : 0;
        struct pair a = numbers(&r, DTYPE_BF16, m * k, 1), b = numbers(&r, DTYPE_BF16, k * n, 1);
        struct pair c = numbers_kept(&r, m * n, 1), u = numbers_kept(&r, m * n, 2);
        float *rounded = random_floats(&r, n, 1);
        free(stored_as(DTYPE_BF16, rounded, n));
        struct pair bias = pair_of(rounded, n * (int64_t)sizeof *rounded);
        struct gemm g = { .m = m,
                          .n = n,
                          .k = k,
                          .a = a.cpu,
                          .b = b.cpu,
                          .c = is_back ? c.cpu : u.cpu,
                          .lda = k > 0 ? k : 1,
                          .ldb = n,
                          .ldc = n,
                          .alpha = 1,
                          .type = DTYPE_BF16,
                          .bias = has_bias ? bias.cpu : NULL };
        kernels_cpu.gemm(kernels_on(), &g);
        if (is_back)
            RUN(activation_backward, activation_backward, c.cpu, DTYPE_F32, c.cpu, u.cpu, m * n,
                DTYPE_F32, ACTIVATION_GELU_TANH);
        else
            RUN(activation_forward, activation_forward, c.cpu, DTYPE_F32, u.cpu, m * n, DTYPE_F32,
                ACTIVATION_GELU_TANH);
        g.a = a.gpu, g.b = b.gpu, g.c = c.gpu, g.gelu_input = u.gpu, g.c_type = DTYPE_BF16;
        g.bias = has_bias ? bias.gpu : NULL;
        g.epilogue = is_back ? GEMM_EPILOGUE_DGELU : GEMM_EPILOGUE_GELU;
        if (fake && is_missing)
            fake->epilogue_missing(is_back ? DGELU : has_bias ? GELU_AUX_BIAS : GELU_AUX);
        cuda->kernels->gemm(queue, &g);
        if (fake)
            fake->epilogue_missing(0);
        if (fake && is_whole) /* the bias alone has an algorithm */
            cr_assert_eq(fake->epilogue_products() - before, k > 0 && (!is_missing || has_bias));
        bool is_exact = fake && is_whole && !is_missing;
        assert_similar_kept(u, 10, is_exact ? 1e-6 : 0x1p-8, "the input of GELU");
        assert_similar_kept(c, 10, is_exact ? 1e-6 : 0x1p-8, "GELU of a product");
        free(rounded);
        end();
    }
}

Test(cuda_products, f32_products_in_bf16_are_refused)
{
    struct rng r = rng_start("cuda/gemm kept, refused");
    struct tp_err err = { 0 };

    start(&r);
    cr_assert(cuda->kernels->keeps_bf16 && !kernels_cpu.keeps_bf16);
    cuda->kernels->gemm(queue, &(struct gemm){ .m = 1, .n = 1, .k = 1, .c_type = DTYPE_BF16 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "a product of f32 matrices is not bf16"), "%s", err.msg);
}

/* Whether the failure of a GPU is that of the device, with a sentence that names the GPU. */
static bool failing_product_names_the_gpu(uint64_t seed)
{
    struct rng r = rng_start("cuda/gemm, a failure");
    struct tp_err err = { 0 };
    float x[64] = { 0 };

    start(&r);
    fake->handles_may_stay();
    fake->seed(seed);
    struct pair a = pair_of(x, sizeof x), c = pair_of(x, sizeof x);
    struct gemm g = { .m = 8,
                      .n = 8,
                      .k = 8,
                      .a = a.gpu,
                      .b = a.gpu,
                      .c = c.gpu,
                      .lda = 8,
                      .ldb = 8,
                      .ldc = 8,
                      .alpha = 1 };
    cuda->kernels->gemm(queue, &g);
    fake->fail(719, 0);
    for (int i = 0; i < 200; i++)
        cuda->kernels->gemm(queue, &g);
    return staging_finish(&staging, &err) == TP_E_GPU && strstr(err.msg, "GPU 0: ") &&
           strstr(err.msg, "unspecified launch failure");
}

/* cuBLAS says only that it has failed, and is the first to say so if the choice of the GPU does not
 * tell the failure, which is by chance. A process has the failure to its end. */
Test(cuda_products, a_gpu_that_fails_is_named)
{
    int status = 0;

    load_cuda();
    for (uint64_t seed = 1; fake && seed <= 24; seed++) {
        pid_t child = fork();

        if (child == 0)
            _exit(failing_product_names_the_gpu(seed) ? 0 : 1);
        cr_assert(child > 0 && waitpid(child, &status, 0) == child);
        cr_assert_eq(status, 0, "seed %d", (int)seed);
    }
}

Test(cuda_products, a_handle_without_memory_is_no_failure_of_the_gpu)
{
    struct rng r = rng_start("cuda/gemm, no memory");
    struct tp_err err = { 0 };

    start(&r);
    if (!fake)
        return;
    struct pair a = floats(&r, 64, 1), c = floats(&r, 64, 1);
    fake->handles_may_stay();
    fake->memory(600);
    cuda->kernels->gemm(queue, &(struct gemm){ .m = 8,
                                               .n = 8,
                                               .k = 8,
                                               .a = a.gpu,
                                               .b = a.gpu,
                                               .c = c.gpu,
                                               .lda = 8,
                                               .ldb = 8,
                                               .ldc = 8,
                                               .alpha = 1 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_GPU_FULL);
    cr_assert(strstr(err.msg, "GPU 0 is out of memory: a new handle of cuBLAS failed; "), "%s",
              err.msg);
}

/* Gradients that are merged are sums in f32. */
Test(cuda_products, gradients_of_attention_that_are_merged_are_not_bf16)
{
    struct rng r = rng_start("cuda/attention kept, refused");
    struct attention_backward g = { .of.type = DTYPE_BF16, .of.merge = true, .type = DTYPE_BF16 };
    struct tp_err err = { 0 };

    start(&r);
    cuda->kernels->attention_backward(queue, &g);
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "gradients of attention in bf16, merged, are not bf16"), "%s",
              err.msg);
}

/* One attention and its arrays. */
struct setup {
    struct attention a; /* without pointers */
    bool is_kept;       /* gradients are bf16 on the GPU */
    struct pair q, k, v, out, sum, lse, d_out, dq, dk, dv;
};

static struct attention at(const struct setup *s)
{
    struct attention a = s->a;

    a.q = AT(s->q);
    a.k = AT(s->k);
    a.v = AT(s->v);
    a.out = AT(s->out);
    a.lse = AT(s->lse);
    a.sum = s->a.sum ? AT(s->sum) : NULL;
    return a;
}

static void setup_make(struct setup *s, struct rng *r)
{
    const struct attention *a = &s->a;
    int64_t rows = a->batch * a->q_step, keys = a->batch * a->k_step;

    s->q = numbers(r, a->type, rows * a->ldq, 1);
    s->k = numbers(r, a->type, keys * a->ldk, 1);
    s->v = numbers(r, a->type, keys * a->ldv, 1);
    s->out = numbers(r, a->type, rows * a->ldo, 1);
    s->sum = floats(r, rows * a->ldo, 1);
    s->lse = floats(r, a->batch * a->heads * a->q_step, 1);
    s->d_out = numbers(r, a->type, rows * a->ldo, 1);
    s->is_kept = a->type == DTYPE_BF16 && !a->merge && rng_int(r, 0, 1);
    s->dq = s->is_kept ? numbers_kept(r, rows * a->ldq, 1) : floats(r, rows * a->ldq, 1);
    s->dk = s->is_kept ? numbers_kept(r, keys * a->ldk, 1) : floats(r, keys * a->ldk, 1);
    s->dv = s->is_kept ? numbers_kept(r, keys * a->ldv, 1) : floats(r, keys * a->ldv, 1);
}

static struct setup any_attention(struct rng *r, int64_t seq_max)
{
    int64_t kv = rng_int(r, 1, 2), heads = kv * rng_int(r, 1, 2), dim = rng_int(r, 1, 40);
    struct attention a = { .batch = rng_int(r, 1, 2),
                           .seq = rng_int(r, 1, seq_max),
                           .heads = heads,
                           .kv_heads = kv,
                           .head_dim = dim,
                           .type = any_type(r),
                           .ldq = heads * dim + rng_int(r, 0, 3),
                           .ldk = kv * dim + rng_int(r, 0, 3),
                           .ldv = kv * dim + rng_int(r, 0, 3),
                           .ldo = heads * dim + rng_int(r, 0, 3),
                           .scale = 1 / sqrtf((float)dim) };
    struct setup s = { .a = a };

    s.a.keys = rng_int(r, 0, 1) ? rng_int(r, 1, seq_max) : 0;
    s.a.q_step = s.a.seq + rng_int(r, 0, 2);
    s.a.k_step = (s.a.keys ? s.a.keys : s.a.seq) + rng_int(r, 0, 2);
    s.a.merge = rng_int(r, 0, 1);
    if (s.a.keys && rng_int(r, 0, 1)) /* each row sees a key */
        s.a.window = rng_int(r, s.a.seq > s.a.keys ? s.a.seq - s.a.keys + 1 : 1, seq_max);
    else if (!s.a.keys && !s.a.merge && rng_int(r, 0, 1))
        s.a.window = rng_int(r, 1, seq_max);
    s.a.cap = rng_int(r, 0, 1) ? (float)rng_int(r, 1, 40) / 8 : 0;
    if (s.a.type == DTYPE_BF16 ? s.a.merge || rng_int(r, 0, 1) : rng_int(r, 0, 3) == 0)
        s.a.sum = (float[]){ 0 }; /* only whether it is NULL counts */
    return s;
}

/* The same in bf16, with rows that tensor cores can load: heads of a multiple of 8 columns. */
static struct setup any_aligned_attention(struct rng *r, int64_t seq_max)
{
    struct setup s = any_attention(r, seq_max);
    static float not_null;
    struct attention *a = &s.a;

    if (a->type == DTYPE_F32 && a->merge)
        a->sum = &not_null; /* bf16 is merged in f32 */
    a->type = DTYPE_BF16;
    a->head_dim = 8 * rng_int(r, 1, rng_int(r, 0, 2) ? 4 : 32);
    a->scale = 1 / sqrtf((float)a->head_dim);
    a->ldq = a->heads * a->head_dim + 8 * rng_int(r, 0, 1);
    a->ldk = a->kv_heads * a->head_dim + 8 * rng_int(r, 0, 1);
    a->ldv = a->kv_heads * a->head_dim + 8 * rng_int(r, 0, 1);
    a->ldo = a->heads * a->head_dim + 8 * rng_int(r, 0, 1);
    return s;
}

/* Heads of more than 128 columns, or scores with a cap: the sums are computed in passes. */
static struct setup any_wide_attention(struct rng *r, int64_t seq_max)
{
    struct setup s = any_aligned_attention(r, seq_max);
    struct attention *a = &s.a;

    a->head_dim = 8 * rng_int(r, 1, 32);
    a->cap = a->head_dim <= 128 || rng_int(r, 0, 1) ? (float)rng_int(r, 1, 40) / 8 : 0;
    a->scale = 1 / sqrtf((float)a->head_dim);
    a->ldq = a->ldo = a->heads * a->head_dim;
    a->ldk = a->ldv = a->kv_heads * a->head_dim;
    return s;
}

/* Heads of all the columns that a kernel has, and whole tiles of rows that see each other: the
 * products then test nothing. Every other attention has 64 columns, and 128. */
static struct setup any_full_attention(struct rng *r, int64_t seq_max)
{
    static int number;
    struct setup s = any_aligned_attention(r, seq_max);
    struct attention *a = &s.a;
    bool has_keys = a->keys > 0;

    a->head_dim = number++ % 2 ? 128 : 64;
    a->seq = rng_int(r, seq_max / 2, seq_max);
    a->keys = has_keys ? rng_int(r, seq_max / 2, seq_max) : 0;
    a->q_step = a->seq;
    a->k_step = has_keys ? a->keys : a->seq;
    if (a->window)
        a->window = rng_int(r, seq_max / 2 + 1, seq_max);
    a->cap = 0;
    a->scale = 1 / sqrtf((float)a->head_dim);
    a->ldq = a->ldo = a->heads * a->head_dim;
    a->ldk = a->ldv = a->kv_heads * a->head_dim;
    return s;
}

static int64_t mma_products(void)
{
    return fake ? fake->mma_products() : 0;
}

static int64_t wgmma_products(void)
{
    return fake ? fake->wgmma_products() : 0;
}

/* Whether Hopper's kernels compute it: they want whole panels of 64 columns, and know no caps. */
static bool is_of_warpgroups(const struct attention *a)
{
    return fake && fake->capability_now() == 90 && a->type == DTYPE_BF16 && a->cap == 0 &&
           (a->head_dim == 64 || a->head_dim == 128);
}

/* Which kernels have computed it, by the number of products before. */
static void assert_kernels(const struct attention *a, int64_t mma, int64_t wgmma, bool is_aligned)
{
    if (a->type == DTYPE_F32)
        cr_assert_eq(mma_products(), mma, "tensor cores have no f32");
    if (!is_of_warpgroups(a))
        cr_assert_eq(wgmma_products(), wgmma, "products of warpgroups, of other shapes");
    if (!fake || !is_aligned)
        return;
    if (is_of_warpgroups(a))
        cr_assert(wgmma_products() > wgmma && mma_products() == mma, "no products of warpgroups");
    else
        cr_assert_gt(mma_products(), mma, "bf16 did not use tensor cores");
}

static void assert_gradient(const struct setup *s, struct pair d, double tolerance,
                            const char *what)
{
    assert_similar_types(d, s->is_kept ? DTYPE_BF16 : DTYPE_F32, DTYPE_F32, 1, tolerance, what);
}

/* "out of attention ...": an element's number gives its row and column. */
static const char *of_attention(const char *what, const struct attention *a)
{
    static char text[400];

    snprintf(
        text, sizeof text,
        "%s of attention (%lld queries, %lld keys or causal, window %lld, heads %lld and %lld of "
        "%lld columns, rows of %lld, %lld and %lld)",
        what, (long long)a->seq, (long long)a->keys, (long long)a->window, (long long)a->heads,
        (long long)a->kv_heads, (long long)a->head_dim, (long long)a->ldq, (long long)a->ldk,
        (long long)a->ldo);
    return text;
}

static void attention_cases(const char *name, int n, int64_t seq_max,
                            struct setup (*any)(struct rng *r, int64_t seq_max))
{
    struct rng r = rng_start(name);

    for (int i = 0; i < n; i++) {
        struct setup s = any(&r, seq_max);
        double tolerance = s.a.type == DTYPE_F32 ? 3e-6 : 2e-2;
        int64_t mma, wgmma;

        start(&r);
        setup_make(&s, &r);
        mma = mma_products();
        wgmma = wgmma_products();
        for (int side = 0; side < 2; side++) {
            struct attention a;

            on_gpu = side;
            a = at(&s);
            (side ? cuda->kernels : &kernels_cpu)
                ->attention_forward(side ? queue : kernels_on(), &a);
        }
        assert_similar(s.out, s.a.type, 1, tolerance, of_attention("out", &s.a));
        assert_similar(s.sum, DTYPE_F32, 1, tolerance, of_attention("sum", &s.a));
        assert_similar(s.lse, DTYPE_F32, 1, tolerance, of_attention("log-sum-exp", &s.a));
        for (int side = 0; side < 2; side++) {
            struct attention_backward g;

            on_gpu = side;
            g = (struct attention_backward){ at(&s),   AT(s.d_out), AT(s.dq),
                                             AT(s.dk), AT(s.dv),    s.a.ldq,
                                             s.a.ldk,  s.a.ldv,     s.is_kept ? KEPT : DTYPE_F32 };
            (side ? cuda->kernels : &kernels_cpu)
                ->attention_backward(side ? queue : kernels_on(), &g);
        }
        assert_kernels(&s.a, mma, wgmma, any != any_attention);
        assert_gradient(&s, s.dq, tolerance, of_attention("dq", &s.a));
        assert_gradient(&s, s.dk, tolerance, of_attention("dk", &s.a));
        assert_gradient(&s, s.dv, tolerance, of_attention("dv", &s.a));
        end();
    }
}

Test(cuda_products, attention_of_short_sequences)
{
    attention_cases("cuda/attention short", 16, 12, any_attention);
}

Test(cuda_products, attention_of_long_sequences)
{
    attention_cases("cuda/attention long", 4, 80, any_attention);
}

Test(cuda_products, attention_of_aligned_short_sequences)
{
    attention_cases("cuda/attention aligned short", 10, 20, any_aligned_attention);
}

Test(cuda_products, attention_of_aligned_long_sequences)
{
    attention_cases("cuda/attention aligned long", 4, 200, any_aligned_attention);
}

Test(cuda_products, attention_of_full_tiles)
{
    load_cuda();
    attention_cases("cuda/attention full", fake ? 6 : 40, fake ? 200 : 700, any_full_attention);
}

Test(cuda_products, attention_of_full_tiles_without_warpgroups)
{
    load_cuda();
    if (fake)
        fake->capability(80);
    attention_cases("cuda/attention full 8.0", 4, 200, any_full_attention);
}

Test(cuda_products, attention_of_wide_heads_and_caps)
{
    attention_cases("cuda/attention wide", 8, 50, any_wide_attention);
}

Test(cuda_products, heads_that_are_too_wide_are_refused)
{
    struct rng r = rng_start("cuda/attention refused");
    struct tp_err err = { 0 };

    start(&r);
    cuda->kernels->attention_forward(
        queue,
        &(struct attention){ .batch = 1, .seq = 1, .heads = 1, .kv_heads = 1, .head_dim = 257 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_USAGE);
    cr_assert(strstr(err.msg, "heads have 257 columns"), "%s", err.msg);
}

Test(cuda_products, a_product_of_whole_numbers_is_refused)
{
    struct rng r = rng_start("cuda/gemm refused");
    struct tp_err err = { 0 };

    start(&r);
    cuda->kernels->gemm(queue, &(struct gemm){ .m = 1, .n = 1, .k = 1, .type = DTYPE_I64 });
    cr_assert_eq(staging_finish(&staging, &err), TP_E_INTERNAL);
    cr_assert_str_eq(err.msg, "a product of i64 matrices is not f32 or bf16");
}
