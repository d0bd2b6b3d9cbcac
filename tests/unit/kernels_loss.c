/* tests/unit/kernels_loss.c - cross entropy over shards of a vocabulary, against the full
 * vocabulary in double. */
#include "kernels/loss.h"

#include "tests/unit/kernels_support.h"

enum { SHARDS_MAX = 5 };

struct setup {
    int64_t rows, vocab, first[SHARDS_MAX + 1];
    int shards;
    enum dtype type;
    float *logits; /* [rows][vocab] */
    float *before; /* with a cap: before it */
    float cap, *max;
    float *part[SHARDS_MAX];
    int32_t *targets;
    float *sum, *target;
};

static struct setup setup_make(struct rng *r, enum dtype type)
{
    struct setup s = { .rows = rng_int(r, 0, 9), .vocab = rng_int(r, 1, 700), .type = type };

    s.shards = (int)rng_int(r, 1, SHARDS_MAX);
    s.first[s.shards] = s.vocab;
    for (int i = 1; i < s.shards;
         i++) /* equal parts, but the last may be shorter or empty, as in layouts */
        s.first[i] = (s.vocab + s.shards - 1) / s.shards * i < s.vocab
                         ? (s.vocab + s.shards - 1) / s.shards * i
                         : s.vocab;
    s.logits = random_floats(r, s.rows * s.vocab, rng_int(r, 0, 1) ? 2 : 60);
    if (rng_int(r, 0, 1)) {
        s.cap = (float)rng_int(r, 1, 100);
        s.before = s.logits;
        s.logits = filled_floats(s.rows * s.vocab, 0);
        memcpy(s.logits, s.before, (size_t)(s.rows * s.vocab) * 4);
        RUN(soft_cap, soft_cap, s.logits, s.rows * s.vocab, s.cap, DTYPE_F32);
    }
    s.max = filled_floats(s.rows, NAN);
    s.targets = calloc((size_t)s.rows + 1, sizeof *s.targets);
    for (int64_t i = 0; i < s.rows; i++)
        s.targets[i] = (int32_t)rng_int(r, 0, s.vocab - 1);
    s.sum = filled_floats(s.rows, 0);
    s.target = filled_floats(s.rows, 0);
    return s;
}

/* Run the two local steps of every shard, with the reductions between them. */
static void run_shards(struct setup *s)
{
    float *one = filled_floats(s->rows, 0), *target = filled_floats(s->rows, 0);

    for (int i = 0; i < s->shards; i++) {
        int64_t cols = s->first[i + 1] - s->first[i];
        s->part[i] = filled_floats(s->rows * cols, 0);
        for (int64_t r = 0; r < s->rows; r++)
            memcpy(s->part[i] + r * cols, s->logits + r * s->vocab + s->first[i], (size_t)cols * 4);
        RUN(loss_max, loss_max, s->max, one, target, s->part[i], DTYPE_F32, s->rows, cols, i > 0);
    }
    for (int i = 0; i < s->shards; i++) {
        RUN(loss_sum_exp, loss_sum_exp, one, target, s->part[i], DTYPE_F32, s->max, s->targets,
            s->first[i], s->rows, s->first[i + 1] - s->first[i], s->cap);
        for (int64_t r = 0; r < s->rows; r++) {
            s->sum[r] += one[r];
            s->target[r] += target[r];
        }
    }
    free(one);
    free(target);
}

static double log_sum_exp(const float *x, int64_t n)
{
    double max = -INFINITY, sum = 0;

    for (int64_t i = 0; i < n; i++) /* gcc 12 for arm64 fails with an internal error on fmax here */
        max = (double)x[i] > max ? (double)x[i] : max;
    for (int64_t i = 0; i < n; i++)
        sum += exp((double)x[i] - max);
    return max + log(sum);
}

/* The derivative of the cap at an element of the logits. */
static double slope_at(const struct setup *s, int64_t i)
{
    double bent = s->cap > 0 ? tanh((double)s->before[i] / (double)s->cap) : 0;

    return 1 - bent * bent;
}

static void check_gradient(const struct setup *s, double scale)
{
    for (int i = 0; i < s->shards; i++) {
        int64_t cols = s->first[i + 1] - s->first[i], n = s->rows * cols;
        bool in_place = s->type == DTYPE_F32;
        void *out = in_place ? (void *)s->part[i] : calloc((size_t)n + 1, 2);
        float *d;

        RUN(loss_backward, loss_backward, out, s->type, s->part[i], DTYPE_F32, s->sum, s->targets,
            s->first[i], s->rows, cols, (float)scale, s->cap, s->max);
        d = as_floats(s->type, out, n);
        for (int64_t e = 0; e < n; e++) {
            int64_t r = e / cols, c = s->first[i] + e % cols;
            const float *row = s->logits + r * s->vocab;
            double p = exp((double)row[c] - log_sum_exp(row, s->vocab));
            double want = scale * (p - (s->targets[r] == c)) * slope_at(s, r * s->vocab + c);
            double off = scale * (6e-6 * p + 1e-7);
            off += s->cap > 0 ? scale * 5e-7 : 0; /* of 1 - t t where t is rounded */
            off += s->type == DTYPE_F32 ? 0 : 0x1p-8 * fabs(want);
            assert_near(d[e], want, off, "dlogits");
        }
        free(d);
        if (!in_place)
            free(out);
    }
}

Test(loss, shards_give_the_loss_of_the_full_vocabulary)
{
    struct rng r = rng_start("loss");

    for (int i = 0; i < 120; i++) {
        struct setup s = setup_make(&r, i & 1 ? DTYPE_BF16 : DTYPE_F32);
        double want = 0, got;

        run_shards(&s);
        for (int64_t row = 0; row < s.rows; row++)
            want += log_sum_exp(s.logits + row * s.vocab, s.vocab) -
                    (double)s.logits[row * s.vocab + s.targets[row]];
        RUN(loss_total, loss_total, &got, s.sum, s.target, s.rows);
        assert_near(got, want, 3e-7 * (double)s.rows + 1e-7 * fabs(want), "loss");
        check_gradient(&s, 0.25);
        for (int j = 0; j < s.shards; j++)
            free(s.part[j]);
        free(s.logits);
        free(s.before);
        free(s.max);
        free(s.targets);
        free(s.sum);
        free(s.target);
    }
}
