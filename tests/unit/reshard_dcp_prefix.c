/* tests/unit/reshard_dcp_prefix.c - what a program puts in front of the names of weights.
 *
 * covers: reshard/formats/torch/dcp_prefix reshard/formats/torch/model_key
 */
#include <criterion/criterion.h>
#include <string.h>

#include "reshard/formats/torch/dcp_prefix.h"

enum { NAMES_MAX = 8 };

/* The prefix of these weights, when the optimizer has these names for parameters. */
static void expect(const char *want, const char *const *weights, const char *const *moments)
{
    const char *w[NAMES_MAX], *m[NAMES_MAX], *found = NULL;
    struct dcp_prefix_names names = { .weights = w, .moments = m };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };

    for (; weights[names.n_weights]; names.n_weights++)
        w[names.n_weights] = weights[names.n_weights];
    for (; moments[names.n_moments]; names.n_moments++)
        m[names.n_moments] = moments[names.n_moments];
    cr_assert_eq(dcp_prefix_find(&found, &names, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect_str_eq(found, want);
    arena_free(&arena);
}

#define LIST(...) ((const char *const[]){ __VA_ARGS__, NULL })
#define NONE      ((const char *const[]){ NULL })

Test(dcp_prefix, the_optimizer_says_what_is_in_front_of_its_names)
{
    expect("", LIST("a.weight", "b.weight"), LIST("a.weight", "b.weight"));
    expect("model.", LIST("model.b.weight", "model.a.weight"), LIST("a.weight", "b.weight"));
    expect("app.model.", LIST("app.model.model.a", "app.model.b"), LIST("model.a", "b"));
    expect("my.", LIST("my.a", "my.frozen"), LIST("a"));
    expect("my.", LIST("my.b", "my.c"), LIST("a", "b", "c", "of no weight"));
    expect("", LIST("xa"), LIST("a")); /* a prefix ends with a dot */
}

Test(dcp_prefix, a_name_that_is_the_end_of_another_one_is_no_prefix)
{
    static const char *const names[] = { "encoder.norm.weight", "encoder.proj.weight",
                                         "norm.weight", NULL };

    expect("", names, names);
    expect("", names, LIST("norm.weight")); /* the others are not trained */
    expect("net.", LIST("net.encoder.norm.weight", "net.norm.weight"),
           LIST("encoder.norm.weight", "norm.weight"));
}

Test(dcp_prefix, of_several_that_explain_as_much_the_shortest_counts)
{
    expect("a.", LIST("ema.a.x", "ema.a.y", "a.x", "a.y"), LIST("x", "y"));
}

Test(dcp_prefix, of_several_models_the_usual_key_counts)
{
    expect("model.", LIST("ema.x", "ema.y", "model.x", "model.y"), LIST("x", "y"));
    expect("app.model.",
           LIST("app.ema.model.embed_tokens.weight", "app.model.model.embed_tokens.weight"), NONE);
    expect("", LIST("model.embed_tokens.weight", "vision.model.model.norm.weight"), NONE);
}

/* Whether the prefix is that of the only model; else the other one's. */
static const char *rival_of(const char *prefix, const char **weights, int n)
{
    static char rival[DCP_PREFIX_TEXT];
    const struct dcp_prefix_names names = { .weights = weights, .n_weights = n };

    return dcp_prefix_is_clear(rival, &names, prefix) ? "" : rival;
}

Test(dcp_prefix, another_model_beside_it_is_named)
{
    const char *two[] = { "policy.model.embed_tokens.weight", "ref.model.embed_tokens.weight" };
    const char *average[] = { "ema.model.embed_tokens.weight", "model.model.embed_tokens.weight" };
    const char *inside[] = { "model.embed_tokens.weight", "vision.model.model.norm.weight" };

    cr_expect_str_eq(rival_of("ref.", two, 2), "policy.");
    cr_expect_str_eq(rival_of("policy.", two, 2), "ref.");
    cr_expect_str_eq(rival_of("policy.", two, 1), "");
    cr_expect_str_eq(rival_of("model.", average, 2), "");
    cr_expect_str_eq(rival_of("", inside, 2), ""); /* it is part of the whole, and unknown there */
}

Test(dcp_prefix, without_an_optimizer_it_is_before_the_names_of_known_models)
{
    expect("", LIST("model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"), NONE);
    expect("model.", LIST("model.model.norm.weight", "model.lm_head.weight"), NONE);
    expect("app.model.", LIST("app.model.lm_head.weight", "app.model.model.norm.weight"), NONE);
    expect("net.", LIST("net.lm_head.weight", "net.model.embed_tokens.weight"), NONE);
    expect("net.", LIST("net.transformer.wte.weight"), NONE);
    expect("", LIST("language_model.model.layers.0.weight"), NONE);
    expect("", LIST("encoder.norm.weight", "norm.weight"), NONE);
    expect("", NONE, NONE);
}
