/* layout/same_bits.c - see layout/same_bits.h. */
#include "layout/same_bits.h"

#include <stdbool.h>

#include "layout/family.h"
#include "layout/parallel_plan.h"

static bool is_power_of_two(int64_t n)
{
    return n > 0 && (n & (n - 1)) == 0;
}

/* The largest power of two that is at most n, and at least 1. */
static int power_below(int n)
{
    int power = 1;

    while (power <= n / 2)
        power *= 2;
    return power;
}

/* Rows of the vocabulary in each of n shards; the last shards have fewer. */
static int64_t vocabulary_unit(int64_t vocab, int n)
{
    return (vocab + n - 1) / n;
}

/* Whether at every smaller degree a rank's part of the vocabulary is exactly that of its shards. It
 * is when at most the last of n shards is empty. */
static bool vocabulary_nests(int64_t vocab, int n)
{
    int64_t unit = vocabulary_unit(vocab, n);

    return (vocab + unit - 1) / unit >= n - 1;
}

/* Whether shards may hold the same key-value heads: not those of a tensor with the queries, which
 * no two shards share. */
static bool replicates_kv_heads(const struct model *m)
{
    return !family_tensor_find(family_of(m), ROLE_QKV);
}

/* What n shards cannot share, with its number in *count; NULL: nothing. */
static const char *indivisible(const struct model *m, int n, int64_t *count)
{
    if ((*count = m->heads) % n)
        return "attention heads";
    if ((*count = m->kv_heads) % n && (n % m->kv_heads || !replicates_kv_heads(m)))
        return "key-value heads";
    if ((*count = m->ffn) % n)
        return "features of the MLP";
    *count = m->vocab;
    return vocabulary_nests(m->vocab, n) ? NULL : "rows of the vocabulary";
}

static tp_status check_model(const struct model *m, int n, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    int64_t count, other;
    const char *what = indivisible(m, n, &count);
    int fits = n;

    while (fits > 1 && indivisible(m, fits, &other))
        fits /= 2;
    if (what)
        return tp_fail(err, TP_E_USAGE,
                       "--same-bits %d emulates %d tensor shards, but the model's %lld %s do not "
                       "divide among them; --same-bits %d would work",
                       n, n, (long long)count, what, fits);
    for (int i = 0; i < plan.n; i++)
        if (plan.entries[i].cut == CUT_REPLICATED && !tensor_role_is_norm(plan.entries[i].role) &&
            tensor_role_unit(plan.entries[i].role))
            return tp_fail(err, TP_E_USAGE,
                           "--same-bits needs a plan that cuts every linear layer, the embedding "
                           "and the head: %s (%s) is replicated",
                           plan.entries[i].pattern, tensor_role_name(plan.entries[i].role));
    return TP_OK;
}

tp_status same_bits_check_run(const struct workload *w, const struct model *m, struct tp_err *err)
{
    int n = w->same_bits;

    if (!is_power_of_two(n) || n > SAME_BITS_SHARDS_MAX)
        return tp_fail(
            err, TP_E_USAGE, "--same-bits %d is not a power of two from 1 to %d; nearest: %d", n,
            SAME_BITS_SHARDS_MAX, n > SAME_BITS_SHARDS_MAX ? SAME_BITS_SHARDS_MAX : power_below(n));
    return check_model(m, n, err);
}

tp_status same_bits_check_mesh(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    if (s->cp > 1)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits does not work with cp (%d): context parallelism merges the "
                       "sums of attention in another order",
                       s->cp);
    if (!is_power_of_two(s->tp) || s->tp > w->same_bits)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits %d needs tp to be a power of two of at most %d, not %d",
                       w->same_bits, w->same_bits, s->tp);
    if (!is_power_of_two(s->dp))
        return tp_fail(err, TP_E_LAYOUT, "--same-bits needs dp to be a power of two, not %d",
                       s->dp);
    return TP_OK;
}

tp_status same_bits_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    int64_t micro = workload_micro(w, s), rows = micro * w->seq_length;

    if (s->zero == 3 && s->dp > 1 && same_bits_group_microbatches(w) > 1)
        return tp_fail(err, TP_E_LAYOUT,
                       "--same-bits with zero3 sums each microbatch over dp at once, so the %lld "
                       "microbatches of a step (--batch %lld / --micro %lld) must be a power of "
                       "two; zero1 takes any number",
                       (long long)(w->global_batch_size / micro), (long long)w->global_batch_size,
                       (long long)micro);
    if (rows % w->same_bits)
        return tp_fail(
            err, TP_E_LAYOUT,
            "--same-bits %d sums the tokens of a microbatch in %d blocks: %lld tokens (--micro "
            "%lld x --seq %lld) are not divisible by %d; --seq %lld would",
            w->same_bits, w->same_bits, (long long)rows, (long long)micro, (long long)w->seq_length,
            w->same_bits,
            (long long)((w->seq_length + w->same_bits - 1) / w->same_bits * w->same_bits));
    return TP_OK;
}

void same_bits_cut_vocabulary(struct tensor *tensors, int n, int same_bits)
{
    for (int i = 0; i < n; i++)
        if (tensors[i].placement.uneven)
            tensors[i].placement.unit =
                vocabulary_unit(tensors[i].shape[tensors[i].placement.dim], same_bits);
}

int64_t same_bits_group_microbatches(const struct workload *w)
{
    int64_t group =
        w->micro_batch_size ? w->global_batch_size / w->micro_batch_size : w->global_batch_size;

    if (!w->same_bits || group < 1)
        return 1;
    while (group % 2 == 0)
        group /= 2;
    return group;
}

int same_bits_tree_levels(const struct workload *w, const struct spec *s)
{
    int64_t groups = workload_micros(w, s) / same_bits_group_microbatches(w);
    int levels = 0;

    if (!w->same_bits)
        return 0;
    while (groups > 1) {
        groups /= 2;
        levels++;
    }
    return levels;
}
