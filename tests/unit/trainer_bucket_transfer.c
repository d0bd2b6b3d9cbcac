/* tests/unit/trainer_bucket_transfer.c - buckets between dp ranks: every owner gets the sums of its
 * gradients, and every rank gets the weights of all owners. */
#include <criterion/criterion.h>

#include "tests/unit/params_support.h"

/* Under zero3 the sums of a bucket stay in the buffer until the next bucket is sent. */
static int send_grads_one_by_one(struct trainer *t, int n_ranks)
{
    const struct params *p = &t->params;
    int wrong = 0;

    for (int b = p->n_buckets - 1; b >= 0; b--) {
        const struct param_bucket *bucket = &p->buckets[b];
        const float *part;

        params_fill_grads(p, bucket, control_rank(t->parallel.control));
        bucket_transfer_send(&t->grads, b);
        part = bucket_transfer_receive(&t->grads, b);
        for (int i = bucket->first; i < bucket->first + bucket->n; i++)
            wrong += params_check_grads(&p->list[i], part + p->list[i].own.packed, n_ranks, 1);
        wrong += wrong_unless(!bucket_transfer_receive(&t->grads, b), "a bucket received twice");
    }
    return wrong;
}

/* Under zero1 all buckets are sent, as in a step. After that, all sums are where the norm and AdamW
 * read them. */
static int send_all_grads(struct trainer *t, int n_ranks)
{
    const struct params *p = &t->params;
    int wrong = wrong_unless(p->n_buckets > 2 * p->n_packs, "buffers are reused");

    for (int b = 0; b < p->n_buckets; b++)
        params_fill_grads(p, &p->buckets[b], control_rank(t->parallel.control));
    for (int b = p->n_buckets - 1; b >= 0; b--)
        bucket_transfer_send(&t->grads, b);
    bucket_transfer_finish(&t->grads);
    for (int i = 0; i < p->n; i++)
        wrong += params_check_grads(&p->list[i], params_owned(p, &p->list[i]).grad, n_ranks, 1);
    return wrong;
}

static int send_grads(struct trainer *t, void *ctx)
{
    const struct spec *s = &t->config->spec;

    (void)ctx;
    return t->params.sharded ? send_grads_one_by_one(t, s->dp) : send_all_grads(t, s->dp * s->cp);
}

static int send_weights(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    int wrong = 0;

    (void)ctx;
    params_fill_owned(p);
    bucket_transfer_start_weights(&t->weights);
    for (int b = 0; b < p->n_buckets; b++) {
        if (p->sharded) {
            bucket_transfer_send(&t->weights, b);
            bucket_transfer_receive(&t->weights, b);
        }
        wrong += params_check_weights(p, &p->buckets[b]);
    }
    return wrong;
}

Test(trainer_bucket_transfer, owners_get_the_sums_of_their_gradients)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "dp2zero1", DTYPE_F32, 0, send_grads);
    params_expect(&m, "dp3zero1", DTYPE_BF16, 0, send_grads);
    params_expect(&m, "cp2dp2zero1", DTYPE_F32, 0, send_grads);
    params_expect(&m, "dp3zero3", DTYPE_F32, 0, send_grads);
}

Test(trainer_bucket_transfer, every_rank_gets_the_weights_of_all_owners)
{
    const struct model m = params_model(2, false);

    params_expect(&m, "dp2zero1", DTYPE_F32, 0, send_weights);
    params_expect(&m, "dp3zero1", DTYPE_BF16, 0, send_weights);
    params_expect(&m, "dp2zero3", DTYPE_BF16, 0, send_weights);
    params_expect(&m, "dp3zero3", DTYPE_F32, 0, send_weights);
}
