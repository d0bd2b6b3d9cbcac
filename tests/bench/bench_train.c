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

struct linear {
    int64_t out, in;
};

enum { OF_LAYER = 4, LINEARS = OF_LAYER + 1 }; /* the last one is the head */

static void linears_of(struct linear l[LINEARS], const struct shapes *s)
{
    l[0] = (struct linear){ s->q_width + 2 * (int64_t)s->kv_width, s->dim };
    l[1] = (struct linear){ s->dim, s->q_width };
    l[2] = (struct linear){ 2 * (int64_t)s->ffn, s->dim };
    l[3] = (struct linear){ s->dim, s->ffn };
    l[OF_LAYER] = (struct linear){ s->vocab, s->dim };
}

/* Elements of the largest operand or result of a step. */
static int64_t largest_of(const struct shapes *s)
{
    struct linear l[LINEARS];
    int64_t largest = 1;

    linears_of(l, s);
    for (int i = 0; i < LINEARS; i++) {
        const int64_t sizes[] = { s->rows * l[i].in, s->rows * l[i].out, l[i].in * l[i].out };

        for (int k = 0; k < 3; k++)
            largest = sizes[k] > largest ? sizes[k] : largest;
    }
    return largest;
}

static void product(struct shapes *s, bool trans_a, bool trans_b, int64_t m, int64_t n, int64_t k)
{
    const struct gemm g = product_of(trans_a, trans_b, m, n, k, s->x, s->y, s->z);

    kernels_cpu.gemm(s->queue, &g);
    s->flops += 2 * (double)m * (double)n * (double)k;
}

/* Forward, gradient of the input, gradient of the weight. */
static void linear(struct shapes *s, struct linear l)
{
    product(s, false, true, s->rows, l.out, l.in);
    product(s, false, false, s->rows, l.in, l.out);
    product(s, true, false, l.out, l.in, s->rows);
}

static void step(struct shapes *s)
{
    struct linear l[LINEARS];

    linears_of(l, s);
    for (int i = 0; i < s->layers * OF_LAYER; i++)
        linear(s, l[i % OF_LAYER]);
    linear(s, l[OF_LAYER]);
}

static float *random_floats(int64_t n)
{
    float *x = malloc((size_t)n * sizeof *x);

    for (int64_t i = 0; x && i < n; i++)
        x[i] = (float)(((uint64_t)i * 2654435761u) % 1000) * 1e-3f - 0.5f;
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
    double start;

    if (opt_parse(opts, argc, argv, &result, &err)) {
        fprintf(stderr, "bench_train: %s\n", err.msg);
        return tp_exit_code(err.status);
    }
    if (result != OPT_GO_ON) {
        opt_help(stdout, "bench_train", opts, "The rate of sgemm over a step's products.\n", "");
        return 0;
    }
    s.x = random_floats(largest_of(&s));
    s.y = random_floats(largest_of(&s));
    s.z = random_floats(largest_of(&s));
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
