/*
 * tests/unit/params_support.h - known values in a rank's parameters, for tests of the code that
 * sends them. Tests read and write device memory directly because the device is the CPU.
 */
#ifndef TESTS_UNIT_PARAMS_SUPPORT_H
#define TESTS_UNIT_PARAMS_SUPPORT_H

#include <string.h>

#include "tests/unit/trainer_ranks.h"

/* A small whole number for element i. Sums of a few such numbers are exact, also in bf16. */
static inline float params_value(int64_t i)
{
    return (float)(i * 7 % 13);
}

/* Set the weights that this rank owns (in bf16: the masters). */
static inline void params_fill_owned(const struct params *p)
{
    for (int i = 0; i < p->n; i++) {
        const struct param_owned o = params_owned(p, &p->list[i]);

        for (int64_t k = 0; k < o.n; k++)
            o.value[k] = params_value(p->list[i].own.from + k);
    }
}

/* Check that layers read the values of params_fill_owned of all owners in a bucket. Returns the
 * number of things that are wrong. */
static inline int params_check_weights(const struct params *p, const struct param_bucket *b)
{
    int wrong = 0;

    for (int i = b->first; i < b->first + b->n; i++) {
        const struct param *q = &p->list[i];
        const void *weight = params_weight(p, q);

        for (int64_t k = 0; k < q->n; k++) {
            float got;

            if (q->type == DTYPE_BF16) {
                uint32_t bits = (uint32_t)((const uint16_t *)weight)[k] << 16;

                memcpy(&got, &bits, sizeof got);
            } else {
                got = ((const float *)weight)[k];
            }
            wrong += got != params_value(q->at + k);
        }
    }
    return wrong_unless(wrong == 0, "the weights that layers read");
}

/* Set the gradients of a bucket; they differ between ranks. */
static inline void params_fill_grads(const struct params *p, const struct param_bucket *b, int rank)
{
    for (int i = b->first; i < b->first + b->n; i++)
        for (int64_t k = 0; k < p->list[i].n; k++)
            p->grad[p->list[i].at + k] = params_value(p->list[i].at + k) + (float)rank;
}

/* Check the gradients of entry q that this rank owns, at `got`. They must be the sum over ranks
 * 0 .. n_ranks - 1 of params_fill_grads, multiplied by `times`. */
static inline int params_check_grads(const struct param *q, const float *got, int n_ranks,
                                     int times)
{
    float of_ranks = (float)(n_ranks * (n_ranks - 1) / 2);
    int wrong = 0;

    for (int64_t k = 0; k < q->own.n; k++)
        wrong +=
            got[k] != (float)times * ((float)n_ranks * params_value(q->own.from + k) + of_ranks);
    return wrong_unless(wrong == 0, "a sum of gradients");
}

/* A model with several buckets, whose tokens are bytes. */
static inline struct model params_model(int kv_heads, bool tied)
{
    return (struct model){ .family = MODEL_LLAMA,
                           .layers = 2,
                           .heads = 4,
                           .kv_heads = kv_heads,
                           .head_dim = 16,
                           .hidden = 64,
                           .ffn = 4096,
                           .vocab = 256,
                           .norm_eps = 1e-5,
                           .rope_theta = 1e4,
                           .init_std = 0.02,
                           .tied = tied,
                           .max_positions = 64 };
}

static inline void params_expect_with(const struct model *m, const char *spec, enum dtype dtype,
                                      int same_bits, int (*fn)(struct trainer *t, void *ctx),
                                      void *ctx)
{
    struct train_config c = train_config_default();
    struct tp_err err = { 0 };

    c.data_path = "/usr/share/common-licenses/GPL-3";
    c.model_path = "a model";
    c.steps = 1;
    c.seq_length = 32;
    c.global_batch_size = same_bits ? 8 : 12;
    c.micro_batch_size = same_bits ? 1 : 0;
    c.same_bits = same_bits;
    c.dtype = dtype;
    c.threads = 1;
    cr_assert_eq(spec_parse(&c.spec, spec, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(train_config_check(&c, m, &err), TP_OK, "%s: %s", spec, err.msg);
    cr_expect_eq(run_trainers(&c, m, fn, ctx), 0, "%s, %s", spec, dtype_name(dtype));
}

static inline void params_expect(const struct model *m, const char *spec, enum dtype dtype,
                                 int same_bits, int (*fn)(struct trainer *t, void *ctx))
{
    params_expect_with(m, spec, dtype, same_bits, fn, NULL);
}

#endif
