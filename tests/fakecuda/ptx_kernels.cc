/* tests/fakecuda/ptx_kernels.cc - see ptx_kernels.h. */
#include "tests/fakecuda/ptx_kernels.h"

#include <map>
#include <new>

#include "tests/fakecuda/fake.h"

/* The linker makes these around the constants of all translations. */
extern "C" char __start_fakecuda_constants[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_fakecuda_constants[] __attribute__((weak, visibility("hidden")));

namespace
{

std::map<const void *, ptx::translation> &table()
{
    static std::map<const void *, ptx::translation> all;
    return all;
}

bool is_within(const void *p, size_t n, const char *begin, const char *end)
{
    return (const char *)p >= begin && (const char *)p + n <= end;
}

const char *name_of(ptx::space s)
{
    return s == ptx::GLOBAL ? "global" : s == ptx::SHARED ? "shared" : "parameter";
}

/* Whether an address can be of the space that the instruction names. */
bool is_of_space(const void *p, size_t n, ptx::space s)
{
    using namespace fake;

    if (s == ptx::SHARED)
        return is_within(p, n, shared_begin(), shared_end());
    if (s == ptx::PARAM)
        return is_within(p, n, here.args, here.args_end);
    return s == ptx::GENERIC || (!is_within(p, 1, shared_begin(), shared_end()) && !on_a_stack(p));
}

void check(const void *p, size_t n, ptx::space s, bool is_write, bool is_atomic, const void *pc)
{
    if ((uintptr_t)p % n)
        fake::report(pc, "a misaligned access: %p is not a multiple of %zu", p, n);
    if (!is_of_space(p, n, s))
        fake::report(pc, "%s of %zu bytes at %p, which is not in %s memory",
                     is_write ? "a write" : "a read", n, p, name_of(s));
    if (s != ptx::PARAM && !is_within(p, n, __start_fakecuda_constants, __stop_fakecuda_constants))
        fake::kernel_access(p, n, is_write, is_atomic, pc);
}

} // namespace

namespace ptx
{

translations::translations(const translation *t, size_t n)
{
    for (size_t i = 0; i < n; i++)
        table()[t[i].kernel] = t[i];
}

void ptx_access(const void *p, size_t n, space s, bool is_write)
{
    check(p, n, s, is_write, false, __builtin_return_address(0));
}

void ptx_atomic(const void *p, size_t n)
{
    check(p, n, GLOBAL, true, true, __builtin_return_address(0));
}

void ptx_local(uint64_t address, size_t n, const void *local, size_t size)
{
    const char *begin = (const char *)local;
    const void *pc = __builtin_return_address(0);

    if (address % n)
        fake::report(pc, "a misaligned access: %#zx is not a multiple of %zu", (size_t)address, n);
    if (!is_within((const void *)address, n, begin, begin + size))
        fake::report(pc,
                     "an access of %zu bytes at %#zx is outside of local memory (%zu bytes at %p)",
                     n, (size_t)address, size, local);
}

/* Not from 0, so that an offset that is used without its variable is found. */
enum : uint32_t { SHARED_BASE = 0x1000000 };

char *ptx_shared(uint32_t address)
{
    return fake::shared_begin() + (int64_t)address - SHARED_BASE;
}

uint32_t ptx_shared_address(const void *p)
{
    return (uint32_t)((const char *)p - fake::shared_begin()) + SHARED_BASE;
}

} // namespace ptx

uint32_t fakecuda_shared_address(const void *p)
{
    return ptx::ptx_shared_address(p);
}

fakecuda_call fake::ptx_call(const fakecuda_call &call, unsigned threads)
{
    auto found = table().find(call.kernel);

    if (table().empty())
        return call;
    if (found == table().end())
        report(nullptr, "%s is launched, and has no translation of its PTX",
               symbol_of(call.kernel));
    const ptx::translation &t = found->second;
    if (threads > t.threads_max)
        report(nullptr, "%s is launched with %u threads, and was compiled for at most %u", t.name,
               threads, t.threads_max);
    size_t n = call.params(call.args, nullptr);
    if (n != t.param_bytes)
        report(nullptr, "%s has %zu bytes of arguments, and %zu in PTX", t.name, n, t.param_bytes);
    char *bytes = (char *)::operator new(n ? n : 1, std::align_val_t(16));
    call.params(call.args, bytes);
    call.free(call.args);
    append_line("FAKECUDA_PTX_KERNELS", "%s\n", t.name);
    return { call.kernel,
             bytes,
             n,
             t.run,
             [](const void *p) { ::operator delete((void *)p, std::align_val_t(16)); },
             call.params };
}
