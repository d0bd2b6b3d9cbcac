/*
 * tests/unit/cuda_support.h - the CUDA library, built for the fake CUDA device of tests/fakecuda;
 * or the library that TP_CUDA_LIBRARY names, for a GPU (make gpu-check).
 */
#ifndef TESTS_UNIT_CUDA_SUPPORT_H
#define TESTS_UNIT_CUDA_SUPPORT_H

#include <criterion/criterion.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "comm/cuda/library.h"
#include "tests/fakecuda/control.h"

static const struct cuda_library *cuda;
static const struct fakecuda_control *fake; /* NULL: a GPU */

/* Load the library into this process, once. */
static inline __attribute__((unused)) void load_cuda(void)
{
    const char *build = getenv("TP_BUILD"), *named = getenv("TP_CUDA_LIBRARY");
    char path[4096];
    struct tp_err err = { 0 };

    if (cuda)
        return;
    snprintf(path, sizeof path, "%s/tests/libtp-cuda.so", build ? build : "build/plain");
    if (named && *named)
        snprintf(path, sizeof path, "%s", named);
    cr_assert_eq(cuda_library_load(&cuda, path, &err), TP_OK, "%s", err.msg);
    fake = dlsym(dlopen(path, RTLD_NOW), "fakecuda_control");
    cr_assert(fake || named, "%s was not built for the fake device", path);
}

/* A GPU whose work runs in the order of this seed. */
static inline __attribute__((unused)) struct device *open_cuda(uint64_t seed)
{
    struct device *d;
    struct tp_err err = { 0 };

    load_cuda();
    if (fake)
        fake->seed(seed);
    cr_assert_eq(cuda->device_open(&d, 0, &err), TP_OK, "%s", err.msg);
    return d;
}

#endif
