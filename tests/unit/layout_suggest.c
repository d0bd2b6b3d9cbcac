/* tests/unit/layout_suggest.c - layouts that are suggested work, and the nearest come first. */
#include "layout/suggest.h"

#include <criterion/criterion.h>

#include "tests/unit/random_model.h"

/* A random spec of small degrees, which rarely fits a model. */
static struct spec random_degrees(struct rng *r)
{
    struct spec s = spec_default();

    s.tp = (int)rng_int(r, 1, 12);
    s.pp = (int)rng_int(r, 1, 9);
    s.vpp = (int)rng_int(r, 1, 3);
    s.dp = (int)rng_int(r, 1, 6);
    s.cp = (int)rng_int(r, 1, 3);
    s.sp = rng_int(r, 0, 1) == 1;
    s.zero = (int)(int[]){ 0, 1, 3 }[rng_int(r, 0, 2)];
    return s;
}

static bool is_same(const struct spec *a, const struct spec *b)
{
    return a->tp == b->tp && a->pp == b->pp && a->vpp == b->vpp && a->dp == b->dp &&
           a->cp == b->cp && a->sp == b->sp && a->zero == b->zero;
}

/* A requirement of the caller: an even number of ranks and few replicas. */
static bool is_even(void *ctx, const struct spec *s)
{
    int *calls = ctx;

    ++*calls;
    return spec_world(s) % 2 == 0 && s->dp <= 4;
}

Test(suggest, every_suggestion_works)
{
    struct rng r = rng_start("suggest/works");
    int suggested = 0, wrong = 0;

    for (int i = 0; i < 400; i++) {
        struct model m = random_model(&r);
        struct spec asked = random_degrees(&r), found[SUGGEST_MAX];
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct suggest q = { .asked = &asked, .n_layers = m.layers };
        struct tensor *tensors;
        struct layout l;
        int n_tensors, calls = 0, n;
        bool has_requirement = rng_int(&r, 0, 1);

        cr_assert_eq(model_params(&tensors, &n_tensors, &m, DTYPE_F32, &arena, &err), TP_OK);
        cr_assert_eq(model_kinds(&q.kinds, &m, &arena, &err), TP_OK);
        q.fits = has_requirement ? is_even : NULL;
        q.ctx = &calls;
        n = suggest_specs(found, &q);
        cr_assert_leq(calls, 1 << 14);
        wrong += layout_make(&l, &asked, m.layers, tensors, n_tensors, &arena, &err) != TP_OK;
        cr_assert(n > 0 || has_requirement, "one rank always works");
        for (int k = 0; k < n; k++) {
            cr_assert(!is_same(&found[k], &asked));
            cr_assert_eq(layout_make(&l, &found[k], m.layers, tensors, n_tensors, &arena, &err),
                         TP_OK, "%s", err.msg);
            cr_assert(!has_requirement || is_even(&calls, &found[k]));
            for (int j = 0; j < k; j++)
                cr_assert(!is_same(&found[k], &found[j]));
        }
        suggested += n;
        arena_free(&arena);
    }
    cr_assert(suggested > 600 && wrong > 200, "%d suggestions, %d wrong", suggested, wrong);
}

/* A model of 40 layers and 40 heads. */
Test(suggest, the_nearest_come_first_and_one_has_the_same_number_of_ranks)
{
    static const struct {
        const char *asked, *nearest;
    } cases[] = {
        { "tp16", "tp20, tp10, tp8dp2" },
        { "tp8pp41", "tp8pp40, tp8pp39, tp8pp32" },
        { "tp3", "tp2, tp4, tp1dp3" },
        { "tp4vpp2", "tp4, tp5, tp2" },
    };
    struct model m = { .heads = 40,
                       .kv_heads = 40,
                       .head_dim = 128,
                       .hidden = 5120,
                       .ffn = 13840,
                       .vocab = 32000,
                       .layers = 40 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor_kinds kinds;

    cr_assert_eq(model_kinds(&kinds, &m, &arena, &err), TP_OK);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spec asked, found[SUGGEST_MAX];
        char text[SUGGEST_TEXT_MAX];
        int n;

        cr_assert_eq(spec_parse(&asked, cases[i].asked, &err), TP_OK);
        n = suggest_specs(
            found, &(struct suggest){ .asked = &asked, .n_layers = m.layers, .kinds = kinds });
        cr_expect_str_eq(suggest_text(text, found, n, 0), cases[i].nearest, "%s: %s",
                         cases[i].asked, text);
    }
    arena_free(&arena);
}
