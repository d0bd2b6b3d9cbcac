/* trainer/same_bits.c - see trainer/same_bits.h. */
#include "trainer/same_bits.h"

#include <inttypes.h>

#include "layout/plan.h"
#include "trainer/shards.h"

static bool is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* Rows of the vocabulary that each of n shards has, the last ones fewer. */
static int64_t vocabulary_unit(int64_t vocab, int n)
{
    return (vocab + n - 1) / n;
}

/* Whether what a rank of every smaller degree has of the vocabulary is what its shards have: when
 * at most the last of n shards is empty. */
static bool vocabulary_nests(int64_t vocab, int n)
{
    int64_t unit = vocabulary_unit(vocab, n);

    return (vocab + unit - 1) / unit >= n - 1;
}

/* What N does not divide, or NULL. */
static const char *indivisible(const struct model *m, int n, int64_t *count)
{
    if ((*count = m->heads) % n)
        return "attention heads";
    if ((*count = m->kv_heads) % n && n % m->kv_heads)
        return "key-value heads";
    if ((*count = m->ffn) % n)
        return "features of the MLP";
    *count = m->vocab;
    return vocabulary_nests(m->vocab, n) ? NULL : "rows of the vocabulary";
}

static tp_status check_model(const struct train_config *c, const struct model *m,
                             struct tp_err *err)
{
    const struct plan *plan = m->plan ? m->plan : plan_builtin(m->arch);
    int64_t count, other;
    const char *what = indivisible(m, c->same_bits, &count);
    int fits = c->same_bits;

    while (fits > 1 && indivisible(m, fits, &other))
        fits /= 2;
    if (what)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits %d plays %d tensor shards, into which the model's %" PRId64
                       " %s cannot be dealt; --same-bits %d can be",
                       c->same_bits, c->same_bits, count, what, fits);
    for (int i = 0; i < plan->n; i++)
        if (plan->entries[i].cut == CUT_REPLICATED && *role_unit(plan->entries[i].role))
            return tp_fail(err, TP_E_LAYOUT,
                           "--same-bits needs a plan that cuts every product: %s (%s) is "
                           "replicated",
                           plan->entries[i].pattern, role_name(plan->entries[i].role));
    return TP_OK;
}

/* The power of two below n. */
static int64_t power_below(int64_t n)
{
    int64_t power = 1;

    while (power <= n / 2)
        power *= 2;
    return power;
}

static tp_status check_spec(const struct train_config *c, struct tp_err *err)
{
    const struct spec *s = &c->spec;

    if (s->cp > 1)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits cannot keep its promise under cp %d, where attention's sums "
                       "are merged in another order",
                       s->cp);
    if (!is_power_of_two(s->tp) || s->tp > c->same_bits)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits %d runs at tensor degrees that are powers of two up to it, not "
                       "at tp %d",
                       c->same_bits, s->tp);
    if (s->zero == 3 && s->dp > 1 && same_bits_leaf(c) > 1)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits under zero3 sums a microbatch over dp at once, so the "
                       "%" PRId64 " microbatches of a step (--batch %" PRId64 " / --micro %" PRId64
                       ") must be a power of two; zero1 takes any",
                       c->batch / c->micro, c->batch, c->micro);
    if (!is_power_of_two(s->dp))
        return tp_fail(err, TP_E_LAYOUT, "--same-bits needs dp to be a power of two, not %d",
                       s->dp);
    return TP_OK;
}

tp_status same_bits_check(const struct train_config *c, const struct model *m, struct tp_err *err)
{
    int64_t rows = c->micro * c->seq;
    tp_status st;

    if (!is_power_of_two(c->same_bits) || c->same_bits > SHARDS_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "--same-bits %d is no power of two between 1 and %d; nearest: %" PRId64,
                       c->same_bits, SHARDS_MAX,
                       c->same_bits > SHARDS_MAX ? SHARDS_MAX : power_below(c->same_bits));
    if ((st = check_spec(c, err)) || (st = check_model(c, m, err)))
        return st;
    if (rows % c->same_bits)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits %d adds rows in as many blocks: the %" PRId64
                       " tokens of a microbatch (--micro %" PRId64 " x --seq %" PRId64
                       ") do not divide by it; --seq %" PRId64 " would",
                       c->same_bits, rows, c->micro, c->seq,
                       (c->seq + c->same_bits - 1) / c->same_bits * c->same_bits);
    return TP_OK;
}

void same_bits_cut(struct tensor *tensors, int n, int same_bits)
{
    for (int i = 0; i < n; i++)
        if (tensors[i].rule.pad)
            tensors[i].rule.unit =
                vocabulary_unit(tensors[i].shape[tensors[i].rule.dim], same_bits);
}

int64_t same_bits_leaf(const struct train_config *c)
{
    int64_t leaf = c->batch / c->micro;

    if (!c->same_bits)
        return 1;
    while (leaf % 2 == 0)
        leaf /= 2;
    return leaf;
}

int same_bits_levels(const struct train_config *c)
{
    int64_t leaves = train_config_micros(c) / same_bits_leaf(c);
    int levels = 0;

    if (!c->same_bits)
        return 0;
    while (leaves > 1) {
        leaves /= 2;
        levels++;
    }
    return levels;
}
