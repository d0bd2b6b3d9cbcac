/* tests/unit/reshard_extent_index.c - finds exactly the extents that a plain loop finds. */
#include "reshard/engine/extent_index.h"

#include <criterion/criterion.h>
#include <string.h>

#include "tests/unit/random.h"

enum { TENSORS = 3, EXTENTS_MAX = 40 };

struct example {
    struct reshard_tensor tensors[TENSORS];
    struct reshard_extent extents[EXTENTS_MAX];
    struct reshard_endpoint endpoint;
};

static struct box random_box(struct rng *r, const struct reshard_tensor *t, int64_t least)
{
    struct box b = { .ndim = t->ndim };

    for (int d = 0; d < t->ndim; d++) {
        b.lo[d] = rng_int(r, 0, t->shape[d] - 1);
        b.len[d] = rng_int(r, least, t->shape[d] - b.lo[d]);
    }
    return b;
}

/* Extents anywhere: they may overlap, leave gaps and be empty. */
static void example_init(struct example *x, struct rng *r)
{
    memset(x, 0, sizeof *x);
    for (int t = 0; t < TENSORS; t++) {
        x->tensors[t] = (struct reshard_tensor){ .name = "t", .ndim = (int)rng_int(r, 0, 3) };
        for (int d = 0; d < x->tensors[t].ndim; d++)
            x->tensors[t].shape[d] = rng_int(r, 1, 12);
    }
    x->endpoint = (struct reshard_endpoint){ .name = "end",
                                             .extents = x->extents,
                                             .n_extents = (int)rng_int(r, 0, EXTENTS_MAX) };
    for (int i = 0; i < x->endpoint.n_extents; i++) {
        int t = (int)rng_int(r, 0, TENSORS - 1);

        x->extents[i] = (struct reshard_extent){ t, random_box(r, &x->tensors[t], 0) };
    }
}

/* Whether extent number i of the endpoint is tensor t's and overlaps b. */
static bool overlaps(const struct example *x, int i, int t, const struct box *b)
{
    struct box common;

    return x->extents[i].tensor == t && !box_is_empty(&x->extents[i].box) &&
           box_meet(&common, &x->extents[i].box, b);
}

static void check_find(const struct example *x, const struct extent_index *index, int t,
                       const struct box *b)
{
    int positions[EXTENTS_MAX], n = extent_index_find(index, t, b, positions), expected = 0;
    bool found[EXTENTS_MAX] = { false };

    cr_assert_eq(extent_index_find(index, t, b, NULL), n);
    for (int k = 0; k < n; k++) {
        int i = extent_index_number(index, t, positions[k]);

        cr_assert(k == 0 || positions[k] > positions[k - 1]);
        cr_assert(box_equal(extent_index_box(index, t, positions[k]), &x->extents[i].box));
        found[i] = true;
    }
    for (int i = 0; i < x->endpoint.n_extents; i++) {
        cr_assert_eq(found[i], overlaps(x, i, t, b), "extent %d", i);
        expected += found[i];
    }
    cr_assert_eq(n, expected, "each once");
}

Test(extent_index, finds_what_a_loop_over_all_extents_finds)
{
    struct rng r = rng_start("extent_index/find");

    for (int round = 0; round < 1500; round++) {
        struct extent_index *index = NULL;
        struct tp_err err = { 0 };
        struct example x;
        int t = (int)rng_int(&r, 0, TENSORS - 1), count = 0;

        example_init(&x, &r);
        cr_assert_eq(extent_index_make(&index, &x.endpoint, x.tensors, TENSORS, &err), TP_OK, "%s",
                     err.msg);
        for (int i = 0; i < TENSORS; i++)
            count += extent_index_count(index, i);
        for (int i = 0; i < x.endpoint.n_extents; i++)
            count -= !box_is_empty(&x.extents[i].box);
        cr_assert_eq(count, 0);
        for (int k = 0; k < 10; k++) {
            struct box b = random_box(&r, &x.tensors[t], 1);

            check_find(&x, index, t, &b);
        }
        extent_index_free(index);
    }
}

Test(extent_index, reports_an_overlap_when_there_is_one)
{
    struct rng r = rng_start("extent_index/overlap");
    int with = 0, without = 0;

    for (int round = 0; round < 1500; round++) {
        struct extent_index *index = NULL;
        struct tp_err err = { 0 };
        struct example x;
        int t = (int)rng_int(&r, 0, TENSORS - 1), a = -1, b = -1;
        bool expected = false;
        struct box common;

        example_init(&x, &r);
        if (round % 2 && x.endpoint.n_extents > 4)
            x.endpoint.n_extents = 4; /* few, so that often none overlap */
        cr_assert_eq(extent_index_make(&index, &x.endpoint, x.tensors, TENSORS, &err), TP_OK);
        for (int i = 0; i < x.endpoint.n_extents; i++)
            for (int j = 0; j < i; j++)
                expected |= x.extents[j].tensor == t && overlaps(&x, i, t, &x.extents[j].box);
        cr_assert_eq(extent_index_overlap(index, t, &a, &b), expected);
        if (expected)
            cr_assert(a != b && box_meet(&common, extent_index_box(index, t, a),
                                         extent_index_box(index, t, b)));
        with += expected;
        without += !expected;
        extent_index_free(index);
    }
    cr_assert(with > 100 && without > 100, "%d with, %d without", with, without);
}

Test(extent_index, extents_outside_their_tensor_are_refused)
{
    struct reshard_tensor t = { .name = "w", .ndim = 2, .shape = { 4, 6 } };
    const struct reshard_extent bad[] = {
        { 1, { 2, { 0, 0 }, { 1, 1 } } },  { -1, { 2, { 0, 0 }, { 1, 1 } } },
        { 0, { 1, { 0 }, { 1 } } },        { 0, { 2, { 0, 0 }, { 5, 1 } } },
        { 0, { 2, { 0, -1 }, { 1, 2 } } }, { 0, { 2, { 3, 5 }, { 1, 2 } } },
    };
    struct extent_index *index = NULL;
    struct tp_err err = { 0 };

    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        const struct reshard_endpoint endpoint = { .name = "end",
                                                   .n_extents = 1,
                                                   .extents = &bad[i] };

        cr_expect_eq(extent_index_make(&index, &endpoint, &t, 1, &err), TP_E_INTERNAL, "case %zu",
                     i);
        cr_expect(strstr(err.msg, "end: "), "%s", err.msg);
    }
    cr_expect_null(index);
}
