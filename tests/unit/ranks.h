/*
 * tests/unit/ranks.h - run a function in several ranks that our own launcher starts.
 */
#ifndef TESTS_UNIT_RANKS_H
#define TESTS_UNIT_RANKS_H

#include <criterion/criterion.h>
#include <stdio.h>
#include <unistd.h>

#include "comm/launch.h"
#include "comm/world.h"

/* What a rank does. Returns the number of things that are wrong. */
typedef int (*ranks_fn)(struct comm_world *ranks, void *ctx);

/* In a rank: run fn and exit. */
static inline void be_a_rank(const struct comm_env *env, int64_t shared_bytes, ranks_fn fn,
                             void *ctx)
{
    struct comm_world *ranks = NULL;
    struct tp_err err = { 0 };
    int wrong;

    if (comm_open(&ranks, env, shared_bytes, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        _exit(100);
    }
    wrong = fn(ranks, ctx);
    comm_close(ranks, wrong ? TP_E_NO : TP_OK);
    _exit(wrong < 100 ? wrong : 99);
}

/* Run fn in n ranks, each with shared_bytes of memory for collectives. Returns the number of things
 * that the first failing rank found wrong; 0: nothing is wrong. */
static inline int run_ranks(int n, int64_t shared_bytes, ranks_fn fn, void *ctx)
{
    struct tp_err err = { 0 };
    struct comm_env env = { 0 };
    int code = 0;
    tp_status st = launch_ranks(n, &env.launched, &code, &err);

    if (env.launched.rank >= 0)
        be_a_rank(&env, shared_bytes, fn, ctx);
    cr_assert_eq(st, TP_OK, "%d ranks: %s", n, err.msg);
    return code;
}

/* Unless ok: print what is wrong and return 1. */
static inline int wrong_unless(int ok, const char *what)
{
    if (!ok)
        fprintf(stderr, "wrong: %s\n", what);
    return !ok;
}

#endif
