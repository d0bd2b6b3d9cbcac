/*
 * tests/fakecuda/block.h - the block that runs: its threads are fibers of one host thread.
 */
#ifndef TESTS_FAKECUDA_BLOCK_H
#define TESTS_FAKECUDA_BLOCK_H

#include <cuda_runtime.h>

#include "tests/fakecuda/fake.h"

namespace fake
{

enum : size_t { THREADS_MAX = 1024, WARP = 32 };

enum fiber_state { READY, AT_BARRIER, IN_WARP, ENDED };

enum warp_operation { WARP_BARRIER, WARP_SHUFFLE, WARP_BALLOT, WARP_TOGETHER };

struct fiber {
    void *stack_pointer;
    uint3 index;
    fiber_state state;
    const void *waits_at; /* the caller's address */
    /* at a barrier */
    int predicate, count;
    /* in a function of the warp */
    warp_operation operation;
    unsigned mask;
    void *exchange;
    void (*together)(void *const *of_lane);
    const char *name;
};

struct running_block {
    fiber f[THREADS_MAX];
    unsigned n, alive, at_barrier;
    unsigned ready[THREADS_MAX], n_ready;
    fiber *current;
    void *scheduler; /* its stack pointer */
    const fakecuda_call *call;
    /* lanes of each warp: that wait in a function of the warp; that have ended */
    unsigned in_warp[THREADS_MAX / WARP], ended[THREADS_MAX / WARP];
};
extern running_block block;

void block_make_ready(fiber *f);

/* Called by the thread that runs: others run until something makes it ready again. */
void block_wait(fiber *f, fiber_state state, const void *pc);

/* ---- warp.cc ---- */

/* The lanes of f's mask go on when all of them have come. */
void warp_try(const fiber *f);

} // namespace fake

#endif
