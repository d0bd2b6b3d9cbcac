/*
 * tests/mpi/control_calls.h - a property for each control message, with random sizes.
 *
 * All ranks call each property with the same random numbers. The functions print failures and
 * return their number.
 */
#ifndef TESTS_MPI_CONTROL_CALLS_H
#define TESTS_MPI_CONTROL_CALLS_H

#include "tests/mpi/comm_calls.h"

/* The host memory of a property. */
struct control_prop {
    struct comm_control *control;
    char *buf, *expect;
};

static inline int control_prop_broadcast(const struct control_prop *p, struct rng *r, uint64_t call)
{
    int root = (int)rng_int(r, 0, control_size(p->control) - 1);
    int64_t n = prop_size(r) * 5;
    struct tp_err err = { 0 };
    int failures = 0;

    prop_bytes(p->expect, n, call, root);
    memset(p->buf, 0, (size_t)n);
    if (control_rank(p->control) == root)
        memcpy(p->buf, p->expect, (size_t)n);
    PROP_EXPECT(!control_broadcast(p->control, p->buf, n, root, &err), "%s", err.msg);
    PROP_EXPECT(!memcmp(p->buf, p->expect, (size_t)n), "broadcast %llu of %lld bytes",
                (unsigned long long)call, (long long)n);
    return failures;
}

static inline int control_prop_all_gather(const struct control_prop *p, struct rng *r,
                                          uint64_t call)
{
    int size = control_size(p->control), me = control_rank(p->control);
    int64_t n = prop_size(r) * 8 / size;
    char *in = p->buf + size * n;
    struct tp_err err = { 0 };
    int failures = 0;

    for (int q = 0; q < size; q++)
        prop_bytes(p->expect + q * n, n, call, q);
    prop_bytes(in, n, call, me);
    PROP_EXPECT(!control_all_gather(p->control, p->buf, in, n, &err), "%s", err.msg);
    PROP_EXPECT(!memcmp(p->buf, p->expect, (size_t)(size * n)), "all_gather %llu of %lld bytes",
                (unsigned long long)call, (long long)n);
    return failures;
}

static inline int control_prop_gather(const struct control_prop *p, struct rng *r, uint64_t call)
{
    int size = control_size(p->control), me = control_rank(p->control);
    int64_t sizes[64], want[64], total = 0;
    void *all = sizes; /* anything but NULL */
    struct tp_err err = { 0 };
    int failures = 0;

    for (int q = 0; q < size; q++) {
        want[q] = rng_int(r, 0, 3) ? prop_size(r) * 8 / size : 0;
        prop_bytes(p->expect + total, want[q], call, q);
        total += want[q];
    }
    prop_bytes(p->buf, want[me], call, me);
    PROP_EXPECT(!control_gather(p->control, p->buf, want[me], &all, sizes, &err), "%s", err.msg);
    if (me != 0) {
        PROP_EXPECT(!all, "gather %llu: rank %d got a result", (unsigned long long)call, me);
        return failures;
    }
    PROP_EXPECT(!memcmp(sizes, want, (size_t)size * sizeof *want), "gather: sizes differ");
    PROP_EXPECT(!memcmp(all, p->expect, (size_t)total), "gather %llu of %lld bytes",
                (unsigned long long)call, (long long)total);
    free(all);
    return failures;
}

static inline int control_prop_reduce(const struct control_prop *p, struct rng *r, uint64_t call)
{
    int size = control_size(p->control), kind = (int)rng_int(r, 0, 2), ranks[64];
    int64_t n = prop_size(r);
    enum dtype type = kind == 0 ? DTYPE_F64 : DTYPE_I64;
    struct tp_err err = { 0 };
    tp_status st;
    int failures = 0;

    for (int q = 0; q < size; q++)
        ranks[q] = q;
    for (int64_t i = 0; i < n; i++)
        prop_store(p->buf, i, type, prop_value(call, control_rank(p->control), i));
    prop_reduce(p->expect, n, 0, ranks, size, call, type, kind == 2 ? COMM_MAX : COMM_SUM);
    if (kind == 0)
        st = control_sum_f64(p->control, (double *)(void *)p->buf, n, &err);
    else if (kind == 1)
        st = control_sum_i64(p->control, (int64_t *)(void *)p->buf, n, &err);
    else
        st = control_max_i64(p->control, (int64_t *)(void *)p->buf, n, &err);
    PROP_EXPECT(!st, "%s", err.msg);
    PROP_EXPECT(!memcmp(p->buf, p->expect, (size_t)n * 8), "reduce %llu of %lld elements",
                (unsigned long long)call, (long long)n);
    return failures;
}

static inline int control_prop_agree(const struct control_prop *p, struct rng *r, uint64_t call)
{
    int size = control_size(p->control), me = control_rank(p->control);
    int first = (int)rng_int(r, 0, size), second = (int)rng_int(r, 0, size);
    struct tp_err err = { 0 };
    tp_status st = TP_OK, got;
    char want[64];
    int failures = 0;

    if (me == first || me == second)
        st = tp_fail(&err, me % 2 ? TP_E_CORRUPT : TP_E_IO, "call %llu failed",
                     (unsigned long long)call);
    PROP_EXPECT(control_agree(NULL, st, &err) == st && control_rank(NULL) == 0 &&
                    control_size(NULL) == 1,
                "agree: a process alone is not rank 0 of 1 with its own status");
    got = control_agree(p->control, st, &err);
    first = first < second ? first : second;
    if (first == size) {
        PROP_EXPECT(got == TP_OK, "agree: rank %d gets status %d, but no rank failed", me, got);
        return failures;
    }
    PROP_EXPECT(got == (first % 2 ? TP_E_CORRUPT : TP_E_IO) && err.status == got,
                "agree: rank %d gets status %d of rank %d", me, got, first);
    snprintf(want, sizeof want, "rank %d: call %llu failed", first, (unsigned long long)call);
    PROP_EXPECT(strcmp(err.msg, me == first ? strstr(want, "call") : want) == 0,
                "agree: rank %d reads '%s'", me, err.msg);
    return failures;
}

static inline int control_prop_barrier(const struct control_prop *p, struct rng *r, uint64_t call)
{
    struct tp_err err = { 0 };
    int failures = 0;

    (void)r;
    (void)call;
    PROP_EXPECT(!control_barrier(p->control, &err), "%s", err.msg);
    return failures;
}

#endif
