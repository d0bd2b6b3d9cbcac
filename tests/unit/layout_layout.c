/* tests/unit/layout_layout.c - who holds and who writes which box. */
#include <criterion/criterion.h>
#include <string.h>

#include "layout/layout.h"
#include "tests/unit/random_model.h"

static struct layout make(const struct model *m, const struct spec *s, struct arena *arena)
{
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    int n;

    cr_assert_eq(model_state(&tensors, &n, m, DTYPE_BF16, arena, &err), TP_OK);
    cr_assert_eq(layout_make(&l, s, m->layers, tensors, n, arena, &err), TP_OK, "%s", err.msg);
    return l;
}

/* Count box b in a row-major grid of the tensor. */
static void count(unsigned char *grid, const struct tensor *t, const struct box *b)
{
    int64_t width = t->ndim == 2 ? b->len[1] : 1;

    for (int64_t i = 0; i < b->len[0]; i++)
        for (int64_t j = 0; j < width; j++)
            grid[(b->lo[0] + i) * (t->ndim == 2 ? t->shape[1] : 1) +
                 (t->ndim == 2 ? b->lo[1] + j : 0)]++;
}

/* Whether b is one of n boxes, or a part of one. */
static bool stored_in(const struct box *held, int n, const struct box *b)
{
    for (int i = 0; i < n; i++)
        if (box_contains(&held[i], b))
            return true;
    return false;
}

Test(layout, every_element_is_written_once_by_a_rank_that_holds_it)
{
    struct rng r = rng_start("layout/extents");

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct layout l = make(&m, &s, &arena);
        struct tp_err err = { 0 };
        struct stored_box *e;
        int n;

        cr_assert_eq(layout_stored_boxes(&e, &n, &l, &arena, &err), TP_OK, "%s", err.msg);
        for (int t = 0; t < l.n_tensors; t++) {
            struct box whole = box_whole(l.tensors[t].ndim, l.tensors[t].shape);
            unsigned char *grid = calloc((size_t)box_elements(&whole), 1);

            for (int k = 0; k < n; k++) {
                struct box held[TENSOR_BOXES_MAX];

                if (e[k].tensor != t)
                    continue;
                count(grid, &l.tensors[t], &e[k].box);
                cr_assert(stored_in(held, layout_boxes(&l, t, e[k].rank, held), &e[k].box));
            }
            for (int64_t x = 0; x < box_elements(&whole); x++)
                cr_assert_eq(grid[x], 1, "%s element %lld", l.tensors[t].name, (long long)x);
            free(grid);
        }
        arena_free(&arena);
    }
}

Test(layout, replicas_hold_what_tensor_parallelism_gives_them)
{
    struct rng r = rng_start("layout/replicas");

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct layout l;

        s.zero = 0;
        l = make(&m, &s, &arena);
        for (int t = 0; t < l.n_tensors; t++)
            for (int rank = 0; rank < spec_world(&s); rank++) {
                struct box held[TENSOR_BOXES_MAX], want[TENSOR_BOXES_MAX];
                int n = layout_boxes(&l, t, rank, held);

                if (n == 0)
                    continue; /* another stage's, or an empty part */
                cr_assert_eq(layout_tp_boxes(&l.tensors[t], &s, mesh_coord_of(&s, rank).tp, want),
                             n);
                cr_assert(box_equal(&held[0], &want[0]));
            }
        arena_free(&arena);
    }
}

static const struct model small = {
    .heads = 8, .kv_heads = 2, .head_dim = 16, .hidden = 128, .ffn = 344, .vocab = 260, .layers = 6
};

Test(layout, writers_are_balanced)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct spec s;
    struct layout l;
    struct stored_box *e;
    int64_t bytes[16] = { 0 }, most = 0, sum = 0;
    int n;

    cr_assert_eq(spec_parse(&s, "tp8dp2", &err), TP_OK);
    l = make(&small, &s, &arena);
    cr_assert_eq(layout_stored_boxes(&e, &n, &l, &arena, &err), TP_OK);
    for (int k = 0; k < n; k++)
        bytes[e[k].rank] += box_elements(&e[k].box) * dtype_bytes(l.tensors[e[k].tensor].dtype);
    for (int k = 0; k < 16; k++) {
        sum += bytes[k];
        most = bytes[k] > most ? bytes[k] : most;
    }
    cr_assert(most * 16 <= sum * 105 / 100, "fullest rank %lld of %lld bytes", (long long)most,
              (long long)sum);
    arena_free(&arena);
}

/* GPT-2's fused attention: [in, 3 out], each third cut by itself. */
Test(layout, fused_tensors_are_cut_block_by_block)
{
    struct tensor t = { .name = "c_attn",
                        .group = GROUP_PARAM,
                        .ndim = 2,
                        .shape = { 6, 24 },
                        .placement = { .dim = 1, .unit = 2, .blocks = 3 } };
    struct spec s = spec_default();
    struct box b[TENSOR_BOXES_MAX];

    s.tp = 2;
    cr_assert_eq(layout_tp_boxes(&t, &s, 1, b), 3);
    for (int i = 0; i < 3; i++)
        cr_assert(b[i].lo[1] == 8 * i + 4 && b[i].len[1] == 4 && b[i].len[0] == 6);
}

Test(layout, names_the_tensor_that_does_not_divide)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct tensor *tensors;
    struct layout l;
    struct spec s = spec_default();
    int n;

    cr_assert_eq(model_params(&tensors, &n, &small, DTYPE_F32, &arena, &err), TP_OK);
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

Test(layout, layers_are_dealt_evenly_first_stages_one_more)
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
    l = make(&m, &s, &arena);
    cr_assert_arr_eq(l.stage_of, want, sizeof want);
    arena_free(&arena);
}
