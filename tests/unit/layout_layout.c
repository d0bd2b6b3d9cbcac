/* tests/unit/layout_layout.c - which rank holds which boxes, and which stage which layers. */
#include <criterion/criterion.h>
#include <string.h>

#include "layout/layout.h"
#include "layout/model_tensors.h"
#include "tests/unit/random_model.h"

Test(layout, replicas_hold_the_boxes_of_their_tensor_parallel_rank)
{
    struct rng r = rng_start("layout/replicas");

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct layout l;

        s.zero = 0;
        l = bf16_layout(&m, &s, &arena);
        for (int t = 0; t < l.n_tensors; t++)
            for (int rank = 0; rank < spec_world(&s); rank++) {
                struct box held[TENSOR_BOXES_MAX], want[TENSOR_BOXES_MAX];
                int n = layout_boxes(&l, t, rank, held);

                if (n == 0)
                    continue; /* another stage holds it, or the part is empty */
                cr_assert_eq(layout_tp_boxes(&l.tensors[t], &s, mesh_coord_of(&s, rank).tp, want),
                             n);
                cr_assert(box_equal(&held[0], &want[0]));
            }
        arena_free(&arena);
    }
}

Test(layout, names_the_tensor_that_does_not_divide)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    struct model m = small_llama();
    struct spec s = spec_default();
    int n;

    cr_assert_eq(model_params(&tensors, &n, &m, DTYPE_F32, &arena, &err), TP_OK);
    s.tp = 3;
    cr_assert_eq(layout_make(&l, &s, 6, tensors, n, &arena, &err), TP_E_LAYOUT);
    cr_assert(strstr(err.msg, "self_attn.q_proj.weight") && strstr(err.msg, "8 heads of 16") &&
                  strstr(err.msg, "nearest that fit: tp2, "),
              "%s", err.msg);
    s.tp = 16;
    cr_assert_eq(layout_make(&l, &s, 6, tensors, n, &arena, &err), TP_E_LAYOUT);
    s.tp = 1;
    s.pp = 7;
    cr_assert_eq(layout_make(&l, &s, 6, tensors, n, &arena, &err), TP_E_LAYOUT);
    cr_assert(strstr(err.msg, "6 layers are fewer than its 7 stages"), "%s", err.msg);
    arena_free(&arena);
}

Test(layout, layers_are_spread_evenly_and_the_first_stages_have_one_more)
{
    struct model m = {
        .heads = 2, .kv_heads = 2, .head_dim = 2, .hidden = 4, .ffn = 4, .vocab = 8, .layers = 7
    };
    static const int want[7] = { 0, 0, 1, 1, 2, 2, 3 };
    struct arena arena = { 0 };
    struct spec s = spec_default();
    struct layout l;

    s.pp = 2;
    s.vpp = 2;
    l = bf16_layout(&m, &s, &arena);
    cr_assert_arr_eq(l.stage_of, want, sizeof want);
    arena_free(&arena);
}

Test(layout, each_tensor_is_found_with_an_index_and_without)
{
    struct rng r = rng_start("layout/find");

    for (int i = 0; i < 20; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct layout l = bf16_layout(&m, &s, &arena), unordered = l;

        unordered.by_name = NULL;
        cr_assert(l.by_name != NULL);
        for (int t = 0; t < l.n_tensors; t++) {
            const struct tensor *x = &l.tensors[t];

            cr_expect_eq(layout_find(&l, x->group, x->name), t, "%s/%s", x->group, x->name);
            cr_expect_eq(layout_find(&unordered, x->group, x->name), t);
            cr_expect_eq(layout_find(&l, "other", x->name), -1);
        }
        cr_expect_eq(layout_find(&l, GROUP_PARAM, ""), -1);
        cr_expect_eq(layout_find(&l, GROUP_PARAM, "~"), -1);
        arena_free(&arena);
    }
}
