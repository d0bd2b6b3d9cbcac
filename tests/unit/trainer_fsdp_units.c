/* tests/unit/trainer_fsdp_units.c - zero3: a step gathers every unit when it is needed, and each
 * microbatch's gradients are added to their owners' sums. */
#include <criterion/criterion.h>

#include "tests/unit/params_support.h"

/* Gather the units of two steps, in order. */
static int gather(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    const struct fsdp_units *u = &t->units;
    int wrong = wrong_unless(u->n_visits >= p->n_buckets, "every unit is gathered");

    (void)ctx;
    params_fill_owned(p);
    params_round(p);
    for (int step = 0; step < 2; step++) {
        fsdp_units_begin(&t->units);
        for (int i = 0; i < u->n_visits; i++) {
            wrong += wrong_unless(i == 0 || u->visits[i] != u->visits[i - 1], "gathered twice");
            fsdp_units_need(&t->units, u->visits[i]);
            fsdp_units_need(&t->units, u->visits[i]); /* it is already gathered */
            wrong += params_check_weights(p, &p->buckets[u->visits[i]]);
        }
        fsdp_units_end(&t->units);
    }
    return wrong;
}

/* Reduce the gradients of two microbatches. */
static int reduce(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    int wrong = 0;

    (void)ctx;
    fsdp_units_begin(&t->units);
    for (int micro = 0; micro < 2; micro++)
        for (int unit = p->n_buckets - 1; unit >= 0; unit--) {
            params_fill_grads(p, &p->buckets[unit], control_rank(t->parallel.control));
            fsdp_units_reduce(&t->units, unit, FSDP_UNITS_LAYER, micro);
        }
    fsdp_units_end(&t->units);
    for (int i = 0; i < p->n; i++)
        wrong += params_check_grads(&p->list[i], params_owned(p, &p->list[i]).grad,
                                    t->config->spec.dp, 2);
    return wrong;
}

/* Before a pass, gradients that kernels only add to are zero, and no others are changed. */
static int clear(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    int wrong = 0;

    (void)ctx;
    for (int unit = 0; unit < p->n_buckets; unit++) {
        const struct param_bucket *b = &p->buckets[unit];

        params_fill_grads(p, b, 1);
        fsdp_units_clear(&t->units, unit);
        for (int i = b->first; i < b->first + b->n; i++)
            for (int64_t k = 0; k < p->list[i].n; k++) {
                float want = p->list[i].summed ? 0 : params_value(p->list[i].at + k) + 1;

                wrong += p->grad[p->list[i].at + k] != want;
            }
    }
    return wrong_unless(wrong == 0, "gradients before a pass");
}

Test(trainer_fsdp_units, a_step_gathers_the_units_in_its_order)
{
    const struct model m = params_model(2, false), tied = params_model(2, true);

    params_expect(&m, "dp2zero3", DTYPE_F32, 0, gather);
    params_expect(&m, "dp3zero3", DTYPE_BF16, 0, gather);
    params_expect(&tied, "dp2zero3", DTYPE_F32, 0, gather);
    params_expect(&m, "pp2dp2zero3", DTYPE_F32, 0, gather);
}

Test(trainer_fsdp_units, gradients_of_microbatches_are_added)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "dp2zero3", DTYPE_F32, 0, reduce);
    params_expect(&m, "dp3zero3", DTYPE_BF16, 0, reduce);
}

Test(trainer_fsdp_units, only_gradients_that_kernels_add_to_are_cleared)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "dp2zero3", DTYPE_F32, 0, clear);
}
