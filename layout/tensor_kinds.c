/* layout/tensor_kinds.c - see layout/tensor_kinds.h. */
#include "layout/tensor_kinds.h"

#include <stdlib.h>

static bool is_same_kind(const struct tensor *a, const struct tensor *b)
{
    const struct placement *p = &a->placement, *q = &b->placement;

    return a->shape[p->dim] == b->shape[q->dim] && p->dim == q->dim && p->unit == q->unit &&
           p->blocks == q->blocks && p->first_block == q->first_block &&
           p->replicate == q->replicate && p->uneven == q->uneven && p->experts == q->experts;
}

/* FNV-1a over the numbers that is_same_kind compares. */
static uint64_t hash_of(const struct tensor *t)
{
    const struct placement *p = &t->placement;
    const int64_t values[] = { t->shape[p->dim], p->unit,      p->dim,    p->blocks,
                               p->first_block,   p->replicate, p->uneven, p->experts };
    uint64_t hash = 0xcbf29ce484222325;

    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        hash = (hash ^ (uint64_t)values[i]) * 0x100000001b3;
    return hash ^ hash >> 32;
}

/* Slots of a hash table for n tensors: a power of two of at least 2 n. */
static size_t table_size(int n)
{
    size_t size = 16;

    while (size < 2 * (size_t)n)
        size *= 2;
    return size;
}

tp_status tensor_kinds_find(struct tensor_kinds *out, const struct tensor *tensors, int n,
                            struct arena *arena, struct tp_err *err)
{
    size_t size = table_size(n);
    const struct tensor **table = calloc(size, sizeof *table), **first; /* of each kind */
    struct tensor_kinds kinds = { 0 };
    tp_status st = TP_OK;

    first = calloc((size_t)n + 1, sizeof *first);
    for (int i = 0; i < n && table && first; i++) {
        const struct tensor *t = &tensors[i];
        size_t slot;

        if (t->placement.dim < 0)
            continue;
        slot = hash_of(t) % size;
        while (table[slot] && !is_same_kind(table[slot], t))
            slot = (slot + 1) % size;
        if (!table[slot])
            table[slot] = first[kinds.n++] = t;
    }
    kinds.tensors = arena_array(arena, (size_t)kinds.n, sizeof *kinds.tensors);
    for (int i = 0; i < kinds.n && kinds.tensors; i++)
        kinds.tensors[i] = *first[i];
    if (table && first && kinds.tensors)
        *out = kinds;
    else
        st = tp_fail(err, TP_E_NOMEM, "no memory for the kinds of %d tensors", n);
    free(first);
    free(table);
    return st;
}
