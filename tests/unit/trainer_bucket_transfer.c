/* tests/unit/trainer_bucket_transfer.c - buckets between dp ranks: every owner gets the sums of its
 * gradients, and every rank gets the weights of all owners. */
#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/trainer_ranks.h"

static const struct model MODEL = { .family = MODEL_LLAMA,
                                    .layers = 2,
                                    .heads = 4,
                                    .kv_heads = 2,
                                    .head_dim = 16,
                                    .hidden = 64,
                                    .ffn = 4096, /* several buckets */
                                    .vocab = 256,
                                    .norm_eps = 1e-5,
                                    .rope_theta = 1e4,
                                    .init_std = 0.02,
                                    .max_positions = 64 };

/* A small whole number for element i of the whole buffers: sums of a few are exact, in bf16 too. */
static float value_of(int64_t i)
{
    return (float)(i * 7 % 13);
}

static void fill_grads(const struct params *p, const struct bucket *b, int rank)
{
    for (int i = b->first; i < b->first + b->n; i++)
        for (int64_t k = 0; k < p->list[i].n; k++)
            p->grad[p->list[i].at + k] = value_of(p->list[i].at + k) + (float)rank;
}

/* The gradients of entry q that this rank owns, at `got`, when `ranks` ranks gave theirs. */
static int check_grads(const struct param *q, const float *got, int ranks)
{
    float of_ranks = (float)(ranks * (ranks - 1) / 2);
    int wrong = 0;

    for (int64_t k = 0; k < q->own.n; k++)
        wrong += got[k] != (float)ranks * value_of(q->own.from + k) + of_ranks;
    return wrong_unless(wrong == 0, "a sum of gradients");
}

/* Under zero3 the sums are in the buffer until the next bucket. */
static int send_grads_one_by_one(struct trainer *t, int ranks)
{
    const struct params *p = &t->params;
    int wrong = 0;

    for (int b = p->n_buckets - 1; b >= 0; b--) {
        const struct bucket *bucket = &p->buckets[b];
        const float *part;

        fill_grads(p, bucket, control_rank(t->parallel.control));
        bucket_transfer_send(&t->grads, b);
        part = bucket_transfer_receive(&t->grads, b);
        for (int i = bucket->first; i < bucket->first + bucket->n; i++)
            wrong += check_grads(&p->list[i], part + p->list[i].own.packed, ranks);
        wrong += wrong_unless(!bucket_transfer_receive(&t->grads, b), "a bucket received twice");
    }
    return wrong;
}

/* Under zero1 all are sent, as in a step, and then all are where the norm and AdamW read them. */
static int send_all_grads(struct trainer *t, int ranks)
{
    const struct params *p = &t->params;
    int wrong = wrong_unless(p->n_buckets > 2 * p->n_packs, "buffers are used again");

    for (int b = 0; b < p->n_buckets; b++)
        fill_grads(p, &p->buckets[b], control_rank(t->parallel.control));
    for (int b = p->n_buckets - 1; b >= 0; b--)
        bucket_transfer_send(&t->grads, b);
    bucket_transfer_finish(&t->grads);
    for (int i = 0; i < p->n; i++)
        wrong += check_grads(&p->list[i], params_owned(p, &p->list[i]).grad, ranks);
    return wrong;
}

static int send_grads(struct trainer *t, void *ctx)
{
    const struct spec *s = &t->config->spec;

    (void)ctx;
    return t->params.sharded ? send_grads_one_by_one(t, s->dp) : send_all_grads(t, s->dp * s->cp);
}

static int check_weights(const struct params *p, const struct bucket *b)
{
    int wrong = 0;

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const void *weight = params_weight(p, q);

        for (int64_t k = 0; k < q->n; k++) {
            float want = value_of(q->at + k), got;
            uint32_t bits;

            if (q->type == DTYPE_BF16) {
                bits = (uint32_t)((const uint16_t *)weight)[k] << 16;
                memcpy(&got, &bits, sizeof got);
            } else {
                got = ((const float *)weight)[k];
            }
            wrong += got != want;
        }
    }
    return wrong_unless(wrong == 0, "the weights that layers read");
}

static int send_weights(struct trainer *t, void *ctx)
{
    const struct params *p = &t->params;
    int wrong = 0;

    (void)ctx;
    for (int i = 0; i < p->n; i++) {
        const struct owned o = params_owned(p, &p->list[i]);

        for (int64_t k = 0; k < o.n; k++)
            o.value[k] = value_of(p->list[i].own.from + k);
    }
    bucket_transfer_start_weights(&t->weights);
    for (int b = 0; b < p->n_buckets; b++) {
        if (p->sharded) {
            bucket_transfer_send(&t->weights, b);
            bucket_transfer_receive(&t->weights, b);
        }
        wrong += check_weights(p, &p->buckets[b]);
    }
    return wrong;
}

static void expect(const char *spec, enum dtype dtype, int (*fn)(struct trainer *t, void *ctx))
{
    struct train_config c = train_config_default();
    struct tp_err err = { 0 };

    c.data_path = "/usr/share/common-licenses/GPL-3";
    c.model_path = "a model";
    c.steps = 1;
    c.seq_length = 32;
    c.global_batch_size = 12;
    c.dtype = dtype;
    c.threads = 1;
    cr_assert_eq(spec_parse(&c.spec, spec, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(train_config_check(&c, &MODEL, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(run_trainers(&c, &MODEL, fn, NULL), 0, "%s, %s", spec, dtype_name(dtype));
}

Test(trainer_bucket_transfer, owners_get_the_sums_of_their_gradients)
{
    expect("dp2zero1", DTYPE_F32, send_grads);
    expect("dp3zero1", DTYPE_BF16, send_grads);
    expect("cp2dp2zero1", DTYPE_F32, send_grads);
    expect("dp3zero3", DTYPE_F32, send_grads);
}

Test(trainer_bucket_transfer, every_rank_gets_the_weights_of_all_owners)
{
    expect("dp2zero1", DTYPE_F32, send_weights);
    expect("dp3zero1", DTYPE_BF16, send_weights);
    expect("dp2zero3", DTYPE_BF16, send_weights);
    expect("dp3zero3", DTYPE_F32, send_weights);
}
