/* tests/unit/kernels_attention.c - causal attention, forward and gradients, against a reference
 * that computes all scores in double.
 *
 * covers: kernels/cpu/attention_bf16 kernels/cpu/attention_lanes kernels/cpu/attention_row
 * covers: kernels/cpu/attention_tile kernels/cpu/cpu kernels/cpu/panel_amx */
#include "kernels/attention.h"

#include "kernels/cpu/unit.h"
#include "tests/unit/kernels_support.h"

/* One case: q, k and v side by side in rows of `ld`, as in the trainer, and the reference. */
struct setup {
    struct attention a;
    int64_t rows, ld;
    float *qkv, *d_out; /* as stored, in float */
    void *qkv_stored, *d_out_stored;
    double *out, *lse, *dqkv; /* [rows][heads * head_dim], [batch][heads][seq], [rows][ld] */
    double *p, *dp, *slope;   /* [seq] */
};

static void *zeroes(int64_t n, size_t size)
{
    void *p = calloc((size_t)n + 1, size);

    cr_assert(p);
    return p;
}

static struct setup setup_make(struct rng *r, struct attention a)
{
    int64_t head_dim = a.head_dim, kv = a.kv_heads * head_dim, pad = rng_int(r, 0, 4);
    struct setup s = { .rows = a.batch * a.seq, .ld = a.heads * head_dim + 2 * kv + pad };
    int64_t bytes = dtype_bytes(a.type);

    s.qkv = random_floats(r, s.rows * s.ld, 2);
    s.qkv_stored = stored_as(a.type, s.qkv, s.rows * s.ld);
    a.q = s.qkv_stored;
    a.k = (char *)s.qkv_stored + a.heads * head_dim * bytes;
    a.v = (char *)s.qkv_stored + (a.heads * head_dim + kv) * bytes;
    a.ldq = a.ldk = a.ldv = s.ld;
    a.ldo = a.heads * head_dim + rng_int(r, 0, 4);
    s.d_out = random_floats(r, s.rows * a.ldo, 1);
    s.d_out_stored = stored_as(a.type, s.d_out, s.rows * a.ldo);
    a.out = zeroes(s.rows * a.ldo, 4);
    a.lse = zeroes(a.batch * a.heads * a.seq, 4);
    a.scale = (float)(1 / sqrt((double)head_dim));
    s.out = zeroes(s.rows * a.ldo, sizeof(double));
    s.lse = zeroes(a.batch * a.heads * a.seq, sizeof(double));
    s.dqkv = zeroes(s.rows * s.ld, sizeof(double));
    s.p = zeroes(a.seq, sizeof(double));
    s.dp = zeroes(a.seq, sizeof(double));
    s.slope = zeroes(a.seq, sizeof(double));
    s.a = a;
    return s;
}

static void setup_free(struct setup *s)
{
    void *all[] = { s->qkv, s->qkv_stored, s->d_out, s->d_out_stored, s->a.out, s->a.lse, s->out,
                    s->lse, s->dqkv,       s->p,     s->dp,           s->slope, s->a.sum };

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        free(all[i]);
}

/* The reference for one query row of one head: its output and its part of every gradient. */
static void reference_row(struct setup *s, int64_t b, int64_t h, int64_t t)
{
    const struct attention *a = &s->a;
    int64_t d = a->head_dim, kv = h / (a->heads / a->kv_heads), row = b * a->seq + t;
    int64_t at_q = h * d, at_k = (a->heads + kv) * d, at_v = (a->heads + a->kv_heads + kv) * d;
    const float *q = s->qkv + row * s->ld + at_q, *d_out = s->d_out + row * a->ldo + h * d;
    int64_t first = a->window && t >= a->window ? t + 1 - a->window : 0;
    double *out = s->out + row * a->ldo + h * d, max = -INFINITY, sum = 0, delta = 0;

    for (int64_t j = first; j <= t; j++) {
        const float *k = s->qkv + (b * a->seq + j) * s->ld + at_k;
        s->p[j] = 0;
        for (int64_t i = 0; i < d; i++)
            s->p[j] += (double)q[i] * (double)k[i] * (double)a->scale;
        s->slope[j] = 1;
        if (a->cap > 0) {
            double bent = tanh(s->p[j] / (double)a->cap);

            s->p[j] = (double)a->cap * bent;
            s->slope[j] = 1 - bent * bent;
        }
        max = fmax(max, s->p[j]);
    }
    for (int64_t j = first; j <= t; j++)
        sum += s->p[j] = exp(s->p[j] - max);
    s->lse[(b * a->heads + h) * a->seq + t] = max + log(sum);
    for (int64_t j = first; j <= t; j++) {
        const float *v = s->qkv + (b * a->seq + j) * s->ld + at_v;
        double *dv = s->dqkv + (b * a->seq + j) * s->ld + at_v;
        s->p[j] /= sum;
        s->dp[j] = 0;
        for (int64_t i = 0; i < d; i++) {
            out[i] += s->p[j] * (double)v[i];
            dv[i] += s->p[j] * (double)d_out[i];
            s->dp[j] += (double)v[i] * (double)d_out[i];
        }
        delta += s->p[j] * s->dp[j];
    }
    for (int64_t j = first; j <= t; j++) {
        double ds = s->p[j] * (s->dp[j] - delta) * s->slope[j] * (double)a->scale;
        const float *k = s->qkv + (b * a->seq + j) * s->ld + at_k;
        double *dk = s->dqkv + (b * a->seq + j) * s->ld + at_k;
        for (int64_t i = 0; i < d; i++) {
            s->dqkv[row * s->ld + at_q + i] += ds * (double)k[i];
            dk[i] += ds * (double)q[i];
        }
    }
}

/* Compare the root of the mean square of the errors with that of the reference, or with `least` if
 * that is larger: a log-sum-exp near 0 is as inexact as the scores, which are of the size 1. */
static void assert_close(const float *got, const double *want, int64_t n, double least,
                         double tolerance, const char *what)
{
    double off = 0, size = 1e-30, worst = 0;

    for (int64_t i = 0; i < n; i++) {
        double e = fabs((double)got[i] - want[i]);
        off += e * e;
        size += want[i] * want[i];
        worst = fmax(worst, e);
    }
    size = fmax(size, least * least * (double)n);
    cr_assert(sqrt(off / size) <= tolerance, "%s: relative error %.3g, allowed %.3g", what,
              sqrt(off / size), tolerance);
    cr_assert(worst <= 30 * tolerance * (1 + sqrt(size / (double)(n + 1))), "%s: one off by %.3g",
              what, worst);
}

struct gradients {
    float *dq, *dk, *dv; /* rows of s->ld */
};

/* The queries row0 .. row0 + rows - 1 of all sequences with n keys from key0, unmasked; or, if n is
 * 0, with the same number of keys and a causal mask. */
static struct attention part_of(const struct setup *s, int64_t row0, int64_t rows, int64_t key0,
                                int64_t n)
{
    int64_t e = dtype_bytes(s->a.type);
    struct attention a = s->a;

    a.q = (const char *)a.q + row0 * a.ldq * e;
    a.k = (const char *)a.k + key0 * a.ldk * e;
    a.v = (const char *)a.v + key0 * a.ldv * e;
    a.out = (char *)a.out + row0 * a.ldo * e;
    a.sum = a.sum ? a.sum + row0 * a.ldo : NULL;
    a.lse = a.lse + row0;
    a.seq = rows;
    a.keys = n;
    a.q_step = a.k_step = s->a.seq;
    a.merge = n > 0;
    if (n > 0 && a.window) { /* row 0 of the part is the row `window` before key 0's last row */
        a.window -= row0 - key0;
        a.seq = a.window + n - 1 < rows ? a.window + n - 1 : rows;
    }
    return a;
}

/* The first of the keys before `end` from key0 on that a row sees. */
static int64_t first_seen(const struct setup *s, int64_t row, int64_t key0, int64_t end)
{
    int64_t first = s->a.window && row + 1 > s->a.window ? row + 1 - s->a.window : 0;

    return first < key0 ? key0 : first < end ? first : end;
}

static void part_backward(const struct setup *s, const struct attention *a, int64_t row0,
                          int64_t key0, const struct gradients *g)
{
    const char *d_out = (const char *)s->d_out_stored + row0 * a->ldo * dtype_bytes(a->type);

    RUN(attention_backward, attention_backward, *a, d_out, g->dq + row0 * s->ld,
        g->dk + key0 * s->ld, g->dv + key0 * s->ld, s->ld, s->ld, s->ld, DTYPE_F32);
}

/* The same attention in parts: the queries before `cut` and those after it, each with their own
 * keys, and then the queries after it with runs of the keys before it. ends[0 .. n - 1] are the
 * ends of the runs; the last is `cut`. */
static void run_in_parts(struct setup *s, int64_t cut, const int64_t *ends, int n,
                         const struct gradients *g)
{
    int64_t tail = s->a.seq - cut, elements = s->rows * s->a.ldo;
    struct attention head = part_of(s, 0, cut, 0, 0), rest = part_of(s, cut, tail, cut, 0);

    kernels_cpu.attention_forward(kernels_on(), &head);
    kernels_cpu.attention_forward(kernels_on(), &rest);
    for (int i = 0; i < n; i++) {
        int64_t key0 = first_seen(s, cut, i ? ends[i - 1] : 0, ends[i]);
        struct attention more = part_of(s, cut, tail, key0, ends[i] - key0);

        if (more.keys)
            kernels_cpu.attention_forward(kernels_on(), &more);
    }
    if (s->a.sum)
        cast(s->a.out, s->a.type, s->a.sum, DTYPE_F32, elements);
    part_backward(s, &rest, cut, cut, g);
    part_backward(s, &head, 0, 0, g);
    for (int i = 0; i < n; i++) {
        int64_t key0 = first_seen(s, cut, i ? ends[i - 1] : 0, ends[i]);
        struct attention more = part_of(s, cut, tail, key0, ends[i] - key0);

        if (more.keys)
            part_backward(s, &more, cut, key0, g);
    }
}

/* Run the kernels: in parts with a random cut, or at once if r is NULL. */
static void run(struct setup *s, struct rng *r, const struct gradients *g)
{
    int64_t ends[4], cut = r ? rng_int(r, 1, s->a.seq - 1) : 0;
    int n = 0;

    if (r) {
        for (int64_t at = 0; at < cut; at = ends[n++])
            ends[n] = n == 3 ? cut : rng_int(r, at + 1, cut);
        run_in_parts(s, cut, ends, n, g);
        return;
    }
    kernels_cpu.attention_forward(kernels_on(), &s->a);
    part_backward(s, &s->a, 0, 0, g);
}

/* Check the attention at once, or in random parts if r is not NULL. */
static void check(struct setup *s, struct rng *r)
{
    const struct attention *a = &s->a;
    double tolerance = a->type == DTYPE_F32 ? 1.5e-6 : 1.5e-2;
    float *grad = filled_floats(s->rows * s->ld, 0), *out;

    for (int64_t i = 0; i < s->rows * s->ld; i++)
        if (i % s->ld < (a->heads + 2 * a->kv_heads) * a->head_dim)
            grad[i] = NAN; /* to be overwritten */
    for (int64_t i = 0; i < a->batch * a->heads * a->seq; i++)
        reference_row(s, i / a->seq / a->heads, i / a->seq % a->heads, i % a->seq);
    run(s, r,
        &(struct gradients){ grad, grad + a->heads * a->head_dim,
                             grad + (a->heads + a->kv_heads) * a->head_dim });
    out = as_floats(a->type, a->out, s->rows * a->ldo);
    assert_close(out, s->out, s->rows * a->ldo, 0, tolerance, "out");
    assert_close(a->lse, s->lse, a->batch * a->heads * a->seq, 1, 1e-6, "lse");
    assert_close(grad, s->dqkv, s->rows * s->ld, 0, tolerance, "gradients");
    free(grad);
    free(out);
}

enum attention_case { AT_ONCE, IN_PARTS, IN_A_WINDOW, WINDOW_IN_PARTS };

static void random_cases(const char *name, enum dtype type, int times, int64_t seq_max,
                         enum attention_case how)
{
    struct rng r = rng_start(name);
    bool in_parts = how == IN_PARTS || how == WINDOW_IN_PARTS;

    for (int i = 0; i < times; i++) {
        struct attention a = { .batch = rng_int(&r, 1, 3),
                               .seq = rng_int(&r, in_parts ? 2 : 1, seq_max),
                               .kv_heads = rng_int(&r, 1, 3),
                               .head_dim = 2 * rng_int(&r, 1, 20),
                               .type = type };
        struct setup s;

        a.heads = a.kv_heads * rng_int(&r, 1, 3);
        if (i % 5 == 0)
            a.seq = 64 * rng_int(&r, 1, 3);
        if (i % 3 == 1)
            a.cap = (float)rng_int(&r, 1, 40) / 8;
        if (how == IN_A_WINDOW || how == WINDOW_IN_PARTS)
            a.window = rng_int(&r, 1, a.seq + 1);
        s = setup_make(&r, a);
        if (in_parts && type == DTYPE_BF16)
            s.a.sum = filled_floats(s.rows * s.a.ldo, 0);
        check(&s, in_parts ? &r : NULL);
        setup_free(&s);
    }
}

Test(attention, f32)
{
    random_cases("attention/f32 short", DTYPE_F32, 40, 20, AT_ONCE);
    random_cases("attention/f32 long", DTYPE_F32, 8, 300, AT_ONCE);
}

Test(attention, bf16)
{
    random_cases("attention/bf16 short", DTYPE_BF16, 20, 20, AT_ONCE);
    random_cases("attention/bf16 long", DTYPE_BF16, 5, 300, AT_ONCE);
}

Test(attention, bf16_without_the_instructions)
{
    kernels_on()->device->without_units = UNIT_AVX512_BF16;
    random_cases("attention/bf16 by products, short", DTYPE_BF16, 20, 20, false);
    random_cases("attention/bf16 by products, long", DTYPE_BF16, 3, 300, false);
    random_cases("attention/bf16 by products, in parts", DTYPE_BF16, 5, 150, true);
}

static void heads_of_many_sizes(const char *name)
{
    struct rng r = rng_start(name);
    const int64_t sizes[] = { 3, 64, 66, 80, 128, 256, 258 };

    for (int i = 0; i < 7; i++) {
        struct setup s = setup_make(&r, (struct attention){ .batch = 1,
                                                            .seq = rng_int(&r, 65, 140),
                                                            .heads = 2,
                                                            .kv_heads = 1,
                                                            .head_dim = sizes[i],
                                                            .type = DTYPE_BF16 });
        check(&s, NULL);
        setup_free(&s);
    }
}

Test(attention, bf16_heads_of_many_sizes)
{
    heads_of_many_sizes("attention/bf16 head sizes");
}

Test(attention, bf16_without_amx)
{
    kernels_on()->device->without_units = UNIT_AMX_BF16;
    heads_of_many_sizes("attention/bf16 head sizes, without AMX");
    random_cases("attention/bf16 without AMX, short", DTYPE_BF16, 20, 20, AT_ONCE);
    random_cases("attention/bf16 without AMX, long", DTYPE_BF16, 3, 300, AT_ONCE);
}

/* All values are 1, so every output is the sum of a row's probabilities. */
Test(attention, probabilities_add_up_to_one_whatever_the_scores)
{
    struct rng r = rng_start("attention/large scores");
    const float scales[] = { 0, 1e-30f, 30, 1e4f, 1e30f };

    for (int type = 0; type < 2; type++)
        for (int i = 0; i < 5; i++) {
            struct setup s =
                setup_make(&r, (struct attention){ .batch = 1,
                                                   .seq = 150,
                                                   .heads = 1,
                                                   .kv_heads = 1,
                                                   .head_dim = 8,
                                                   .type = type ? DTYPE_BF16 : DTYPE_F32 });
            float *ones = filled_floats(s.rows * s.ld, 1), *out;
            void *v = stored_as(s.a.type, ones, s.rows * s.ld);

            s.a.v = v;
            s.a.scale = scales[i];
            kernels_cpu.attention_forward(kernels_on(), &s.a);
            out = as_floats(s.a.type, s.a.out, s.rows * s.a.ldo);
            for (int64_t k = 0; k < s.rows * s.a.ldo; k++)
                if (k % s.a.ldo < s.a.head_dim)
                    assert_near(out[k], 1, 2 * epsilon(s.a.type) * 4, "sum of probabilities");
            free(out), free(v), free(ones);
            setup_free(&s);
        }
}

/* So that a loss which is not a number is seen. */
Test(attention, not_a_number_in_a_query_reaches_its_row_alone)
{
    struct rng r = rng_start("attention/NaN");
    struct setup s = setup_make(&r, (struct attention){ .batch = 1,
                                                        .seq = 100,
                                                        .heads = 1,
                                                        .kv_heads = 1,
                                                        .head_dim = 16,
                                                        .type = DTYPE_BF16 });
    float *out;

    ((uint16_t *)s.qkv_stored)[70 * s.ld + 5] = 0x7fc0;
    kernels_cpu.attention_forward(kernels_on(), &s.a);
    out = as_floats(s.a.type, s.a.out, s.rows * s.a.ldo);
    for (int64_t i = 0; i < s.rows; i++)
        for (int64_t k = 0; k < s.a.head_dim; k++)
            cr_assert_eq(isnan(out[i * s.a.ldo + k]) != 0, i == 70, "row %lld", (long long)i);
    free(out);
    setup_free(&s);
}

Test(attention, the_parts_give_the_result_of_the_whole)
{
    random_cases("attention/f32 short, in parts", DTYPE_F32, 40, 20, IN_PARTS);
    random_cases("attention/f32 long, in parts", DTYPE_F32, 10, 300, IN_PARTS);
    random_cases("attention/bf16, in parts", DTYPE_BF16, 10, 150, IN_PARTS);
    use_threads(3);
    random_cases("attention/f32, in parts, 3 threads", DTYPE_F32, 10, 150, IN_PARTS);
}

Test(attention, with_threads)
{
    use_threads(3);
    random_cases("attention/f32, 3 threads", DTYPE_F32, 10, 150, AT_ONCE);
}

Test(attention, a_row_sees_only_its_window)
{
    random_cases("attention/f32 short, window", DTYPE_F32, 40, 20, IN_A_WINDOW);
    random_cases("attention/f32 long, window", DTYPE_F32, 8, 300, IN_A_WINDOW);
    random_cases("attention/bf16, window", DTYPE_BF16, 5, 150, IN_A_WINDOW);
    random_cases("attention/f32 short, window in parts", DTYPE_F32, 40, 20, WINDOW_IN_PARTS);
    random_cases("attention/f32 long, window in parts", DTYPE_F32, 8, 300, WINDOW_IN_PARTS);
    random_cases("attention/bf16, window in parts", DTYPE_BF16, 5, 150, WINDOW_IN_PARTS);
}

Test(attention, the_cpu_refuses_bf16_gradients)
{
    struct tp_err err;

    RUN(attention_backward, attention_backward, .of.type = DTYPE_BF16, .type = DTYPE_BF16);
    err = take_failure();
    cr_assert_eq(err.status, TP_E_INTERNAL);
    cr_assert(strstr(err.msg, "gradients of attention on the CPU are f32, not bf16"), "%s",
              err.msg);
}

Test(attention, nothing_to_do)
{
    struct attention a = {
        .batch = 0, .seq = 7, .heads = 2, .kv_heads = 1, .head_dim = 4, .type = DTYPE_F32
    };

    for (int i = 0; i < 2; i++) {
        kernels_cpu.attention_forward(kernels_on(), &a);
        RUN(attention_backward, attention_backward, .of = a, .lddq = 8, .lddk = 4, .lddv = 4);
        a.batch = 2;
        a.seq = 0;
    }
    cr_assert_eq(take_failure().status, TP_OK);
}
