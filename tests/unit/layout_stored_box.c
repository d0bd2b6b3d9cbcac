/* tests/unit/layout_stored_box.c - each element is stored once, by a rank that holds it. */
#include "layout/stored_box.h"

#include <criterion/criterion.h>
#include <stdlib.h>

#include "layout/model_tensors.h"
#include "tests/unit/random_model.h"

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

Test(stored_box, every_element_is_written_once_by_a_rank_that_holds_it)
{
    struct rng r = rng_start("stored_box/once");

    for (int i = 0; i < 300; i++) {
        struct model m = random_model(&r);
        struct spec s = random_spec(&r, &m);
        struct arena arena = { 0 };
        struct layout l = bf16_layout(&m, &s, &arena);
        struct tp_err err = { 0 };
        struct stored_box *e;
        int n;

        cr_assert_eq(stored_box_list(&e, &n, &l, &arena, &err), TP_OK, "%s", err.msg);
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

/* With ep, every rank writes tensors that it has: an expert has one rank of each ep group. */
static void expect_experts(const char *spec)
{
    struct model m = small_llama();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct spec s;
    struct layout l;
    struct stored_box *e;
    int n, written = 0;

    m.family = MODEL_MIXTRAL;
    m.experts = 8;
    m.experts_per_token = 2;
    cr_assert_eq(spec_parse(&s, spec, &err), TP_OK);
    l = bf16_layout(&m, &s, &arena);
    cr_assert_eq(stored_box_list(&e, &n, &l, &arena, &err), TP_OK, "%s: %s", spec, err.msg);
    for (int k = 0; k < n; k++) {
        struct box held[TENSOR_BOXES_MAX];

        cr_assert(stored_in(held, layout_boxes(&l, e[k].tensor, e[k].rank, held), &e[k].box),
                  "%s: %s", spec, l.tensors[e[k].tensor].name);
        written += l.tensors[e[k].tensor].placement.experts != 0;
    }
    cr_assert(written > 0);
    for (int t = 0; t < l.n_tensors; t++) {
        int holders = 0;

        for (int rank = 0; rank < spec_world(&s); rank++)
            holders += layout_holds(&l, t, rank);
        cr_assert_eq(holders, l.tensors[t].placement.experts ? 4 : 16, "%s", l.tensors[t].name);
    }
    arena_free(&arena);
}

Test(stored_box, experts_are_written_by_ranks_that_have_them)
{
    expect_experts("tp2pp2ep4dp8");
    expect_experts("tp2ep4dp4cp2zero3");
}

/* zero3 divides an expert over the ranks that have it, and other tensors over dp. */
Test(stored_box, zero3_divides_experts_over_the_ranks_that_have_them)
{
    static const struct {
        const char *spec;
        int owners, expert_owners;
    } cases[] = { { "ep2dp4zero3", 4, 2 }, { "cp2ep2dp2zero3", 2, 2 }, { "cp4ep2dp2zero3", 2, 4 },
                  { "ep4dp4zero3", 4, 1 }, { "cp4ep2zero3", 1, 1 },    { "ep2dp4", 1, 1 } };
    struct tensor t = { .group = GROUP_PARAM, .ndim = 2, .shape = { 8, 8 } }, expert = t;
    struct tp_err err = { 0 };

    expert.placement.experts = 4;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct spec s;

        cr_assert_eq(spec_parse(&s, cases[i].spec, &err), TP_OK);
        cr_expect_eq(layout_owners(&s, &t), cases[i].owners, "%s", cases[i].spec);
        cr_expect_eq(layout_owners(&s, &expert), cases[i].expert_owners, "%s", cases[i].spec);
    }
}

Test(stored_box, writers_are_balanced)
{
    struct model m = small_llama();
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct spec s;
    struct layout l;
    struct stored_box *e;
    int64_t bytes[16] = { 0 }, most = 0, sum = 0;
    int n;

    cr_assert_eq(spec_parse(&s, "tp8dp2", &err), TP_OK);
    l = bf16_layout(&m, &s, &arena);
    cr_assert_eq(stored_box_list(&e, &n, &l, &arena, &err), TP_OK);
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

Test(stored_box, the_boxes_of_a_rank_are_found_also_where_ranks_write_nothing)
{
    static const int ranks[] = { 1, 1, 2, 4, 4, 4 };
    static const struct {
        int first, n;
    } expected[] = { { 0, 0 }, { 0, 2 }, { 2, 1 }, { 3, 0 }, { 3, 3 }, { 6, 0 } };
    struct stored_box boxes[6] = { 0 };
    int n;

    for (int i = 0; i < 6; i++)
        boxes[i].rank = ranks[i];
    for (int rank = 0; rank < 6; rank++) {
        cr_expect_eq(stored_box_of_rank(&n, boxes, 6, rank), expected[rank].first, "%d", rank);
        cr_expect_eq(n, expected[rank].n, "%d", rank);
    }
    cr_expect_eq(stored_box_of_rank(&n, boxes, 0, 0), 0);
    cr_expect_eq(n, 0);
}
