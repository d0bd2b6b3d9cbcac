/* trainer/budget.c - see trainer/budget.h. */
#include "trainer/budget.h"

struct memory_need budget_need(const struct train_config *c, const struct model *m)
{
    const struct memory_run run = { .dtype = c->dtype,
                                    .seq = c->seq,
                                    .micro = c->micro,
                                    .micros = train_config_micros(c),
                                    .same_bits = c->same_bits,
                                    .recompute = c->recompute,
                                    .saves = c->ckpt };

    return memory_estimate(m, &c->spec, &run);
}
