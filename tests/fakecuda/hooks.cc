/*
 * tests/fakecuda/hooks.cc - what instrumented code calls before each access, in the place of the
 * sanitizers' libraries: kernels are compiled with -fsanitize=thread, so they call __tsan_read4 and
 * the like, and their copies of structs are calls of memcpy.
 */
#include <cuda_runtime.h>

#include <cstring>

#include "tests/fakecuda/fake.h"
#include "tests/fakecuda/traffic.h"

namespace fake
{

static bool is_checking; /* the checks themselves copy memory */

static void hook(const void *p, size_t n, bool is_write, bool is_atomic, const void *pc)
{
    if (!here.in_kernel || is_checking || n == 0 || on_a_stack(p))
        return;
    is_checking = true;
    watch_access(p, n, is_write, is_atomic, pc);
    is_checking = false;
}

void watch_load(const void *p, size_t n, const void *pc)
{
    hook(p, n, false, false, pc);
}

void watch_product(const void *p, size_t n, const void *pc)
{
    is_checking = true;
    watch_wgmma(p, n, pc);
    is_checking = false;
}

void count_access(const void *p, size_t n, bool is_write, const void *pc)
{
    if (!traffic_is_on || !here.in_kernel || is_checking || n == 0)
        return;
    is_checking = true;
    traffic_access(p, n, is_write, pc);
    is_checking = false;
}

void kernel_access(const void *p, size_t n, bool is_write, bool is_atomic, const void *pc)
{
    hook(p, n, is_write, is_atomic, pc);
    count_access(p, n, is_write, pc);
}

/* The kernel calls a function; NULL: it returns from one. */
static void call(const void *pc)
{
    if (!here.in_kernel || is_checking)
        return;
    is_checking = true;
    if (pc)
        traffic_call(pc);
    else
        traffic_return();
    is_checking = false;
}

} // namespace fake

void fakecuda_atomic(void *p, int n_bytes)
{
    fake::kernel_access(p, (size_t)n_bytes, true, true, __builtin_return_address(0));
}

extern "C" {

#define PC __builtin_return_address(0)
/* Most accesses are to local variables. */
#define ACCESS(p, n, is_write) \
    if (!fake::on_a_stack(p))  \
    fake::kernel_access(p, n, is_write, false, PC)
#define HOOKS(n)                            \
    void __tsan_read##n(void *p)            \
    {                                       \
        ACCESS(p, n, false);                \
    }                                       \
    void __tsan_write##n(void *p)           \
    {                                       \
        ACCESS(p, n, true);                 \
    }                                       \
    void __tsan_unaligned_read##n(void *p)  \
    {                                       \
        ACCESS(p, n, false);                \
    }                                       \
    void __tsan_unaligned_write##n(void *p) \
    {                                       \
        ACCESS(p, n, true);                 \
    }
HOOKS(1)
HOOKS(2)
HOOKS(4)
HOOKS(8)
HOOKS(16)

void __tsan_init()
{
}
void __tsan_func_entry(void *pc)
{
    if (fake::traffic_is_on)
        fake::call(pc);
}
void __tsan_func_exit()
{
    if (fake::traffic_is_on)
        fake::call(nullptr);
}

/* The copies of structs. The library is linked with --wrap for these three. */
void *__real_memcpy(void *dst, const void *src, size_t n);
void *__real_memmove(void *dst, const void *src, size_t n);
void *__real_memset(void *dst, int byte, size_t n);

/* The compiler does not say how a struct is aligned. So it has to be aligned as the widest loads
 * and stores that could copy it. */
static void check_struct(const void *p, size_t n, const void *pc)
{
    size_t alignment = (n | 16) & ~((n | 16) - 1); /* the lowest bit */

    if (fake::here.in_kernel && !fake::is_checking && (uintptr_t)p % alignment &&
        !fake::is_private((const char *)p))
        fake::report(pc, "a misaligned access: %p is not a multiple of %zu", p, alignment);
}

void *__wrap_memcpy(void *dst, const void *src, size_t n)
{
    check_struct(src, n, PC);
    check_struct(dst, n, PC);
    ACCESS(src, n, false);
    ACCESS(dst, n, true);
    return __real_memcpy(dst, src, n);
}

void *__wrap_memmove(void *dst, const void *src, size_t n)
{
    ACCESS(src, n, false);
    ACCESS(dst, n, true);
    return __real_memmove(dst, src, n);
}

void *__wrap_memset(void *dst, int byte, size_t n)
{
    ACCESS(dst, n, true);
    return __real_memset(dst, byte, n);
}

/* What clang calls instead since version 15. */
#define ALSO(name) __attribute__((alias(name)))
void *__tsan_memcpy(void *dst, const void *src, size_t n) ALSO("__wrap_memcpy");
void *__tsan_memmove(void *dst, const void *src, size_t n) ALSO("__wrap_memmove");
void *__tsan_memset(void *dst, int byte, size_t n) ALSO("__wrap_memset");

} // extern "C"

void fake::copy_unwatched(void *dst, const void *src, size_t n)
{
    __real_memcpy(dst, src, n);
}

void fake::fill_unwatched(void *dst, int byte, size_t n)
{
    __real_memset(dst, byte, n);
}
