/* orchestrator/plan/cost.c - see orchestrator/plan/cost.h. */
#include "orchestrator/plan/cost.h"

#include <string.h>

#include "layout/model_flops.h"

enum { EXPERT_CALLS = 8 }; /* of a layer with ep: offsets, weights and rows, there and back */
enum { FLOPS, BYTES_TP, BYTES_DP, CALLS, BYTES_WEIGHTS };

/* Seconds per unit before the first measurement. CPUs: a core of a server, and shared memory.
 *
 * GPUs: H100 SXM, by published figures; none was measured with tp-train. Products have about 40 %
 * of the peak in bf16 (989 Tflop/s), as usual in training, and 60 % in f32, which does not use
 * tensor cores (67 Tflop/s; docs/GPU.md). A rank sends 300 GB/s over NVLink (NCCL reaches 370 of
 * 450, nccl-tests issue 212) and 40 GB/s over a network of 400 Gbit/s (46 to 48 at most, nccl-tests
 * issue 290). A collective takes about 10 us. Weights are read at 75 % of 3.35 TB/s. */
static const double GUESSES[][COST_TERMS] = {
    [COST_CPUS] = { 1 / 50e9, 1 / 2e9, 1 / 2e9, 20e-6, 1 / 10e9 },
    [COST_GPUS] = { 1 / 400e12, 1 / 300e9, 1 / 300e9, 10e-6, 1 / 2.5e12 },
    [COST_GPU_MACHINES] = { 1 / 400e12, 1 / 300e9, 1 / 40e9, 10e-6, 1 / 2.5e12 },
};
static const double GPU_F32_FLOPS = 40e12;

/* The weight of the guess against one measurement. */
static const double GUESS_WEIGHT = 0.05;

static void guess(double out[COST_TERMS], const struct cost_work *work)
{
    memcpy(out, GUESSES[work->machine], sizeof GUESSES[work->machine]);
    if (work->machine != COST_CPUS && work->asked.dtype == DTYPE_F32)
        out[FLOPS] = 1 / GPU_F32_FLOPS;
}

static double ceil_div(double a, double b)
{
    int64_t x = (int64_t)a, y = (int64_t)b, parts = (x + y - 1) / y;

    return (double)parts;
}

/* The bytes that a rank of n sends in an all-reduce, as a multiple of the buffer. An all-gather or
 * a reduce-scatter sends half. */
static double ring(int n)
{
    return n > 1 ? 2.0 * (n - 1) / n : 0;
}

/* Work of a step with recomputation, as a multiple of the work without. Selective recomputation
 * repeats the attention scores and their products with V: two of a token's products with the
 * sequence. */
static double recomputed(const struct model *m, const struct workload *w)
{
    double scores = 4.0 * m->layers * m->heads * (double)m->head_dim * (double)w->seq_length;

    if (w->recompute == RECOMPUTE_FULL)
        return 4.0 / 3;
    return w->recompute == RECOMPUTE_SELECTIVE ? 1 + scores / model_flops_step(m, 1, w->seq_length)
                                               : 1;
}

/* Bytes that a rank sends between the ranks of ep in a layer: copies of tokens to their experts and
 * the results that come back, in forward; the gradients of both and the copies again, in backward.
 * A rank keeps those of its own experts, one part of ep. e, sum: bytes of an element of a copy, of
 * a result. */
static double expert_bytes(const struct model *m, const struct spec *p, double tokens, double e,
                           double sum)
{
    double copies = tokens * m->experts_per_token;

    return copies * (double)m->hidden * (3 * e + 2 * sum) * (p->ep - 1) / p->ep;
}

void cost_terms(double x[COST_TERMS], const struct cost_work *work, const struct run_config *c)
{
    const struct workload load = run_config_work(&work->asked, c);
    const struct model *m = work->model;
    const struct spec *p = &c->spec;
    double e = (double)dtype_bytes(load.dtype),
           share = ceil_div((double)load.global_batch_size, p->dp);
    int64_t chosen = workload_micro(&load, p);
    double micro = chosen ? (double)chosen : share;
    double micros = ceil_div(share, micro), stages = (double)p->pp * p->vpp;
    double busiest = p->pp * p->vpp * ceil_div(m->layers, stages) / m->layers;
    double bubble = 1 + (p->pp - 1) / (p->vpp * micros);
    double repeated = recomputed(m, &load),
           tokens = (double)load.global_batch_size * (double)load.seq_length;
    double layers = m->layers / (double)p->pp * busiest; /* of a rank */
    double sum = work->machine == COST_CPUS ? 4 : e; /* bytes of an element that ranks of tp add */
    double rows = share * (double)load.seq_length / p->cp * (double)m->hidden;
    double kv_bytes = share * (double)load.seq_length / p->cp * (double)m->kv_heads / p->tp *
                      (double)m->head_dim * 2 * e;
    double params = (double)model_flops_params(m) / p->tp / p->pp * busiest;

    x[FLOPS] = model_flops_step(m, (int64_t)tokens, load.seq_length) / spec_world(p) * busiest *
               bubble * repeated;
    x[BYTES_TP] =
        bubble *
        (layers * 4 * rows * sum * ring(p->tp) * repeated + layers * 3 * kv_bytes * (p->cp - 1) +
         layers * expert_bytes(m, p, share * (double)load.seq_length / p->cp, e, sum) * repeated +
         (p->pp > 1 ? 2 * p->vpp * rows * 4 / (p->sp ? p->tp : 1) : 0));
    x[BYTES_DP] =
        params * 4 * ring(p->dp * p->cp) + (p->zero == 3 ? 2 * params * e * ring(p->dp) / 2 : 0);
    x[CALLS] = micros * bubble *
                   (layers * ((p->tp > 1 ? 4 * (p->sp ? 2 : 1) : 0) + 3.0 * (p->cp - 1) +
                              (p->ep > 1 ? EXPERT_CALLS : 0)) +
                    (p->pp > 1 ? 4 * p->vpp : 0)) +
               (p->dp > 1 ? 8 + (p->zero ? 8 : 0) : 0) + (p->zero == 3 ? 2 * layers : 0) + 2;
    x[BYTES_WEIGHTS] = params * (3 * e * micros * bubble * repeated + 28.0 / (p->zero ? p->dp : 1));
}

/* Solve the symmetric system a w = b in place (Gauss; it is positive definite). */
static void solve(double a[COST_TERMS][COST_TERMS], double b[COST_TERMS], double w[COST_TERMS])
{
    for (int i = 0; i < COST_TERMS; i++)
        for (int k = i + 1; k < COST_TERMS; k++) {
            double f = a[k][i] / a[i][i];

            for (int j = i; j < COST_TERMS; j++)
                a[k][j] -= f * a[i][j];
            b[k] -= f * b[i];
        }
    for (int i = COST_TERMS - 1; i >= 0; i--) {
        w[i] = b[i];
        for (int j = i + 1; j < COST_TERMS; j++)
            w[i] -= a[i][j] * w[j];
        w[i] /= a[i][i];
    }
}

/* The single factor that corrects the guess best: least squares of the relative errors. x: the
 * guessed seconds of the terms, divided by the measured time. */
static double one_factor(const double x[][COST_TERMS], int n)
{
    double sum = 0, squares = 0;

    for (int i = 0; i < n; i++) {
        double guessed = 0;

        for (int k = 0; k < COST_TERMS; k++)
            guessed += x[i][k];
        sum += guessed;
        squares += guessed * guessed;
    }
    return squares > 0 ? sum / squares : 1;
}

/* v: seconds of each term relative to the guess. Minimise sum (v.x - 1)^2 + GUESS_WEIGHT |v / f -
 * 1|^2, where f is the result of one_factor. */
void cost_fit(struct cost_model *out, const struct cost_work *work, const struct cost_sample *s,
              int n)
{
    double a[COST_TERMS][COST_TERMS] = { { 0 } }, b[COST_TERMS] = { 0 }, v[COST_TERMS], f;
    double x[COST_SAMPLES_MAX][COST_TERMS], first[COST_TERMS];

    guess(first, work);
    memcpy(out->seconds, first, sizeof first);
    if (n == 0)
        return;
    for (int i = 0; i < n; i++) {
        cost_terms(x[i], work, &s[i].config);
        for (int k = 0; k < COST_TERMS; k++)
            x[i][k] *= first[k] / s[i].seconds;
    }
    f = one_factor((const double(*)[COST_TERMS])x, n);
    for (int k = 0; k < COST_TERMS; k++) {
        a[k][k] = GUESS_WEIGHT / (f * f);
        b[k] = GUESS_WEIGHT / f;
    }
    for (int i = 0; i < n; i++)
        for (int k = 0; k < COST_TERMS; k++) {
            b[k] += x[i][k];
            for (int j = 0; j < COST_TERMS; j++)
                a[k][j] += x[i][k] * x[i][j];
        }
    solve(a, b, v);
    for (int k = 0; k < COST_TERMS; k++)
        out->seconds[k] = first[k] * (v[k] > 0 ? v[k] : 0);
}

double cost_predict(const struct cost_model *m, const struct cost_work *work,
                    const struct run_config *c)
{
    double x[COST_TERMS], t = 0;

    cost_terms(x, work, c);
    for (int k = 0; k < COST_TERMS; k++)
        t += m->seconds[k] * x[k];
    return t;
}
