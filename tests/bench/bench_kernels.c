/*
 * tests/bench/bench_kernels.c - the rates of the kernels, in the shapes of a trainer.
 *
 * Prints GFLOP/s of every product; GB/s of every elementwise kernel (each array counts once for
 * each time it is read or written); GFLOP/s of attention, for the half of the square that a causal
 * mask keeps; and the sum over one training step without communication. Wall time, the best of
 * several runs: use a quiet machine. With one thread it is CPU time.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/opt.h"
#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"
#include "tests/bench/lib/product.h"

/* A model and batch, and arrays large enough for every kernel. */
struct bench {
    int dim, layers, heads, kv_heads, ffn, vocab, batch, seq, threads, runs;
    bool attention_only;
    enum dtype type;
    struct device_queue *queue;
    double numbers[2]; /* a sum of squares; the factor of clipping */
    float *x, *y, *z, *w;
    int32_t *ids;
    double step_seconds, step_flops; /* summed over the kernels of one training step */
};

typedef void (*work_fn)(struct bench *b, const void *arg);

static double seconds(const struct bench *b)
{
    return b->threads == 1 ? clock_cpu_seconds() : clock_seconds();
}

/* Best time of one call, in seconds; a sample is at least 2 ms. */
static double best_time(struct bench *b, work_fn fn, const void *arg)
{
    double best = 1e9, start = seconds(b);
    int times;

    fn(b, arg);
    times = 1 + (int)(2e-3 / (seconds(b) - start + 1e-9));
    for (int i = 0; i < b->runs; i++) {
        double t = seconds(b);
        for (int j = 0; j < times; j++)
            fn(b, arg);
        t = (seconds(b) - t) / times;
        best = t < best ? t : best;
    }
    return best;
}

static void must(tp_status st, const struct tp_err *err)
{
    if (st != TP_OK) {
        fprintf(stderr, "bench_kernels: %s\n", err->msg);
        exit(tp_exit_code(st));
    }
}

/* An operation with the argument (struct tag){ ... }. */
#define RUN(op, tag, ...) kernels_cpu.op(b->queue, &(struct tag){ __VA_ARGS__ })

static void run_gemm(struct bench *b, const void *arg)
{
    kernels_cpu.gemm(b->queue, arg);
}

/* One product in one type, which a step does `times` times. */
static void product(struct bench *b, const char *what, bool trans_a, bool trans_b, int64_t m,
                    int64_t n, int64_t k, int times)
{
    struct gemm g = product_of(trans_a, trans_b, m, n, k, b->x, b->y, b->z);
    double flops = 2.0 * (double)m * (double)n * (double)k, t;

    g.beta = trans_a ? 1 : 0;
    g.type = b->type;
    t = best_time(b, run_gemm, &g);

    printf("%-22s %c%c %5lld x %5lld x %5lld %8.3f ms %8.1f GFLOP/s\n", what, trans_a ? 'T' : 'N',
           trans_b ? 'T' : 'N', (long long)m, (long long)n, (long long)k, t * 1e3,
           flops / t * 1e-9);
    b->step_seconds += t * times;
    b->step_flops += flops * times;
}

/* A linear layer: y = x W^T, dx = dy W, dW += dy^T x. */
static void linear(struct bench *b, const char *what, int64_t in, int64_t out, int times)
{
    int64_t tokens = (int64_t)b->batch * b->seq;
    char name[64];

    snprintf(name, sizeof name, "%s forward", what);
    product(b, name, false, true, tokens, out, in, times);
    snprintf(name, sizeof name, "%s to input", what);
    product(b, name, false, false, tokens, in, out, times);
    snprintf(name, sizeof name, "%s to weight", what);
    product(b, name, true, false, out, in, tokens, times);
}

static void products(struct bench *b)
{
    int head_dim = b->dim / b->heads;

    printf("products, %s\n", dtype_name(b->type));
    linear(b, "qkv", b->dim, (b->heads + 2 * b->kv_heads) * head_dim, b->layers);
    linear(b, "attention out", b->dim, b->dim, b->layers);
    linear(b, "gate and up", b->dim, 2 * b->ffn, b->layers);
    linear(b, "down", b->ffn, b->dim, b->layers);
    linear(b, "head", b->dim, b->vocab, 1);
}

static void run_attention(struct bench *b, const void *arg)
{
    kernels_cpu.attention_forward(b->queue, arg);
}

static void run_attention_backward(struct bench *b, const void *arg)
{
    const struct attention *a = arg;
    int64_t ld = a->ldq, kv = a->kv_heads * a->head_dim;

    RUN(attention_backward, attention_backward, *a, b->y, b->z, b->z + b->dim, b->z + b->dim + kv,
        ld, ld, ld, DTYPE_F32);
}

static void attention(struct bench *b)
{
    int64_t hd = b->dim / b->heads, kv = b->kv_heads * hd, ld = b->dim + 2 * kv;
    int64_t rows = (int64_t)b->batch * b->seq, bytes = dtype_bytes(b->type);
    struct attention a = { .batch = b->batch,
                           .seq = b->seq,
                           .heads = b->heads,
                           .kv_heads = b->kv_heads,
                           .head_dim = hd,
                           .type = b->type,
                           .q = b->x,
                           .k = (char *)b->x + b->dim * bytes,
                           .v = (char *)b->x + (b->dim + kv) * bytes,
                           .ldq = ld,
                           .ldk = ld,
                           .ldv = ld,
                           .ldo = b->dim,
                           .scale = 0.1f };
    double flops = 2.0 * (double)rows * b->seq * b->dim, t;

    a.out = b->w;
    a.lse = malloc((size_t)(rows * b->heads) * sizeof(float));
    if (!a.lse)
        exit(3);
    t = best_time(b, run_attention, &a);
    printf("%-22s %s %26.3f ms %8.1f GFLOP/s\n", "attention forward", dtype_name(b->type), t * 1e3,
           flops / t * 1e-9);
    b->step_seconds += t * b->layers;
    t = best_time(b, run_attention_backward, &a);
    printf("%-22s %s %26.3f ms %8.1f GFLOP/s\n", "attention backward", dtype_name(b->type), t * 1e3,
           2.5 * flops / t * 1e-9);
    b->step_seconds += t * b->layers;
    /* PaLM's count: the whole square, 2 T d per token, twice forward and four times backward */
    b->step_flops += 6.0 * flops * b->layers;
    free(a.lse);
}

/* One elementwise kernel: how to call it, the bytes that it moves, and its calls per step. */
struct elementwise {
    const char *name;
    work_fn fn;
    double bytes;
    double times;
};

static void run_norm(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(rms_norm_forward, rms_norm_forward, b->z, b->type, b->w, b->x, b->y, b->w + 4096 * 16,
        (int64_t)b->batch * b->seq, b->dim, 1e-5f, .block = NULL);
}

static void run_norm_backward(struct bench *b, const void *arg)
{
    int64_t n = (int64_t)b->batch * b->seq;

    (void)arg;
    RUN(rms_norm_backward, rms_norm_backward, b->z, b->w + n + b->dim, b->y, b->x, b->w, b->w + n,
        n, b->dim, .blocks = 0);
}

static void run_rope(struct bench *b, const void *arg)
{
    int64_t head_dim = b->dim / b->heads, heads = b->heads + b->kv_heads;

    (void)arg;
    RUN(rope_apply, rope_apply, b->x, b->w, (int64_t)b->batch * b->seq, b->seq, heads, head_dim,
        head_dim, (heads + b->kv_heads) * head_dim, 1, DTYPE_F32);
}

static void run_swiglu(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(gated_forward, gated_forward, GATED_SWIGLU, b->type, b->z, b->x, b->x + b->ffn, 2 * b->ffn,
        (int64_t)b->batch * b->seq, b->ffn, NULL, DTYPE_F32);
}

static void run_swiglu_backward(struct bench *b, const void *arg)
{
    char *out = (char *)b->y;

    (void)arg;
    RUN(gated_backward, gated_backward, GATED_SWIGLU, b->type, out,
        out + b->ffn * dtype_bytes(b->type), b->z, b->x, b->x + b->ffn, 2 * b->ffn,
        (int64_t)b->batch * b->seq, b->ffn, NULL, DTYPE_F32);
}

static void run_embedding(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(embedding_forward, embedding_forward, b->z, b->x, b->type, b->ids,
        (int64_t)b->batch * b->seq, 0, b->vocab, b->dim);
}

static void run_embedding_backward(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(embedding_backward, embedding_backward, b->z, b->x, b->ids, (int64_t)b->batch * b->seq, 0,
        b->vocab, b->dim);
}

static void run_loss(struct bench *b, const void *arg)
{
    int64_t n = (int64_t)b->batch * b->seq;

    (void)arg;
    RUN(loss_max, loss_max, b->w, b->w + n, b->w + 2 * n, b->z, DTYPE_F32, n, b->vocab, false);
    RUN(loss_sum_exp, loss_sum_exp, b->w + n, b->w + 2 * n, b->z, DTYPE_F32, b->w, b->ids, 0, n,
        b->vocab, 0.0f);
    RUN(loss_backward, loss_backward, b->y, b->type, b->z, DTYPE_F32, b->w + n, b->ids, 0, n,
        b->vocab, 1.0f, 0.0f, b->w);
}

static int64_t layer_parameters(const struct bench *b)
{
    int64_t dim = b->dim, kv = dim / b->heads * b->kv_heads;

    return 2 * dim * dim + 2 * dim * kv + 3 * dim * b->ffn;
}

static void run_adamw(struct bench *b, const void *arg)
{
    const struct adamw_rates rates = { 1e-2f, 4.5f, 0.9999f };
    const struct adamw_options o = { 0.9, 0.95, 1e-8 };
    int64_t n = layer_parameters(b);

    (void)arg;
    b->numbers[1] = 0.5;
    const struct adamw_tensor tensor = {
        b->x, b->z, b->w, b->y, b->type == DTYPE_BF16 ? (uint16_t *)(b->w + n) : NULL, n, true
    };

    RUN(adamw_step, adamw_step, &tensor, 1, &b->numbers[1], &rates, o);
}

static void run_squares(struct bench *b, const void *arg)
{
    (void)arg;
    const struct grad_norm_tensor tensor = { b->x, layer_parameters(b) };

    RUN(grad_norm_squares, grad_norm_squares, &b->numbers[0], &tensor, 1);
}

static void run_cast(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(cast, cast, b->z, DTYPE_BF16, b->x, DTYPE_F32, layer_parameters(b));
}

static void run_cast_f16(struct bench *b, const void *arg)
{
    (void)arg;
    RUN(cast, cast, b->z, DTYPE_F16, b->x, DTYPE_F32, layer_parameters(b));
}

/* Half of the columns of gate and up, as on one rank of tp2. */
static void run_copy(struct bench *b, const void *arg)
{
    const int64_t shape[2] = { 2 * b->ffn, b->dim };
    struct box whole = box_whole(2, shape), half = whole;

    (void)arg;
    half.len[1] = b->dim / 2;
    RUN(copy_box, copy_box, b->z, b->x, half, whole, half, 4);
}

static void elementwise(struct bench *b)
{
    double n = (double)b->batch * b->seq, dim = b->dim, ffn = b->ffn,
           params = (double)layer_parameters(b);
    double e = dtype_bytes(b->type), d = dim / b->heads * (b->heads + b->kv_heads), v = b->vocab;
    const struct elementwise all[] = {
        { "norm forward", run_norm, n * dim * (12 + e), 2 * b->layers + 1 },
        { "norm backward", run_norm_backward, n * dim * 16, 2 * b->layers + 1 },
        { "rope", run_rope, n * d * 8, 2 * b->layers },
        { "swiglu forward", run_swiglu, n * ffn * (8 + e), b->layers },
        { "swiglu backward", run_swiglu_backward, n * ffn * (12 + 2 * e), b->layers },
        { "embedding forward", run_embedding, n * dim * (4 + e), 1 },
        { "embedding backward", run_embedding_backward, n * dim * 12, 1 },
        { "loss, all steps", run_loss, n * v * (4 + 8 + 4 + e), 1 },
        { "adamw", run_adamw, params * (b->type == DTYPE_BF16 ? 30 : 28), b->layers },
        { "sum of squares", run_squares, params * 4, b->layers },
        { "cast f32 to bf16", run_cast, params * 6, 0 },
        { "cast f32 to f16", run_cast_f16, params * 6, 0 },
        { "copy half columns", run_copy, ffn * dim * 8, 0 },
    };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        double t = best_time(b, all[i].fn, NULL);
        printf("%-52s %8.3f ms %8.1f GB/s\n", all[i].name, t * 1e3, all[i].bytes / t * 1e-9);
        b->step_seconds += t * all[i].times;
    }
}

static void fill(struct bench *b)
{
    int64_t tokens = (int64_t)b->batch * b->seq;
    int64_t widest = 2 * b->ffn > 3 * b->dim ? 2 * b->ffn : 3 * b->dim;
    int64_t n = layer_parameters(b) * 2 + tokens * (widest + b->vocab) + (1 << 20);
    float **arrays[] = { &b->x, &b->y, &b->z, &b->w };

    for (int i = 0; i < 4; i++) {
        float *p = aligned_alloc(64, (size_t)(n * 4 + 63) / 64 * 64);
        if (!p)
            exit(3);
        for (int64_t j = 0; j < n; j++)
            p[j] = (float)((j * 7919 + i) % 2003) / 2003.0f + 0.01f;
        *arrays[i] = p;
    }
    b->ids = malloc((size_t)tokens * sizeof *b->ids);
    if (!b->ids)
        exit(3);
    for (int64_t i = 0; i < tokens; i++)
        b->ids[i] = (int32_t)(i * 31 % b->vocab);
}

static void release(struct bench *b)
{
    free(b->x);
    free(b->y);
    free(b->z);
    free(b->w);
    free(b->ids);
}

static void bench_type(struct bench *b, enum dtype type, double peak)
{
    b->type = type;
    b->step_seconds = b->step_flops = 0;
    fill(b);
    if (!b->attention_only) {
        products(b);
        printf("of which a step: %.3f s at %.1f GFLOP/s\n", b->step_seconds,
               b->step_flops / b->step_seconds * 1e-9);
    }
    attention(b);
    if (b->attention_only) {
        release(b);
        return;
    }
    elementwise(b);
    printf("a step: %.3f s, %.1f GFLOP/s", b->step_seconds, b->step_flops / b->step_seconds * 1e-9);
    if (peak > 0)
        printf(", %.1f %% of sgemm", b->step_flops / b->step_seconds / peak * 100);
    printf("\n\n");
    release(b);
}

/* FLOP/s of a product of a size that suits the caches: the limit of this processor. */
static double sgemm_peak(struct bench *b)
{
    struct gemm g = { .m = 1024,
                      .n = 1024,
                      .k = 1024,
                      .lda = 1024,
                      .ldb = 1024,
                      .ldc = 1024,
                      .alpha = 1,
                      .type = DTYPE_F32 };
    double t;

    fill(b);
    g.a = b->x;
    g.b = b->y;
    g.c = b->z;
    t = best_time(b, run_gemm, &g);
    release(b);
    return 2.0 * 1024 * 1024 * 1024 / t;
}

int main(int argc, char **argv)
{
    struct bench b = { .dim = 512,
                       .layers = 8,
                       .heads = 8,
                       .kv_heads = 8,
                       .ffn = 1376,
                       .vocab = 256,
                       .batch = 4,
                       .seq = 256,
                       .threads = 1,
                       .runs = 15 };
    const struct opt opts[] = {
        OPT_INT(0, "dim", "N", &b.dim, "width (512)"),
        OPT_INT(0, "layers", "N", &b.layers, "layers of the step (8)"),
        OPT_INT(0, "heads", "N", &b.heads, "query heads (8)"),
        OPT_INT(0, "kv-heads", "N", &b.kv_heads, "key and value heads (8)"),
        OPT_INT(0, "ffn", "N", &b.ffn, "width of the feed-forward part (1376)"),
        OPT_INT(0, "vocab", "N", &b.vocab, "vocabulary (256)"),
        OPT_INT(0, "batch", "N", &b.batch, "sequences (4)"),
        OPT_INT(0, "seq", "N", &b.seq, "tokens in each (256)"),
        OPT_INT('t', "threads", "N", &b.threads, "threads (1)"),
        OPT_FLAG(0, "attention", &b.attention_only, "attention alone"),
        OPT_INT(0, "runs", "N", &b.runs, "samples; the best one is printed (15)"),
        OPT_END
    };
    enum opt_result result = OPT_GO_ON;
    struct tp_err err = { 0 };
    struct device *device;
    double peak;

    must(opt_parse(opts, argc, argv, &result, &err), &err);
    if (result != OPT_GO_ON) {
        opt_help(stdout, "bench_kernels", opts, "Rates of the kernels in a trainer's shapes.\n",
                 "");
        return 0;
    }
    must(cpu_device_open(&device, &(struct cpu_options){ .threads = b.threads }, &err), &err);
    must(device_queue_open(device, &b.queue, DEVICE_QUEUE_COMPUTE, &err), &err);
    peak = b.attention_only ? 0 : sgemm_peak(&b);
    if (peak > 0)
        printf("sgemm 1024 x 1024 x 1024: %.1f GFLOP/s, %d thread(s)\n\n", peak * 1e-9, b.threads);
    bench_type(&b, DTYPE_F32, peak);
    bench_type(&b, DTYPE_BF16, 0);
    device_queue_close(b.queue);
    device_close(device);
    return 0;
}
