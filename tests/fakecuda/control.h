/*
 * tests/fakecuda/control.h - what a test may tell the fake device. A library that is built with it
 * exports this struct as `fakecuda_control`.
 */
#ifndef TESTS_FAKECUDA_CONTROL_H
#define TESTS_FAKECUDA_CONTROL_H

#include <stdbool.h>
#include <stdint.h>

struct fakecuda_control {
    /* The seed of all orders from now on: of operations, blocks, threads. At first it is the value
     * of FAKECUDA_SEED, or 0. */
    void (*seed)(uint64_t seed);
    /* How many devices there are, and the CUDA version that the driver supports (13000: 13.0; 0:
     * there is no driver). At first 1 and 13000. */
    void (*devices)(int count, int driver_version);
    /* The compute capability of devices that are opened from now on: 90 is 9.0. */
    void (*capability)(int capability);
    int (*capability_now)(void);
    /* The number of bytes of device memory. */
    void (*memory)(int64_t n_bytes);
    /* Let an operation fail with this CUDA error when it runs: the next one, or after n others. */
    void (*fail)(int error, int after);
    /* Operations that are queued and have not run. */
    int (*queued)(void);
    /* How many products of a warp (mma.sync) tensor cores have computed, and how many of a warp's
     * part of a warpgroup (wgmma). */
    int64_t (*mma_products)(void);
    int64_t (*wgmma_products)(void);
    /* How many products with a bias cuBLASLt has taken. */
    int64_t (*epilogue_products)(void);
    /* From now on cuBLASLt has no algorithm for products with this epilogue (a number of its
     * header; 0: it has all), as on a GPU for which NVIDIA has no such kernel. */
    void (*epilogue_missing)(uint32_t epilogue);
    /* How many batches of products cuBLAS and cuBLASLt have taken, and from now on whether they
     * answer that they have no such products. */
    int64_t (*batched_calls)(void);
    void (*batched_missing)(bool is_now);
    /* How many calls with the products of several groups cuBLAS has taken, and from now on whether
     * it answers that it has no such products. */
    int64_t (*grouped_calls)(void);
    void (*grouped_missing)(bool is_now);
    /* The most bytes of pinned memory that there were at a time. */
    int64_t (*pinned_peak)(void);
    /* Operations that were queued on the streams that there are, whether they have run or not. */
    uint64_t (*operations)(void);
    /* From now on what is not destroyed is no leak, because the test lets the program fail in a way
     * that the fake device does not see. */
    void (*handles_may_stay)(void);
};

#endif
