/* tests/unit/trainer_optimizer.c - AdamW updates all parameters, and those together that need not
 * be sent one after the other. */
#include <criterion/criterion.h>

#include "tests/unit/params_support.h"
#include "trainer/optimizer.h"

/* Updates that a rank has queued, and their tensors. */
static int updates, tensors;

static void count_update(struct device_queue *q, const struct adamw_step *a)
{
    updates++;
    tensors += a->n_tensors;
    kernels_cpu.adamw_step(q, a);
}

/* With a rate of 0 weights stay as they are, and those that layers read become their values. *ctx:
 * whether all buckets are sent, so that each is updated alone. */
static int check_update(struct trainer *t, void *ctx)
{
    const bool *sends = ctx;
    struct kernel_ops ops = kernels_cpu;
    struct step_optimizer n = { .scale = 1, .rates = { 0, 0, 1 } };
    struct params *p = &t->params;
    struct tp_err err = { 0 };
    int wrong = 0;

    params_fill_owned(p);
    for (int i = 0; i < p->n; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);

        memset(o.grad, 0, (size_t)o.n * sizeof *o.grad);
        memset(o.exp_avg, 0, (size_t)o.n * sizeof *o.exp_avg);
        memset(o.exp_avg_sq, 0, (size_t)o.n * sizeof *o.exp_avg_sq);
    }
    ops.adamw_step = count_update;
    p->k.ops = &ops;
    optimizer_update(&n, &t->config->opt, &t->weights);
    p->k.ops = &kernels_cpu;
    wrong += wrong_unless(trainer_sync(t, &err) == TP_OK, err.msg);
    wrong += wrong_unless(p->n_buckets > 2, "a model with several buckets");
    wrong += wrong_unless(updates == (*sends ? p->n_buckets : 1), "the number of updates");
    wrong += wrong_unless(tensors == p->n, "the number of tensors that are updated");
    for (int b = 0; b < p->n_buckets && !p->sharded; b++)
        wrong += params_check_weights(p, &p->buckets[b]);
    return wrong;
}

static void expect_updates(const char *spec, bool sends)
{
    const struct model m = params_model(2, false);

    params_expect_with(&m, spec, DTYPE_F32, 0, check_update, &sends);
    params_expect_with(&m, spec, DTYPE_BF16, 0, check_update, &sends);
}

Test(trainer_optimizer, one_update_has_all_parameters_that_are_not_sent)
{
    expect_updates("tp1", false);
    expect_updates("dp2", false);
    expect_updates("dp2zero3", false);
}

Test(trainer_optimizer, a_bucket_is_sent_after_its_update)
{
    expect_updates("dp2zero1", true);
    expect_updates("tp2dp2zero1", true);
}
