/* trainer/memory_budget.c - see trainer/memory_budget.h. */
#include "trainer/memory_budget.h"

#include <stddef.h>

struct memory_need budget_need(const struct train_config *c, const struct model *m)
{
    const struct workload w = train_config_work(c);

    return memory_estimate(m, &c->spec, &w, c->ckpt != NULL);
}
