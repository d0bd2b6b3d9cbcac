/*
 * tests/unit/random_model.h - random models and layouts that fit them, for property tests.
 */
#ifndef TESTS_UNIT_RANDOM_MODEL_H
#define TESTS_UNIT_RANDOM_MODEL_H

#include <criterion/criterion.h>

#include "layout/layout.h"
#include "layout/model_tensors.h"
#include "tests/unit/random.h"

/* Small models with the proportions of real ones. */
static inline struct model small_llama(void)
{
    return (struct model){ .family = MODEL_LLAMA,
                           .heads = 8,
                           .kv_heads = 2,
                           .head_dim = 16,
                           .hidden = 128,
                           .ffn = 344,
                           .vocab = 260,
                           .layers = 6 };
}

static inline struct model small_gpt2(void)
{
    return (struct model){ .family = MODEL_GPT2,
                           .heads = 8,
                           .kv_heads = 8,
                           .head_dim = 16,
                           .hidden = 128,
                           .ffn = 512,
                           .vocab = 260,
                           .layers = 3,
                           .max_positions = 64,
                           .tied = true };
}

/* A Llama or a GPT-2. Most degrees up to 8 divide its dimensions. The vocabulary is any number. */
static inline struct model random_model(struct rng *r)
{
    struct model m = { .family = rng_int(r, 0, 2) ? MODEL_LLAMA : MODEL_GPT2 };

    m.heads = 1 << rng_int(r, 0, 3);
    m.kv_heads = m.heads >> rng_int(r, 0, 3);
    if (m.kv_heads < 1)
        m.kv_heads = 1;
    m.head_dim = 2 * rng_int(r, 1, 4);
    m.hidden = rng_int(r, 1, 24);
    m.ffn = 8 * rng_int(r, 1, 4);
    m.vocab = rng_int(r, 1, 40);
    m.layers = (int)rng_int(r, 1, 7);
    m.tied = rng_int(r, 0, 1) == 1;
    m.norm_eps = 1e-5;
    m.rope_theta = 10000;
    m.init_std = 0.02;
    m.max_positions = rng_int(r, 1, 64);
    if (m.family == MODEL_GPT2) {
        m.kv_heads = m.heads;
        m.hidden = m.heads * m.head_dim;
        m.tied = true;
    }
    return m;
}

/* A spec that fits the model and may use every axis. */
static inline struct spec random_spec(struct rng *r, const struct model *m)
{
    struct spec s = spec_default();
    int tp_max = m->heads < 8 ? m->heads : 8;

    s.tp = 1 << rng_int(r, 0, 3);
    while (s.tp > tp_max)
        s.tp /= 2;
    s.pp = (int)rng_int(r, 1, m->layers);
    if (s.pp > 1 && m->layers / s.pp > 1)
        s.vpp = (int)rng_int(r, 1, m->layers / s.pp);
    s.dp = (int)rng_int(r, 1, 3);
    s.cp = (int)rng_int(r, 1, 2);
    s.sp = rng_int(r, 0, 1) == 1;
    s.zero = (int)(int[]){ 0, 1, 3 }[rng_int(r, 0, 2)];
    return s;
}

/* The layout of the state that bf16 training of the model saves. */
static inline struct layout bf16_layout(const struct model *m, const struct spec *s,
                                        struct arena *arena)
{
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    int n;

    cr_assert_eq(model_state(&tensors, &n, m, DTYPE_BF16, arena, &err), TP_OK);
    cr_assert_eq(layout_make(&l, s, m->layers, tensors, n, arena, &err), TP_OK, "%s", err.msg);
    return l;
}

#endif
