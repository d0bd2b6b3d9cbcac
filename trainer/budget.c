/* trainer/budget.c - see trainer/budget.h. */
#include "trainer/budget.h"

static int flags_of(const struct train_config *c)
{
    return (c->ckpt ? MEMORY_SAVES : 0) | (c->recompute ? MEMORY_RECOMPUTES : 0) |
           (c->recompute_attention ? MEMORY_RECOMPUTES_ATTENTION : 0);
}

struct memory_need budget_need(const struct train_config *c, const struct model *m)
{
    const struct memory_run run = { .dtype = c->dtype,
                                    .seq = c->seq,
                                    .micro = c->micro,
                                    .micros = train_config_micros(c),
                                    .same_bits = c->same_bits,
                                    .flags = flags_of(c) };

    return memory_estimate(m, &c->spec, &run);
}
