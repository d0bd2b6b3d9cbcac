/*
 * tests/bench/bench_train.c - the rate of sgemm over exactly the matrix products of one training
 * step, with one thread. Prints one number: GFLOP per CPU second. bench_train.py runs it
 * alternately with tp-train, and compares model FLOPs with it.
 */
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"
#include "core/opt.h"
#include "device/cpu/cpu.h"
#include "kernels/cpu/cpu.h"
#include "tests/bench/lib/product.h"

struct shapes {
    int dim, layers, q_width, kv_width, ffn, vocab, rows;
    struct device_queue *queue;
    float *x, *y, *z; /* operands and result; large enough for every product */
    double flops;
};

static void product(struct shapes *s, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k)
{
    const struct gemm g = product_of(trans_a, trans_b, m, n, k, s->x, s->y, s->z);

    kernels_cpu.gemm(s->queue, &g);
    s->flops += 2 * (double)m * (double)n * (double)k;
}

/* Forward, gradient of the input, gradient of the weight. */
static void linear(struct shapes *s, int64_t out, int64_t in)
{
    product(s, false, true, s->rows, out, in);
    product(s, false, false, s->rows, in, out);
    product(s, true, false, out, in, s->rows);
}

static void step(struct shapes *s)
{
    for (int i = 0; i < s->layers; i++) {
        linear(s, s->q_width + 2 * s->kv_width, s->dim);
        linear(s, s->dim, s->q_width);
        linear(s, 2 * s->ffn, s->dim);
        linear(s, s->dim, s->ffn);
    }
    linear(s, s->vocab, s->dim);
}

static float *random_floats(size_t n)
{
    float *x = malloc(n * sizeof *x);

    for (size_t i = 0; x && i < n; i++)
        x[i] = (float)((i * 2654435761u) % 1000) * 1e-3f - 0.5f;
    return x;
}

int main(int argc, char **argv)
{
    struct shapes s = { .dim = 512,
                        .layers = 8,
                        .q_width = 512,
                        .kv_width = 512,
                        .ffn = 1376,
                        .vocab = 256,
                        .rows = 1024 };
    const struct cpu_options one_thread = { .threads = 1 };
    struct device *device;
    enum opt_result result;
    struct tp_err err = { 0 };
    const struct opt opts[] = { OPT_INT(0, "dim", "N", &s.dim, "width (512)"),
                                OPT_INT(0, "layers", "N", &s.layers, "layers (8)"),
                                OPT_INT(0, "q-width", "N", &s.q_width, "of all heads (512)"),
                                OPT_INT(0, "kv-width", "N", &s.kv_width, "of KV heads (512)"),
                                OPT_INT(0, "ffn", "N", &s.ffn, "features (1376)"),
                                OPT_INT(0, "vocab", "N", &s.vocab, "rows of the head (256)"),
                                OPT_INT(0, "rows", "N", &s.rows, "tokens per step (1024)"),
                                OPT_END };
    size_t largest = 8u << 20;
    double start;

    if (opt_parse(opts, argc, argv, &result, &err) || result != OPT_GO_ON) {
        opt_help(stdout, "bench_train", opts, NULL, NULL);
        return tp_exit_code(err.status);
    }
    s.x = random_floats(largest);
    s.y = random_floats(largest);
    s.z = random_floats(largest);
    if (!s.x || !s.y || !s.z || cpu_device_open(&device, &one_thread, &err) ||
        device_queue_open(device, &s.queue, DEVICE_QUEUE_COMPUTE, &err))
        return 3;
    step(&s); /* so that code is generated and memory has pages */
    s.flops = 0;
    start = clock_cpu_seconds();
    step(&s);
    printf("%.1f\n", s.flops / (clock_cpu_seconds() - start) * 1e-9);
    device_queue_close(s.queue);
    device_close(device);
    free(s.x);
    free(s.y);
    free(s.z);
    return 0;
}
