/*
 * tests/unit/store.h - tensors in memory, cut into extents in any way: sources and targets for
 * tests of the engine. Every element is a function of (tensor, index), so a copy into any other
 * extents can be checked.
 */
#ifndef TESTS_UNIT_STORE_H
#define TESTS_UNIT_STORE_H

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/engine/transfer.h"
#include "reshard/formats/memory.h"
#include "tests/unit/random.h"

/* Extents with memory of their own. */
struct store {
    struct reshard_extent *extents;
    void **data;
    enum dtype *dtypes;
    int n, n_tensors;
    struct memory_endpoint mp;
    struct reshard_endpoint endpoint;
};

static inline size_t store_extent_bytes(const struct store *s, int i)
{
    return (size_t)(box_elements(&s->extents[i].box) *
                    dtype_bytes(s->dtypes[s->extents[i].tensor]));
}

/* Make a store of zeroes. `extents` are malloc'ed, and the store frees them. */
static inline void store_make(struct store *s, struct reshard_extent *extents, int n, int n_tensors,
                              const enum dtype *dtypes)
{
    s->extents = extents;
    s->n = n;
    s->n_tensors = n_tensors;
    s->dtypes = calloc((size_t)n_tensors + 1, sizeof *s->dtypes);
    s->data = calloc((size_t)n + 1, sizeof *s->data);
    memcpy(s->dtypes, dtypes, (size_t)n_tensors * sizeof *dtypes);
    for (int i = 0; i < n; i++)
        s->data[i] = calloc((size_t)box_elements(&extents[i].box) + 1,
                            (size_t)dtype_bytes(dtypes[extents[i].tensor]));
    s->mp = (struct memory_endpoint){ extents, s->dtypes, s->data, n, NULL };
    s->endpoint = memory_endpoint_make(&s->mp);
}

/* A store of the same extents. */
static inline void store_like(struct store *s, const struct store *other, const enum dtype *dtypes)
{
    struct reshard_extent *extents = calloc((size_t)other->n + 1, sizeof *extents);

    memcpy(extents, other->extents, (size_t)other->n * sizeof *extents);
    store_make(s, extents, other->n, other->n_tensors, dtypes);
}

/* Whether both hold the same bytes. */
static inline bool store_equal(const struct store *a, const struct store *b)
{
    for (int i = 0; i < a->n; i++)
        if (memcmp(a->data[i], b->data[i], store_extent_bytes(a, i)) != 0)
            return false;
    return true;
}

static inline void store_free(struct store *s)
{
    for (int i = 0; i < s->n; i++)
        free(s->data[i]);
    free(s->data);
    free(s->dtypes);
    free(s->extents);
}

/* The bits of element number i of a tensor. */
static inline uint64_t store_bits(int tensor, int64_t i)
{
    struct rng r = { (uint64_t)tensor * 0x10001 + (uint64_t)i * 7919 };

    return rng_next(&r);
}

static inline int64_t store_index(const struct box *b, const struct reshard_tensor *t, int64_t i)
{
    int64_t index = 0, at[BOX_NDIM_MAX] = { 0 };

    for (int d = b->ndim - 1; d >= 0; d--) {
        at[d] = b->lo[d] + i % b->len[d];
        i /= b->len[d];
    }
    for (int d = 0; d < b->ndim; d++)
        index = index * t->shape[d] + at[d];
    return index;
}

/* Fill the store with store_bits, or return the number of elements that differ from it. */
static inline int64_t store_visit(struct store *s, const struct reshard_tensor *tensors, bool fill)
{
    int64_t wrong = 0;

    for (int i = 0; i < s->n; i++) {
        int t = s->extents[i].tensor, bytes = dtype_bytes(s->dtypes[t]);

        for (int64_t e = 0; e < box_elements(&s->extents[i].box); e++) {
            int64_t index = store_index(&s->extents[i].box, &tensors[t], e);
            uint64_t bits = store_bits(t, index);
            char *at = (char *)s->data[i] + e * bytes;

            if (fill)
                memcpy(at, &bits, (size_t)bytes);
            else
                wrong += memcmp(at, &bits, (size_t)bytes) != 0;
        }
    }
    return wrong;
}

/* Plan and execute a transfer. */
static inline tp_status store_move(const struct store *from, const struct store *to,
                                   const struct reshard_tensor *tensors, int64_t memory, int jobs,
                                   bool partial, struct transfer_stats *stats, struct tp_err *err)
{
    struct transfer m = {
        .n_tensors = from->n_tensors,
        .tensors = tensors,
        .from = &from->endpoint,
        .to = &to->endpoint,
        .memory_bytes = memory,
        .threads = jobs,
        .partial = partial,
    };
    struct transfer_plan *p;
    tp_status st = transfer_plan_make(&p, &m, err);

    if (st)
        return st;
    st = transfer_execute(p, stats, err);
    transfer_plan_free(p);
    return st;
}

#endif
