/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>

#include "trainer/same_bits/same_bits.h"

/* The sum of squares of the gradients that this rank counts: first of each entry, then of all. */
static void own_squares(double *sum, const struct params *p)
{
    struct grad_norm_tensor tensors[GRAD_NORM_TOGETHER];
    struct grad_norm_squares a = { p->squares, tensors, 0 };
    int n = 0;

    for (int i = 0; i < p->n; i++) {
        if (!p->list[i].counted)
            continue;
        n++;
        tensors[a.n_tensors++] =
            (struct grad_norm_tensor){ params_owned(p, &p->list[i]).grad, p->list[i].own.n };
        if (a.n_tensors == GRAD_NORM_TOGETHER) {
            p->k.ops->grad_norm_squares(p->k.queue, &a);
            a.n_tensors = 0;
            a.out = p->squares + n;
        }
    }
    p->k.ops->grad_norm_squares(p->k.queue, &a);
    p->k.ops->sum_doubles(p->k.queue, &(struct sum_doubles){ sum, p->squares, 1, n });
}

void optimizer_norm(struct step_optimizer *n, const struct params *p,
                    const struct process_groups *groups, double clip)
{
    struct comm *holders = groups->ep        ? groups->world
                           : p->n_owners > 1 ? groups->pp_dp_tp
                                             : groups->model;

    if (p->same_bits) {
        same_bits_squares(&n->squares, p, groups);
    } else {
        own_squares(&n->squares, p);
        if (comm_size(holders) > 1)
            comm_all_reduce(holders, p->k.queue, &n->squares, 1, DTYPE_F64, COMM_SUM);
    }
    p->k.ops->grad_norm_clip(p->k.queue,
                             &(struct grad_norm_clip){ &n->squares, clip, &n->norm, &n->scale });
}

/* Tensors that are updated together, for a GPU by one kernel. */
struct update {
    struct adamw_step step; /* of tensors[step.n_tensors] */
    struct adamw_tensor tensors[ADAMW_TOGETHER];
};

static void run_update(const struct params *p, struct update *u)
{
    if (u->step.n_tensors > 0)
        p->k.ops->adamw_step(p->k.queue, &u->step);
    u->step.n_tensors = 0;
}

static void add_bucket(const struct params *p, const struct param_bucket *b, struct update *u)
{
    for (const struct param *q = p->list + b->first; q < p->list + b->first + b->n; q++) {
        const struct param_owned x = params_owned(p, q);

        if (u->step.n_tensors == ADAMW_TOGETHER)
            run_update(p, u);
        u->tensors[u->step.n_tensors++] = (struct adamw_tensor){ .p = x.value,
                                                                 .m = x.exp_avg,
                                                                 .v = x.exp_avg_sq,
                                                                 .grad = x.grad,
                                                                 .p_bf16 = x.value_bf16,
                                                                 .n = x.n,
                                                                 .decays = q->decay };
    }
}

struct adamw_rates optimizer_rates(const struct train_optimizer *o, double lr, int64_t age)
{
    double t = (double)(age + 1), correction1 = 1 - pow(o->beta1, t);
    double correction2 = 1 - pow(o->beta2, t);

    return (struct adamw_rates){ .step = (float)(lr / correction1),
                                 .root = (float)(1.0 / sqrt(correction2)),
                                 .decay = (float)(1.0 - lr * o->weight_decay) };
}

void optimizer_update(const struct step_optimizer *n, const struct train_optimizer *o,
                      struct bucket_transfer *weights)
{
    const struct params *p = weights->params;
    struct update u;

    u.step = (struct adamw_step){ .tensors = u.tensors,
                                  .grad_scale = &n->scale,
                                  .rates = &n->rates,
                                  .options = { o->beta1, o->beta2, o->eps } };
    for (int i = 0; i < p->n_buckets; i++) {
        add_bucket(p, &p->buckets[i], &u);
        if (!p->sharded && params_sends(p, &p->buckets[i])) {
            run_update(p, &u);
            bucket_transfer_send(weights, i); /* it is sent while the next one is updated */
        }
    }
    run_update(p, &u);
    if (p->n_owners > 1 && !p->sharded)
        bucket_transfer_finish(weights);
}
