/* trainer/config.c - see trainer/config.h. */
#include "trainer/config.h"

#include <inttypes.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "layout/plan.h"
#include "trainer/same_bits.h"

/* Sequences a step and tokens a sequence: far above any run, far below overflow of their product
 * with a row of any buffer. */
enum { COUNT_MAX = 1 << 24 };

struct train_config train_config_default(void)
{
    return (struct train_config){
        .spec = spec_default(),
        .seq = 64,
        .batch = 8,
        .seed = 1234,
        .dtype = DTYPE_F32,
        .opt = { .lr = 1e-3,
                 .min_lr = 1e-4,
                 .beta1 = 0.9,
                 .beta2 = 0.95,
                 .eps = 1e-8,
                 .weight_decay = 0.1,
                 .clip = 1.0,
                 .warmup = 5 },
    };
}

int64_t train_config_micros(const struct train_config *c)
{
    return c->batch / c->spec.dp / c->micro;
}

int64_t train_config_sequence(const struct train_config *c, int dp_rank, int64_t micro)
{
    if (c->same_bits && c->spec.zero == 3)
        return (micro * c->spec.dp + dp_rank) * c->micro;
    return c->batch / c->spec.dp * dp_rank + micro * c->micro;
}

static tp_status check_optimizer(const struct optimizer_options *o, struct tp_err *err)
{
    if (o->lr < 0 || o->min_lr < 0)
        return tp_fail(err, TP_E_USAGE, "--lr %g and --min-lr %g must not be negative", o->lr,
                       o->min_lr);
    if (!(o->beta1 >= 0 && o->beta1 < 1) || !(o->beta2 >= 0 && o->beta2 < 1))
        return tp_fail(err, TP_E_USAGE, "--beta1 %g and --beta2 %g must lie in [0, 1)", o->beta1,
                       o->beta2);
    if (!(o->eps > 0))
        return tp_fail(err, TP_E_USAGE, "--eps %g must be more than 0", o->eps);
    if (o->weight_decay < 0 || o->clip < 0)
        return tp_fail(err, TP_E_USAGE, "--weight-decay %g and --clip %g must not be negative",
                       o->weight_decay, o->clip);
    return TP_OK;
}

/* Context parallelism cuts every sequence into two blocks a rank. */
static tp_status check_cp(const struct train_config *c, struct tp_err *err)
{
    int64_t blocks = 2 * (int64_t)c->spec.cp, below = c->seq / blocks * blocks;
    char lengths[64] = "";

    if (c->spec.cp == 1 || c->seq % blocks == 0)
        return TP_OK;
    if (below)
        snprintf(lengths, sizeof lengths, "; --seq %" PRId64 " would", below);
    return tp_fail(err, TP_E_LAYOUT,
                   "context parallelism (cp %d) cuts a sequence into %" PRId64
                   " equal blocks, two a rank, and --seq %" PRId64 " does not divide%s",
                   c->spec.cp, blocks, c->seq, lengths);
}

/* Under sp the tokens of a microbatch that a cp rank has are dealt to its tp ranks. */
static tp_status check_rows(const struct train_config *c, struct tp_err *err)
{
    int64_t rows = c->micro * c->seq / c->spec.cp;
    char cp[32] = "";

    if (!c->spec.sp || rows % c->spec.tp == 0)
        return TP_OK;
    if (c->spec.cp > 1)
        snprintf(cp, sizeof cp, " / cp %d", c->spec.cp);
    return tp_fail(err, TP_E_LAYOUT,
                   "sequence parallelism (sp) deals the tokens of a microbatch to tp ranks: "
                   "%" PRId64 " (--micro %" PRId64 " x --seq %" PRId64 "%s) do not divide by tp %d",
                   rows, c->micro, c->seq, cp, c->spec.tp);
}

/* The largest divisor of n that is at most `most`, and at least 1. */
static int64_t divisor_below(int64_t n, int64_t most)
{
    int64_t d = most < n ? most : n;

    while (d > 1 && n % d)
        d--;
    return d > 1 ? d : 1;
}

/* The batch is dealt evenly over dp, and a rank's share evenly into microbatches. */
static tp_status check_batch(struct train_config *c, struct tp_err *err)
{
    int64_t share;

    if (c->seq < 1 || c->seq > COUNT_MAX)
        return tp_fail(err, TP_E_USAGE, "--seq %" PRId64 " must lie between 1 and %d", c->seq,
                       COUNT_MAX);
    if (c->batch < 1 || c->batch > COUNT_MAX)
        return tp_fail(err, TP_E_USAGE, "--batch %" PRId64 " must lie between 1 and %d", c->batch,
                       COUNT_MAX);
    if (c->batch % c->spec.dp)
        return tp_fail(err, TP_E_LAYOUT,
                       "--batch %" PRId64 " cannot be dealt to %d data-parallel ranks evenly",
                       c->batch, c->spec.dp);
    share = c->batch / c->spec.dp;
    if (c->micro == 0)
        c->micro = c->same_bits ? 1 : share;
    if (c->micro < 1 || c->micro > share || share % c->micro)
        return tp_fail(err, TP_E_USAGE,
                       "--micro %" PRId64 " does not divide the %" PRId64
                       " sequences of a data-parallel rank (--batch %" PRId64
                       " over dp %d); --micro %" PRId64 " does",
                       c->micro, share, c->batch, c->spec.dp, divisor_below(share, c->micro));
    if (c->spec.vpp > 1 && share / c->micro % c->spec.pp)
        return tp_fail(err, TP_E_LAYOUT,
                       "interleaved pipelines (vpp %d) run microbatches in groups of pp: the "
                       "%" PRId64
                       " microbatches of a step are no multiple of %d; change --batch or "
                       "--micro",
                       c->spec.vpp, share / c->micro, c->spec.pp);
    if (c->micro * c->seq > INT32_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "a microbatch of %" PRId64 " sequences of %" PRId64
                       " tokens is too large; make --micro smaller",
                       c->micro, c->seq);
    return check_rows(c, err);
}

/* Under sp whatever is not cut works on a part of the sequence, which attention cannot; the others
 * could, but nobody has asked. In bf16 pairs of halves travel. */
static tp_status check_sp(const struct train_config *c, const struct model *m, struct tp_err *err)
{
    const struct plan *plan = m->plan ? m->plan : plan_builtin(m->arch);

    if (!c->spec.sp || c->spec.tp == 1)
        return TP_OK;
    for (int i = 0; i < plan->n; i++) {
        const struct plan_entry *e = &plan->entries[i];

        if (e->cut == CUT_REPLICATED && e->role != ROLE_POSITIONS)
            return tp_fail(err, TP_E_LAYOUT,
                           "sequence parallelism (sp) needs a plan that cuts every product and has "
                           "sequence for norms and biases: %s (%s) is replicated",
                           e->pattern, role_name(e->role));
    }
    if (c->dtype == DTYPE_BF16 && m->hidden % 2)
        return tp_fail(err, TP_E_LAYOUT,
                       "sequence parallelism (sp) in bf16 needs an even hidden size, not %" PRId64,
                       m->hidden);
    return TP_OK;
}

tp_status train_config_check(struct train_config *c, const struct model *m, struct tp_err *err)
{
    tp_status st;

    if (c->steps < 1)
        return tp_fail(err, TP_E_USAGE, "--steps must be at least 1: the length of the whole run");
    if (c->seq > m->max_positions)
        return tp_fail(err, TP_E_USAGE,
                       "--seq %" PRId64
                       " is more than the model's max_position_embeddings %" PRId64,
                       c->seq, m->max_positions);
    if (c->dtype != DTYPE_F32 && c->dtype != DTYPE_BF16)
        return tp_fail(err, TP_E_USAGE, "--dtype is fp32 or bf16, not %s", dtype_name(c->dtype));
    if (!c->ckpt && (c->resume != RESUME_NO || c->save_every || c->exit_step))
        return tp_fail(err, TP_E_USAGE,
                       "--resume, --save-every and --exit-step need --ckpt ROOT: where checkpoints "
                       "are");
    if ((st = check_optimizer(&c->opt, err)))
        return st;
    if ((st = check_sp(c, m, err)))
        return st;
    if ((st = check_cp(c, err)))
        return st;
    if ((st = check_batch(c, err)))
        return st;
    return c->same_bits ? same_bits_check(c, m, err) : TP_OK;
}
