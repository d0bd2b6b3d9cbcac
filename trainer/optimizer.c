/* trainer/optimizer.c - see trainer/optimizer.h. */
#include "trainer/optimizer.h"

#include <math.h>

#include "trainer/same_bits/same_bits.h"

/* The sum of squares of the gradients that this rank counts: first of each entry, then of all. */
static void own_squares(double *sum, const struct params *p)
{
    enum { TOGETHER = 128 };
    struct grad_norm_tensor tensors[TOGETHER];
    struct grad_norm_squares a = { p->squares, tensors, 0 };
    int n = 0;

    for (int i = 0; i < p->n; i++) {
        if (!p->list[i].counted)
            continue;
        n++;
        tensors[a.n_tensors++] =
            (struct grad_norm_tensor){ params_owned(p, &p->list[i]).grad, p->list[i].own.n };
        if (a.n_tensors == TOGETHER) {
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

/* all: what is the same for all buckets, without tensors. */
static void update_bucket(const struct params *p, const struct param_bucket *b,
                          const struct adamw_step *all)
{
    enum { TOGETHER = 64 };
    struct adamw_tensor tensors[TOGETHER];

    for (int first = 0; first < b->n; first += TOGETHER) {
        int n = b->n - first < TOGETHER ? b->n - first : TOGETHER;

        for (int i = 0; i < n; i++) {
            const struct param *entry = &p->list[b->first + first + i];
            const struct param_owned x = params_owned(p, entry);

            tensors[i] = (struct adamw_tensor){ .p = x.value,
                                                .m = x.exp_avg,
                                                .v = x.exp_avg_sq,
                                                .grad = x.grad,
                                                .p_bf16 = x.value_bf16,
                                                .n = x.n,
                                                .decays = entry->decay };
        }
        p->k.ops->adamw_step(p->k.queue, &(struct adamw_step){ tensors, n, all->grad_scale,
                                                               all->rates, all->options });
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
    const struct adamw_step all = { .grad_scale = &n->scale,
                                    .rates = &n->rates,
                                    .options = { o->beta1, o->beta2, o->eps } };

    for (int i = 0; i < p->n_buckets; i++) {
        update_bucket(p, &p->buckets[i], &all);
        if (!p->sharded && params_sends(p, &p->buckets[i]))
            bucket_transfer_send(weights, i); /* it is sent while the next one is updated */
    }
    if (p->n_owners > 1 && !p->sharded)
        bucket_transfer_finish(weights);
}
