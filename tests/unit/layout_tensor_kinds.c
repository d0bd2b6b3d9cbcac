/* tests/unit/layout_tensor_kinds.c - checks of a layout look at each kind of tensor once.
 * covers: layout/layout_check */
#include "layout/tensor_kinds.h"

#include <criterion/criterion.h>
#include <string.h>

#include "layout/layout_check.h"
#include "layout/model_tensors.h"
#include "tests/unit/random_model.h"

/* All tensors, as if each were a kind of its own. */
static struct tensor_kinds all_of(struct tensor *tensors, int n)
{
    return (struct tensor_kinds){ n, tensors };
}

Test(tensor_kinds, a_check_by_kinds_gives_the_result_of_a_check_of_all_tensors)
{
    struct rng r = rng_start("tensor_kinds/judged");
    int refused = 0;

    for (int i = 0; i < 3000; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct tp_err want = { 0 }, got = { 0 };
        struct tensor_kinds kinds, all;
        struct tensor *tensors;
        int n;

        s.tp = (int)rng_int(&r, 1, 12);
        cr_assert_eq(model_state(&tensors, &n, &m, DTYPE_BF16, &arena, &want), TP_OK);
        cr_assert_eq(tensor_kinds_find(&kinds, tensors, n, &arena, &want), TP_OK);
        all = all_of(tensors, n);
        cr_assert_eq(layout_check(&s, m.layers, &kinds, &got),
                     layout_check(&s, m.layers, &all, &want));
        cr_assert_str_eq(got.msg, want.msg); /* the messages name the same tensor */
        refused += want.status != TP_OK;
        arena_free(&arena);
    }
    cr_assert(refused > 300 && refused < 2700, "%d refused", refused);
}

/* Because of this, suggestions for deep models are fast. */
Test(tensor_kinds, the_number_of_kinds_does_not_grow_with_the_layers)
{
    struct rng r = rng_start("tensor_kinds/layers");

    for (int i = 0; i < 20; i++) {
        struct model m = random_model(&r);
        struct arena arena = { 0 };
        struct tp_err err = { 0 };
        struct tensor_kinds from_model, from_tensors;
        struct tensor *tensors;
        int n;

        m.layers = (int)rng_int(&r, 1, 2000);
        cr_assert_eq(model_params(&tensors, &n, &m, DTYPE_F32, &arena, &err), TP_OK);
        cr_assert_eq(model_kinds(&from_model, &m, &arena, &err), TP_OK);
        cr_assert_eq(tensor_kinds_find(&from_tensors, tensors, n, &arena, &err), TP_OK);
        cr_assert_leq(from_model.n, 8, "%d kinds of %d tensors", from_model.n, n);
        cr_assert_eq(from_model.n, from_tensors.n);
        for (int k = 0; k < from_model.n; k++)
            cr_assert_str_eq(from_model.tensors[k].name, from_tensors.tensors[k].name);
        arena_free(&arena);
    }
}

/* A checkpoint may have any tensors. Each of these differs from the first in one property. */
Test(tensor_kinds, every_property_that_matters_makes_a_kind)
{
    const struct tensor base = { .ndim = 2,
                                 .shape = { 24, 48 },
                                 .placement = { .dim = 0, .unit = 2, .blocks = 1 } };
    struct tensor t[12];
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor_kinds kinds;

    for (int i = 0; i < 12; i++)
        t[i] = base;
    t[1].shape[0] = 36;
    t[2].placement.dim = 1;
    t[3].placement.unit = 4;
    t[4].placement.blocks = 3;
    t[5].placement.replicate = true;
    t[6].placement.uneven = true;
    t[7].placement.dim = -1; /* not cut: belongs to no kind */
    t[8].shape[1] = 50;      /* not the cut axis: same kind as the first */
    t[9].dtype = DTYPE_BF16; /* same kind as the first */
    cr_assert_eq(tensor_kinds_find(&kinds, t, 12, &arena, &err), TP_OK);
    cr_assert_eq(kinds.n, 7);
    for (int i = 0; i < 7; i++)
        cr_assert_eq(memcmp(&kinds.tensors[i], &t[i], sizeof t[i]), 0, "kind %d", i);
    cr_assert_eq(tensor_kinds_find(&kinds, t, 0, &arena, &err), TP_OK);
    cr_assert_eq(kinds.n, 0);
    arena_free(&arena);
}
