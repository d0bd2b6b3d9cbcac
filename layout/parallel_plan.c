/* layout/parallel_plan.c - see layout/parallel_plan.h. */
#include "layout/parallel_plan.h"

#include "layout/family.h"

struct parallel_plan parallel_plan_of(const struct model *m)
{
    struct parallel_plan p = { 0 };

    if (m->plan)
        return *m->plan;
    for (const struct family_tensor *t = family_of(m)->tensors; t->role != ROLE_NONE; t++)
        if (t->role == ROLE_HEAD || family_tensor_is_in(t, m))
            p.entries[p.n++] = (struct parallel_plan_entry){ t->role, t->name, t->cut };
    return p;
}

const struct parallel_plan_entry *parallel_plan_find(const struct parallel_plan *p,
                                                     enum tensor_role r)
{
    for (int i = 0; i < p->n; i++)
        if (p->entries[i].role == r)
            return &p->entries[i];
    return NULL;
}

const char *parallel_plan_end_name(const struct model *m, enum tensor_role role)
{
    const struct parallel_plan plan = parallel_plan_of(m);
    const struct parallel_plan_entry *e = parallel_plan_find(&plan, role);

    return e ? e->pattern : "lm_head.weight";
}
