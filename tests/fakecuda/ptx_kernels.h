/*
 * tests/fakecuda/ptx_kernels.h - kernels as nvcc has compiled them: ptx/translate.py makes a
 * function of the PTX of each, and a library that has these functions runs them in the place of the
 * kernels that clang has compiled (make ptx).
 */
#ifndef TESTS_FAKECUDA_PTX_KERNELS_H
#define TESTS_FAKECUDA_PTX_KERNELS_H

#include <cuda_runtime.h>

namespace ptx
{

/* A kernel's translation. `kernel` is what the host launches. */
struct translation {
    const void *kernel;
    const char *name;
    void (*run)(const fakecuda_call *); /* with the bytes of .param as arguments */
    size_t param_bytes;
    unsigned threads_max;
};

/* A file of translations; each of them has a static one. */
struct translations {
    translations(const translation *t, size_t n);
};

/* The state spaces of addresses. OWN: of the function's own parameters and stack. */
enum space { GENERIC, GLOBAL, SHARED, PARAM, OWN };

/* Where the checks of an access begin; it is reported at the place of the call. */
void ptx_access(const void *p, size_t n, space s, bool is_write);
void ptx_atomic(const void *p, size_t n);

/* [address, address + n) is in the function's local memory. */
void ptx_local(uint64_t address, size_t n, const void *local, size_t size);

/* The addresses of shared memory are 32 bits. */
char *ptx_shared(uint32_t address);
uint32_t ptx_shared_address(const void *p);

/* Variables with .shared, and constants of a module. */
#define PTX_SHARED   static __attribute__((section("fakecuda_shared")))
#define PTX_CONSTANT static __attribute__((section("fakecuda_constants")))

} // namespace ptx

namespace fake
{

/* The call of the kernel's translation with the same arguments; if there are none, the same call.
 */
fakecuda_call ptx_call(const fakecuda_call &call, unsigned threads);

} // namespace fake

#endif
