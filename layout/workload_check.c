/* layout/workload_check.c - see layout/workload_check.h. */
#include "layout/workload_check.h"

#include <stdio.h>

#include "layout/family.h"
#include "layout/parallel_plan.h"
#include "layout/same_bits.h"

/* Most sequences in a step, and most tokens in a sequence: far above any real run, and small enough
 * that products of both with the width of a buffer do not overflow. */
enum { COUNT_MAX = 1 << 24 };

/* ---- the run ---- */

static tp_status check_count(const char *flag, int64_t n, struct tp_err *err)
{
    if (n >= 1 && n <= COUNT_MAX)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "%s %lld must be between 1 and %d", flag, (long long)n,
                   COUNT_MAX);
}

/* What tp-train does not compute of the model. */
static tp_status check_trained(const struct workload *w, const struct model *m, struct tp_err *err)
{
    if (m->untrained)
        return tp_fail(err, TP_E_USAGE, "%s; the model can be imported, resharded and exported",
                       m->untrained);
    if (m->experts && w->same_bits)
        return tp_fail(err, TP_E_USAGE,
                       "--same-bits cannot train a %s: how many rows an expert's products have "
                       "depends on the microbatches, so the order of their sums does too",
                       family_of(m)->architecture);
    return TP_OK;
}

tp_status workload_check_run(const struct workload *w, const struct model *m, struct tp_err *err)
{
    tp_status st;

    if ((st = check_trained(w, m, err)))
        return st;
    if (w->seq_length > m->max_positions)
        return tp_fail(err, TP_E_USAGE,
                       "--seq %lld is more than the model's max_position_embeddings %lld",
                       (long long)w->seq_length, (long long)m->max_positions);
    if (w->dtype != DTYPE_F32 && w->dtype != DTYPE_BF16)
        return tp_fail(err, TP_E_USAGE, "--dtype is fp32 or bf16, not %s", dtype_name(w->dtype));
    if ((st = check_count("--seq", w->seq_length, err)) ||
        (st = check_count("--batch", w->global_batch_size, err)))
        return st;
    return w->same_bits ? same_bits_check_run(w, m, err) : TP_OK;
}

/* ---- the mesh ---- */

/* With sp, layers that are not cut work on a part of the sequence. Attention cannot, and for other
 * linear layers it is not implemented. In bf16 two values travel as one fp32. */
/* Not cut, and yet right with sp: a rank applies it to its own tokens or to its own heads. */
static bool is_whole_with_sp(enum tensor_role r)
{
    return r == ROLE_POSITIONS || r == ROLE_Q_NORM || r == ROLE_K_NORM || r == ROLE_ROUTER;
}

static tp_status check_sp(const struct workload *w, const struct model *m, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(m);

    for (int i = 0; i < plan.n; i++) {
        const struct parallel_plan_entry *e = &plan.entries[i];

        if (e->cut == CUT_REPLICATED && !is_whole_with_sp(e->role))
            return tp_fail(err, TP_E_LAYOUT,
                           "sequence parallelism (sp) needs a plan that cuts every linear layer "
                           "and has 'sequence' for norms and biases: %s (%s) is replicated",
                           e->pattern, tensor_role_name(e->role));
    }
    if (w->dtype == DTYPE_BF16 && m->hidden % 2)
        return tp_fail(err, TP_E_LAYOUT,
                       "sequence parallelism (sp) in bf16 needs an even hidden size, not %lld",
                       (long long)m->hidden);
    return TP_OK;
}

static bool cuts_columns(const struct parallel_plan *plan, enum tensor_role role)
{
    const struct parallel_plan_entry *e = parallel_plan_find(plan, role);

    return e && e->cut == CUT_COLUMN;
}

/* A rank has the columns of the norms of all queries and of all keys that it has of these. */
static tp_status check_whole_norms(const struct spec *s, const struct model *m, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    static const enum tensor_role roles[] = { ROLE_Q, ROLE_K, ROLE_Q_NORM, ROLE_K_NORM };

    if (!family_norms_all_heads(m) || s->tp == 1)
        return TP_OK;
    for (size_t i = 0; i < sizeof roles / sizeof *roles; i++)
        if (!cuts_columns(&plan, roles[i]))
            return tp_fail(err, TP_E_LAYOUT,
                           "norms of all queries and of all keys need a plan that cuts them and "
                           "attention by column: %s is not",
                           tensor_role_name(roles[i]));
    return TP_OK;
}

/* A rank has the gradients of its own heads' norms, which are summed over tp. */
static tp_status check_head_norms(const struct spec *s, const struct model *m, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    const struct parallel_plan_entry *out = parallel_plan_find(&plan, ROLE_OUT);

    if (!m->head_norms || s->tp == 1 || !out || out->cut == CUT_ROW)
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT,
                   "norms of each head's queries and keys need a plan that cuts attention: %s is "
                   "%s",
                   out->pattern, tensor_cut_name(out->cut));
}

/* A rank has a part of the gradients of its router, which are summed over tp. */
static tp_status check_experts(const struct spec *s, const struct model *m, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    const struct parallel_plan_entry *down = parallel_plan_find(&plan, ROLE_EXPERT_DOWN);

    if (s->tp == 1 || !down || down->cut == CUT_ROW)
        return TP_OK;
    return tp_fail(err, TP_E_LAYOUT,
                   "a mixture of experts needs a plan that cuts the experts: %s is %s",
                   down->pattern, tensor_cut_name(down->cut));
}

/* Context parallelism cuts each sequence into two blocks per rank. */
static tp_status check_cp(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    int64_t blocks = 2 * (int64_t)s->cp, below = w->seq_length / blocks * blocks;
    char lengths[64] = "";

    if (s->cp == 1 || w->seq_length % blocks == 0)
        return TP_OK;
    if (below)
        snprintf(lengths, sizeof lengths, "; --seq %lld would", (long long)below);
    return tp_fail(err, TP_E_LAYOUT,
                   "context parallelism (cp %d) cuts a sequence into %lld equal blocks, two per "
                   "rank, but --seq %lld is not divisible by that%s",
                   s->cp, (long long)blocks, (long long)w->seq_length, lengths);
}

tp_status workload_check_mesh(const struct workload *w, const struct spec *s, const struct model *m,
                              struct tp_err *err)
{
    tp_status st;

    if (m && s->sp && s->tp > 1 && (st = check_sp(w, m, err)))
        return st;
    if (m && ((st = check_head_norms(s, m, err)) || (st = check_whole_norms(s, m, err)) ||
              (st = check_experts(s, m, err))))
        return st;
    if ((st = check_cp(w, s, err)))
        return st;
    if (w->global_batch_size % s->dp)
        return tp_fail(err, TP_E_LAYOUT,
                       "--batch %lld is not divisible by the %d data-parallel ranks",
                       (long long)w->global_batch_size, s->dp);
    return w->same_bits ? same_bits_check_mesh(w, s, err) : TP_OK;
}

/* ---- microbatches ---- */

/* The largest divisor of n that is at most `max`; at least 1. */
static int64_t divisor_below(int64_t n, int64_t max)
{
    int64_t d = max < n ? max : n;

    while (d > 1 && n % d)
        d--;
    return d > 1 ? d : 1;
}

/* Microbatches divide a dp rank's part of the batch; interleaved pipelines run them in groups. */
static tp_status check_batch(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    int64_t batch = w->global_batch_size / s->dp, micro = workload_micro(w, s), micros;

    if (!w->global_batch_size)
        return TP_OK;
    if (micro < 1 || micro > batch || batch % micro)
        return tp_fail(err, TP_E_USAGE,
                       "--micro %lld does not divide the %lld sequences of a data-parallel rank "
                       "(--batch %lld / dp %d); --micro %lld does",
                       (long long)micro, (long long)batch, (long long)w->global_batch_size, s->dp,
                       (long long)divisor_below(batch, micro));
    micros = batch / micro;
    if (s->vpp > 1 && micros % s->pp)
        return tp_fail(err, TP_E_LAYOUT,
                       "interleaved pipelines (vpp %d) run microbatches in groups of pp (%d), but "
                       "a step has %lld, which is not divisible by that; change --batch or --micro",
                       s->vpp, s->pp, (long long)micros);
    return TP_OK;
}

/* With sp, the tp ranks share the tokens that a cp rank has of a microbatch. */
static tp_status check_rows(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    int64_t micro = workload_micro(w, s), rows = micro * w->seq_length / s->cp;
    char cp[32] = "";

    if (!s->sp || rows % s->tp == 0)
        return TP_OK;
    if (s->cp > 1)
        snprintf(cp, sizeof cp, " / cp %d", s->cp);
    return tp_fail(err, TP_E_LAYOUT,
                   "sequence parallelism (sp) splits the tokens of a microbatch over tp: %lld "
                   "(--micro %lld x --seq %lld%s) are not divisible by tp %d",
                   (long long)rows, (long long)micro, (long long)w->seq_length, cp, s->tp);
}

tp_status workload_check_micro(const struct workload *w, const struct spec *s, struct tp_err *err)
{
    int64_t micro = workload_micro(w, s);
    tp_status st;

    if ((st = check_batch(w, s, err)))
        return st;
    if (w->seq_length > 0 && micro > INT32_MAX / w->seq_length)
        return tp_fail(
            err, TP_E_USAGE,
            "a microbatch of %lld sequences of %lld tokens is too large; make --micro smaller",
            (long long)micro, (long long)w->seq_length);
    if ((st = check_rows(w, s, err)))
        return st;
    return w->same_bits ? same_bits_check_micro(w, s, err) : TP_OK;
}
