/*
 * tests/unit/reshard_engine.c - transfers between random layouts and tilings, in memory.
 *
 * covers: reshard/engine/execute reshard/engine/move_tile reshard/engine/tile
 *     reshard/engine/transfer_plan reshard/engine/kinds reshard/formats/memory
 */
#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "core/clock.h"
#include "kernels/cast.h"
#include "layout/model_tensors.h"
#include "layout/stored_box.h"
#include "tests/unit/random_model.h"
#include "tests/unit/store.h"

/* A layout's boxes as a store. */
static void store_of_layout(struct store *s, const struct layout *l, const enum dtype *dtypes,
                            struct arena *arena)
{
    struct tp_err err = { 0 };
    struct reshard_extent *extents;
    struct stored_box *e;
    int n;

    cr_assert_eq(stored_box_list(&e, &n, l, arena, &err), TP_OK, "%s", err.msg);
    extents = calloc((size_t)n + 1, sizeof *extents);
    for (int i = 0; i < n; i++)
        extents[i] = (struct reshard_extent){ e[i].tensor, e[i].box };
    store_make(s, extents, n, l->n_tensors, dtypes);
}

struct world {
    struct arena arena;
    struct model model;
    struct tensor *tensors;
    struct reshard_tensor *moved;
    enum dtype *dtypes;
    int n;
};

static void world_make(struct world *w, struct rng *r)
{
    struct tp_err err = { 0 };

    *w = (struct world){ .model = random_model(r) };
    cr_assert_eq(model_state(&w->tensors, &w->n, &w->model, DTYPE_BF16, &w->arena, &err), TP_OK);
    w->moved = arena_array(&w->arena, (size_t)w->n, sizeof *w->moved);
    w->dtypes = arena_array(&w->arena, (size_t)w->n, sizeof *w->dtypes);
    for (int t = 0; t < w->n; t++) {
        w->moved[t].name = w->tensors[t].name;
        w->moved[t].ndim = w->tensors[t].ndim;
        memcpy(w->moved[t].shape, w->tensors[t].shape, sizeof w->moved[t].shape);
        w->dtypes[t] = w->tensors[t].dtype;
    }
}

static void random_store(struct store *s, struct world *w, struct rng *r)
{
    struct spec spec = random_spec(r, &w->model);
    struct tp_err err = { 0 };
    struct layout l;

    cr_assert_eq(layout_make(&l, &spec, w->model.layers, w->tensors, w->n, &w->arena, &err), TP_OK,
                 "%s", err.msg);
    store_of_layout(s, &l, w->dtypes, &w->arena);
    s->endpoint.any_order = rng_int(r, 0, 1);
}

static void must_move(const struct store *from, const struct store *to, struct world *w,
                      struct rng *r)
{
    struct tp_err err = { 0 };
    struct transfer_stats stats;
    int64_t memory = rng_int(r, 0, 1) ? rng_int(r, 10, 300) : rng_int(r, 300, 64 << 20);
    int64_t bytes = 0;

    for (int i = 0; i < to->n; i++)
        bytes += (int64_t)store_extent_bytes(to, i);
    cr_assert_eq(store_move(from, to, w->moved, memory, (int)rng_int(r, 1, 4), false, &stats, &err),
                 TP_OK, "%s", err.msg);
    cr_assert_eq(stats.bytes_read, bytes);
    cr_assert_eq(stats.bytes_written, bytes);
    cr_assert_leq(stats.buffer_bytes, memory);
}

Test(engine, a_to_b_to_a_is_bit_identical_and_a_to_c_is_a_to_b_to_c)
{
    struct rng r = rng_start("engine/layouts");

    for (int i = 0; i < 150; i++) {
        struct world w;
        struct store a, b, c, back, direct;

        world_make(&w, &r);
        random_store(&a, &w, &r);
        random_store(&b, &w, &r);
        random_store(&c, &w, &r);
        store_visit(&a, w.moved, true);
        must_move(&a, &b, &w, &r);
        cr_assert_eq(store_visit(&b, w.moved, false), 0);
        must_move(&b, &c, &w, &r);
        cr_assert_eq(store_visit(&c, w.moved, false), 0);
        store_like(&back, &a, w.dtypes);
        must_move(&b, &back, &w, &r);
        cr_assert(store_equal(&a, &back));
        store_like(&direct, &c, w.dtypes);
        must_move(&a, &direct, &w, &r);
        cr_assert(store_equal(&c, &direct));
        store_free(&a);
        store_free(&b);
        store_free(&c);
        store_free(&back);
        store_free(&direct);
        arena_free(&w.arena);
    }
}

/* Cut an extent in two at random, and its parts again, up to `depth` levels. */
static void cut(struct rng *r, struct reshard_extent *out, int *n, struct reshard_extent whole,
                int depth)
{
    int axis = whole.box.ndim ? (int)rng_int(r, 0, whole.box.ndim - 1) : 0;

    if (depth == 0 || whole.box.ndim == 0 || whole.box.len[axis] < 2) {
        out[(*n)++] = whole;
        return;
    }
    struct reshard_extent left = whole, right = whole;

    left.box.len[axis] = rng_int(r, 1, whole.box.len[axis] - 1);
    right.box.lo[axis] += left.box.len[axis];
    right.box.len[axis] -= left.box.len[axis];
    cut(r, out, n, left, depth - 1);
    cut(r, out, n, right, depth - 1);
}

enum { TILING_TENSORS = 4 };

static void random_tiling(struct store *s, const struct reshard_tensor *tensors, enum dtype dtype,
                          struct rng *r)
{
    struct reshard_extent *extents = calloc(TILING_TENSORS * 32, sizeof *extents);
    enum dtype dtypes[TILING_TENSORS];
    int n = 0;

    for (int t = 0; t < TILING_TENSORS; t++) {
        struct reshard_extent whole = { t, box_whole(tensors[t].ndim, tensors[t].shape) };

        cut(r, extents, &n, whole, (int)rng_int(r, 0, 4));
        dtypes[t] = dtype;
    }
    for (int i = n - 1; i > 0; i--) { /* shuffle them */
        int j = (int)rng_int(r, 0, i);
        struct reshard_extent swap = extents[i];

        extents[i] = extents[j];
        extents[j] = swap;
    }
    store_make(s, extents, n, TILING_TENSORS, dtypes);
}

static void random_shapes(struct reshard_tensor *tensors, struct rng *r)
{
    for (int t = 0; t < TILING_TENSORS; t++) {
        tensors[t] = (struct reshard_tensor){ .name = "any", .ndim = (int)rng_int(r, 0, 4) };
        for (int d = 0; d < tensors[t].ndim; d++)
            tensors[t].shape[d] = rng_int(r, 1, 9);
    }
}

Test(engine, any_tiling_becomes_any_other)
{
    struct rng r = rng_start("engine/tilings");

    for (int i = 0; i < 2000; i++) {
        static const enum dtype types[] = { DTYPE_U8, DTYPE_BF16, DTYPE_F32, DTYPE_I64 };
        enum dtype dtype = types[rng_int(&r, 0, 3)];
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b;
        struct transfer_stats stats;
        struct tp_err err = { 0 };

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, dtype, &r);
        random_tiling(&b, tensors, dtype, &r);
        store_visit(&a, tensors, true);
        cr_assert_eq(store_move(&a, &b, tensors, rng_int(&r, 16, 2000), 1, false, &stats, &err),
                     TP_OK, "%s", err.msg);
        cr_assert_eq(store_visit(&b, tensors, false), 0);
        store_free(&a);
        store_free(&b);
    }
}

/* Values that f16 does not have, which a cast to it refuses, become 1. */
static void store_fit_f16(struct store *s)
{
    for (int k = 0; k < s->n; k++) {
        const enum dtype type = s->dtypes[s->extents[k].tensor];
        const int64_t n = box_elements(&s->extents[k].box);
        const double one = 1;
        double value;

        for (int64_t i = 0; i < n; i++) {
            char *at = (char *)s->data[k] + i * dtype_bytes(type);

            cast(&value, DTYPE_F64, at, type, 1);
            if (isfinite(value) && fabs(value) > 65504)
                cast(at, type, &one, DTYPE_F64, 1);
        }
    }
}

Test(engine, a_transfer_with_a_cast_casts_each_element)
{
    struct rng r = rng_start("engine/cast");

    for (int i = 0; i < 1000; i++) {
        static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16, DTYPE_F64 };
        enum dtype from = types[rng_int(&r, 0, 3)], to = types[rng_int(&r, 0, 3)];
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b, straight;
        struct transfer_stats stats;
        struct tp_err err = { 0 };

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, from, &r);
        random_tiling(&b, tensors, to, &r);
        store_visit(&a, tensors, true);
        if (to == DTYPE_F16)
            store_fit_f16(&a);
        cr_assert_eq(store_move(&a, &b, tensors, rng_int(&r, 40, 2000), 2, false, &stats, &err),
                     TP_OK, "%s", err.msg);
        /* Copy without a cast, then cast extent by extent. */
        store_like(&straight, &b, a.dtypes);
        cr_assert_eq(store_move(&a, &straight, tensors, 1 << 20, 1, false, &stats, &err), TP_OK);
        for (int k = 0; k < b.n; k++) {
            int64_t n = box_elements(&b.extents[k].box);
            char *want = malloc((size_t)(n * dtype_bytes(to)));

            cast(want, to, straight.data[k], from, n);
            cr_assert_eq(memcmp(want, b.data[k], (size_t)(n * dtype_bytes(to))), 0);
            free(want);
        }
        store_free(&a);
        store_free(&b);
        store_free(&straight);
    }
}

/* A store that keeps digests, and may write something else than what it is told to. */
struct proving_store {
    const struct store *store;
    struct reshard_endpoint endpoint;
    const struct reshard_tensor *tensors;
    struct digest digests[TILING_TENSORS];
    int flip_in; /* writes until a bit is flipped; -1: never */
};

static tp_status proving_write(void *ctx, int extent, const struct box *run, const void *buf,
                               struct tp_err *err)
{
    struct proving_store *s = ctx;
    const struct reshard_extent *e = &s->store->extents[extent];
    const struct reshard_tensor *t = &s->tensors[e->tensor];
    const int elem = dtype_bytes(s->endpoint.dtypes[e->tensor]);
    const size_t n = (size_t)(box_elements(run) * elem);
    char *copy = malloc(n + 1);
    struct digest part;

    (void)err;
    memcpy(copy, buf, n);
    if (s->flip_in-- == 0)
        copy[n / 2] ^= 1;
    part = digest_box(copy, run, t->ndim, t->shape, elem);
    digest_add(&s->digests[e->tensor], &part);
    free(copy);
    return TP_OK;
}

static struct digest proving_digest(const void *ctx, int tensor)
{
    return ((const struct proving_store *)ctx)->digests[tensor];
}

/* Transfer a to b with a cast, and compare. */
static tp_status prove_cast(const struct store *a, const struct store *b,
                            const struct reshard_tensor *tensors, int flip_in, int *casts,
                            struct tp_err *err)
{
    struct proving_store to = { .store = b, .tensors = tensors, .flip_in = flip_in };
    const struct reshard_endpoint *from = &a->endpoint;
    struct transfer t = { .n_tensors = TILING_TENSORS,
                          .tensors = tensors,
                          .from = from,
                          .to = &to.endpoint,
                          .memory_bytes = 1000,
                          .threads = 1 };
    struct transfer_plan *plan = NULL;
    struct transfer_stats stats;
    int equal = 0;
    tp_status st;

    to.endpoint = b->endpoint;
    to.endpoint.ctx = &to;
    to.endpoint.write = proving_write;
    to.endpoint.place = NULL; /* it counts what is written */
    to.endpoint.digest = proving_digest;
    TP_TRY(transfer_plan_make(&plan, &t, err));
    TP_TRY(transfer_execute(plan, &stats, err));
    TP_TRY(transfer_compare_digests(plan, &equal, casts, err));
    cr_expect_eq(equal, 0);
done:
    transfer_plan_free(plan);
    return st;
}

Test(engine, a_cast_is_proved_and_any_other_bit_is_found)
{
    struct rng r = rng_start("engine/proved_cast");

    for (int i = 0; i < 300; i++) {
        static const enum dtype types[] = { DTYPE_F32, DTYPE_BF16, DTYPE_F16 };
        int from = (int)rng_int(&r, 0, 2), to = (from + (int)rng_int(&r, 1, 2)) % 3, casts = 0;
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b;
        struct tp_err err = { 0 };

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, types[from], &r);
        random_tiling(&b, tensors, types[to], &r);
        store_visit(&a, tensors, true);
        if (types[to] == DTYPE_F16)
            store_fit_f16(&a);
        cr_assert_eq(prove_cast(&a, &b, tensors, -1, &casts, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(casts, TILING_TENSORS);
        cr_assert_eq(prove_cast(&a, &b, tensors, 0, &casts, &err), TP_E_CORRUPT);
        cr_assert(strstr(err.msg, "cast to"), "%s", err.msg);
        store_free(&a);
        store_free(&b);
    }
}

/* A store that is read, and keeps digests of that. */
struct digesting_source {
    const struct store *store;
    struct reshard_endpoint endpoint;
    const struct reshard_tensor *tensors;
    struct digest digests[TILING_TENSORS];
    int undigested; /* reads whose digest was added by what was written */
};

static void source_add_digest(void *ctx, int tensor, const struct digest *part)
{
    digest_add(&((struct digesting_source *)ctx)->digests[tensor], part);
}

static tp_status source_read_undigested(void *ctx, int extent, const struct box *run, void *buf,
                                        struct tp_err *err)
{
    struct digesting_source *s = ctx;

    s->undigested++;
    return s->store->endpoint.read(s->store->endpoint.ctx, extent, run, buf, err);
}

static tp_status source_read(void *ctx, int extent, const struct box *run, void *buf,
                             struct tp_err *err)
{
    struct digesting_source *s = ctx;
    const int tensor = s->store->extents[extent].tensor;
    const struct reshard_tensor *t = &s->tensors[tensor];
    tp_status st = s->store->endpoint.read(s->store->endpoint.ctx, extent, run, buf, err);
    struct digest part =
        digest_box(buf, run, t->ndim, t->shape, dtype_bytes(s->endpoint.dtypes[tensor]));

    source_add_digest(ctx, tensor, &part);
    return st;
}

static struct digest source_digest(const void *ctx, int tensor)
{
    return ((const struct digesting_source *)ctx)->digests[tensor];
}

static tp_status proving_write_digested(void *ctx, int extent, const struct box *run,
                                        const void *buf, struct digest *written, struct tp_err *err)
{
    const struct proving_store *s = ctx;
    const int tensor = s->store->extents[extent].tensor;
    const struct reshard_tensor *t = &s->tensors[tensor];

    *written = digest_box(buf, run, t->ndim, t->shape, dtype_bytes(s->endpoint.dtypes[tensor]));
    return proving_write(ctx, extent, run, buf, err);
}

/* Transfer a to b, both with digests, and compare. undigested: reads without a digest of their
 * own. */
static tp_status prove_copy(const struct store *a, const struct store *b,
                            const struct reshard_tensor *tensors, int64_t memory, int flip_in,
                            int *undigested, struct tp_err *err)
{
    struct digesting_source from = { .store = a, .tensors = tensors };
    struct proving_store to = { .store = b, .tensors = tensors, .flip_in = flip_in };
    struct transfer t = { .n_tensors = TILING_TENSORS,
                          .tensors = tensors,
                          .from = &from.endpoint,
                          .to = &to.endpoint,
                          .memory_bytes = memory,
                          .threads = 1 };
    struct transfer_plan *plan = NULL;
    struct transfer_stats stats;
    int equal = 0, casts = 0;
    tp_status st;

    from.endpoint = a->endpoint;
    from.endpoint.ctx = &from;
    from.endpoint.read = source_read;
    from.endpoint.read_undigested = source_read_undigested;
    from.endpoint.add_digest = source_add_digest;
    from.endpoint.digest = source_digest;
    to.endpoint = b->endpoint;
    to.endpoint.ctx = &to;
    to.endpoint.write = proving_write;
    to.endpoint.place = NULL; /* it counts what is written */
    to.endpoint.write_digested = proving_write_digested;
    to.endpoint.digest = proving_digest;
    TP_TRY(transfer_plan_make(&plan, &t, err));
    TP_TRY(transfer_execute(plan, &stats, err));
    TP_TRY(transfer_compare_digests(plan, &equal, &casts, err));
    cr_expect_eq(equal, TILING_TENSORS);
    for (int i = 0; i < a->n; i++) { /* the digests are those of the source's bytes */
        const struct reshard_extent *e = &a->extents[i];
        const struct reshard_tensor *tensor = &tensors[e->tensor];
        struct digest part = digest_box(a->data[i], &e->box, tensor->ndim, tensor->shape,
                                        dtype_bytes(a->endpoint.dtypes[e->tensor]));
        const uint64_t prime = (UINT64_C(1) << 61) - 1;

        for (int p = 0; p < 2; p++) /* to.digests becomes the difference */
            to.digests[e->tensor].d[p] = (to.digests[e->tensor].d[p] + prime - part.d[p]) % prime;
    }
    for (int i = 0; i < TILING_TENSORS; i++)
        cr_expect(to.digests[i].d[0] == 0 && to.digests[i].d[1] == 0);
    *undigested = from.undigested;
done:
    transfer_plan_free(plan);
    return st;
}

Test(engine, a_run_that_is_not_cut_has_one_digest_and_any_bit_of_the_others_is_found)
{
    struct rng r = rng_start("engine/one_digest");
    int direct = 0, cut = 0;

    for (int i = 0; i < 300; i++) {
        const enum dtype type = rng_int(&r, 0, 1) ? DTYPE_F32 : DTYPE_BF16;
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b;
        struct tp_err err = { 0 };
        const int64_t memory = rng_int(&r, 16, 2000);
        int undigested = 0, same = 0;

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, type, &r);
        random_tiling(&b, tensors, type, &r);
        store_visit(&a, tensors, true);
        cr_assert_eq(prove_copy(&a, &b, tensors, memory, -1, &undigested, &err), TP_OK, "%s",
                     err.msg);
        if (undigested == 0) { /* every tile is cut, so every digest is computed twice */
            cut++;
            cr_assert_eq(prove_copy(&a, &b, tensors, memory, 0, &same, &err), TP_E_CORRUPT);
        }
        direct += undigested > 0;
        cr_assert_eq(prove_copy(&a, &a, tensors, 1 << 20, -1, &same, &err), TP_OK, "%s", err.msg);
        cr_assert_eq(same, a.n, "%d of %d extents", same, a.n);
        store_free(&a);
        store_free(&b);
    }
    cr_assert(direct > 0 && cut > 0, "%d direct, %d cut", direct, cut);
}

Test(engine, a_partial_transfer_writes_only_the_wanted_extents)
{
    struct rng r = rng_start("engine/partial");

    for (int i = 0; i < 1000; i++) {
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b;
        struct transfer_stats stats;
        struct tp_err err = { 0 };
        int64_t wanted = 0;

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, DTYPE_F32, &r);
        random_tiling(&b, tensors, DTYPE_F32, &r);
        b.mp.n = b.endpoint.n_extents = (int)rng_int(&r, 0, b.n);
        for (int k = 0; k < b.mp.n; k++)
            wanted += (int64_t)store_extent_bytes(&b, k);
        store_visit(&a, tensors, true);
        cr_assert_eq(store_move(&a, &b, tensors, rng_int(&r, 16, 2000), 1, true, &stats, &err),
                     TP_OK, "%s", err.msg);
        cr_assert_eq(stats.bytes_written, wanted);
        for (int k = 0, n = b.n; k < n; k++) {
            b.n = k + 1;
            if (k < b.mp.n)
                continue;
            for (size_t x = 0; x < store_extent_bytes(&b, k); x++)
                cr_assert_eq(((char *)b.data[k])[x], 0, "an extent that is not wanted was written");
        }
        int all = b.n;
        b.n = b.mp.n;
        cr_assert_eq(store_visit(&b, tensors, false), 0);
        b.n = all;
        store_free(&a);
        store_free(&b);
    }
}

Test(engine, gaps_and_overlaps_are_found_before_anything_is_written)
{
    struct rng r = rng_start("engine/proof");

    for (int i = 0; i < 1000; i++) {
        struct reshard_tensor tensors[TILING_TENSORS];
        struct store a, b;
        struct transfer_stats stats;
        struct tp_err err = { 0 };
        bool in_source = rng_int(&r, 0, 1), gap = rng_int(&r, 0, 1);

        random_shapes(tensors, &r);
        random_tiling(&a, tensors, DTYPE_U8, &r);
        random_tiling(&b, tensors, DTYPE_U8, &r);
        store_visit(&a, tensors, true);

        struct store *s = in_source ? &a : &b;
        int victim = (int)rng_int(&r, 0, s->n - 1);

        if (gap) {
            for (int d = 0; d < BOX_NDIM_MAX; d++)
                s->extents[victim].box.len[d] = 0;
            if (s->extents[victim].box.ndim == 0)
                s->mp.n = s->endpoint.n_extents =
                    victim; /* this removes others too, which is a gap as well */
        } else {
            s->extents = realloc(s->extents, (size_t)(s->n + 1) * sizeof *s->extents);
            s->extents[s->n] = s->extents[victim];
            s->mp.extents = s->endpoint.extents = s->extents;
            s->endpoint.n_extents = s->n + 1;
        }
        cr_assert_eq(store_move(&a, &b, tensors, 1000, 1, false, &stats, &err),
                     in_source ? TP_E_CORRUPT : TP_E_INTERNAL);
        cr_assert(strstr(err.msg, "any"), "%s", err.msg);
        for (int k = 0; k < b.n; k++)
            for (int64_t e = 0; e < box_elements(&b.extents[k].box); e++)
                cr_assert_eq(((char *)b.data[k])[e], 0);
        store_free(&a);
        store_free(&b);
    }
}

Test(engine, too_little_memory_is_refused_and_the_minimum_is_named)
{
    struct reshard_tensor t = { .name = "w", .ndim = 1, .shape = { 100 } };
    struct reshard_extent *a_extents = calloc(1, sizeof *a_extents),
                          *b_extents = calloc(1, sizeof *a_extents);
    enum dtype f32 = DTYPE_F32, bf16 = DTYPE_BF16;
    struct store a, b;
    struct transfer_stats stats;
    struct tp_err err = { 0 };

    a_extents[0].box = b_extents[0].box = box_whole(1, t.shape);
    store_make(&a, a_extents, 1, 1, &f32);
    store_make(&b, b_extents, 1, 1, &bf16);
    cr_assert_eq(store_move(&a, &b, &t, 7, 1, false, &stats, &err), TP_E_BUDGET);
    cr_assert(strstr(err.msg, "at least 8 bytes"), "%s", err.msg);
    cr_assert_eq(store_move(&a, &b, &t, 8, 1, false, &stats, &err), TP_OK);
    store_free(&a);
    store_free(&b);
}

/* A quadratic algorithm would take minutes, and the slowest processors need seconds. CPU time does
 * not depend on other processes. */
Test(engine, a_hundred_thousand_tensors_are_planned_in_seconds)
{
    enum { N = 100000, SECONDS_MAX = 10 };
    struct reshard_tensor *tensors = calloc(N + 1, sizeof *tensors);
    struct reshard_extent *from = calloc(N, sizeof *from), *to = calloc(4 * N, sizeof *to);
    enum dtype *dtypes = calloc(N + 1, sizeof *dtypes);
    struct reshard_endpoint a = { .name = "a", .n_extents = N, .extents = from, .dtypes = dtypes };
    struct reshard_endpoint b = {
        .name = "b", .n_extents = 4 * N, .extents = to, .dtypes = dtypes
    };
    struct transfer m = { .n_tensors = N,
                          .tensors = tensors,
                          .from = &a,
                          .to = &b,
                          .memory_bytes = 1 << 28,
                          .threads = 4 };
    struct transfer_stats stats;
    struct transfer_plan *p;
    struct tp_err err = { 0 };
    double start;

    for (int i = 0; i < N; i++) {
        tensors[i] = (struct reshard_tensor){ "t", 2, { 64, 64 } };
        from[i] = (struct reshard_extent){ i, box_whole(2, tensors[i].shape) };
        for (int k = 0; k < 4; k++) {
            to[4 * i + k] = from[i];
            to[4 * i + k].box.lo[1] = 16 * k;
            to[4 * i + k].box.len[1] = 16;
        }
    }
    start = clock_cpu_seconds();
    cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
    cr_log_info("planned in %.3f s of CPU time", clock_cpu_seconds() - start);
    cr_expect_lt(clock_cpu_seconds() - start, SECONDS_MAX);
    transfer_plan_stats(p, &stats);
    cr_expect_eq(stats.tiles, N);
    cr_expect_eq(stats.splits, N);
    cr_expect_eq(stats.merges, 0);
    transfer_plan_free(p);

    /* One tensor: from a hundred thousand extents of one row to 64 extents of one column. */
    tensors[0] = (struct reshard_tensor){ "t", 2, { N, 64 } };
    for (int i = 0; i < N; i++)
        from[i] = (struct reshard_extent){ 0, { 2, { i, 0 }, { 1, 64 } } };
    for (int k = 0; k < 64; k++)
        to[k] = (struct reshard_extent){ 0, { 2, { 0, k }, { N, 1 } } };
    m.n_tensors = 1;
    b.n_extents = 64;
    start = clock_cpu_seconds();
    cr_assert_eq(transfer_plan_make(&p, &m, &err), TP_OK, "%s", err.msg);
    cr_log_info("planned in %.3f s of CPU time", clock_cpu_seconds() - start);
    cr_expect_lt(clock_cpu_seconds() - start, SECONDS_MAX);
    transfer_plan_free(p);
    free(tensors);
    free(from);
    free(to);
    free(dtypes);
}
