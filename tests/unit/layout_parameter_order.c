/* tests/unit/layout_parameter_order.c - each order of a family has every tensor of its models once.
 * tests/clients compares the orders with live models of transformers. */
#include "layout/parameter_order.h"

#include <criterion/criterion.h>
#include <string.h>

#include "layout/family.h"
#include "layout/model_tensors.h"

static struct model model_of(int family, bool biases, bool tied)
{
    return (struct model){ .family = (enum model_family)family,
                           .heads = 4,
                           .kv_heads = 2,
                           .head_dim = 8,
                           .hidden = 24,
                           .ffn = 40,
                           .expert_ffn = 20,
                           .experts = 3,
                           .experts_per_token = 1,
                           .vocab = 64,
                           .layers = 3,
                           .max_positions = 16,
                           .qkv_bias = biases,
                           .out_bias = biases,
                           .mlp_bias = biases,
                           .head_norms = biases,
                           .tied = tied };
}

/* Count what a parameter is made of: a tensor, or those of all experts of its layer that have its
 * name in a module. Returns its elements. */
static int64_t count(int *seen, const struct model *m, const struct tensor *all, int n,
                     const struct parameter_order_item *p)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    int64_t shape[BOX_NDIM_MAX];
    const int ndim = parameter_order_shape(shape, p);
    struct box whole = box_whole(ndim, shape);

    for (int i = 0; i < n; i++) {
        struct module_name name = { .name = all[i].name };

        if (p->module.is_stacked)
            cr_assert_eq(module_name_of(&name, m, &all[i], &arena, &err), TP_OK);
        seen[i] +=
            p->module.is_stacked ? strcmp(name.name, p->module.name) == 0 : &all[i] == p->tensor;
    }
    arena_free(&arena);
    return box_elements(&whole);
}

static void check_order(const struct model *m, const struct parameter_order *o)
{
    const char *name = family_of(m)->architecture;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct parameter_order_item *list;
    struct tensor *all;
    int64_t elements = 0, want = 0;
    int n, n_list, *seen;

    cr_assert_eq(model_params(&all, &n, m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(parameter_order_list(&list, &n_list, o, m, all, n, &arena, &err), TP_OK);
    seen = arena_array(&arena, (size_t)n, sizeof *seen);
    for (int i = 0; i < n_list; i++)
        elements += count(seen, m, all, n, &list[i]);
    for (int i = 0; i < n; i++) {
        struct box whole = box_whole(all[i].ndim, all[i].shape);

        cr_expect_eq(seen[i], 1, "%s: %s is there %d times", name, all[i].name, seen[i]);
        want += box_elements(&whole);
    }
    cr_expect_eq(elements, want, "%s: stacked parameters have the elements of their tensors", name);
    arena_free(&arena);
}

Test(parameter_order, has_every_tensor_of_every_family_once)
{
    for (int f = 0; f < MODEL_FAMILIES; f++)
        for (int kind = 0; kind < 4; kind++) {
            const struct model m = model_of(f, kind & 1, kind & 2);
            const struct parameter_order *o;
            int n = 0;

            while ((o = parameter_order_of(m.family, n))) {
                check_order(&m, o);
                n++;
            }
            cr_expect_gt(n, 0, "%s has an order", family_of(&m)->architecture);
        }
    cr_expect_null(parameter_order_of(MODEL_OF_RULES, 0));
}

Test(parameter_order, every_version_has_one_order)
{
    for (int f = 0; f < MODEL_FAMILIES; f++)
        for (int version = 400; version < 600; version++) {
            const struct parameter_order *o;
            int n = 0;

            for (int i = 0; (o = parameter_order_of((enum model_family)f, i)); i++)
                n += parameter_order_is_of(o, version);
            cr_expect_eq(n, 1, "family %d, version %d", f, version);
        }
}

/* named_parameters() of OPTForCausalLM in transformers 5.24. */
Test(parameter_order, opt_has_keys_first_and_its_last_norm_before_the_layers)
{
    static const char *const want[] = {
        "model.decoder.embed_tokens.weight",
        "model.decoder.embed_positions.weight",
        "model.decoder.final_layer_norm.weight",
        "model.decoder.final_layer_norm.bias",
        "model.decoder.layers.0.self_attn.k_proj.weight",
    };
    const struct model m = model_of(MODEL_OPT, true, true);
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct parameter_order_item *list;
    struct tensor *all;
    int n, n_list;

    cr_assert_eq(model_params(&all, &n, &m, DTYPE_F32, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(parameter_order_list(&list, &n_list, parameter_order_of(MODEL_OPT, 0), &m, all, n,
                                      &arena, &err),
                 TP_OK);
    for (int i = 0; i < 5; i++)
        cr_expect_str_eq(list[i].tensor->name, want[i]);
    arena_free(&arena);
}
