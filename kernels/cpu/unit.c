/* kernels/cpu/unit.c - see kernels/cpu/unit.h. */
#include "kernels/cpu/unit.h"

#include <pthread.h>

#ifdef __x86_64__

#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>

/* __builtin_cpu_supports also asks whether the system saves the registers. */
static bool has_avx512_bf16(void)
{
    return __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}

/* clang 14 does not know the name. Linux gives a process the tiles' registers when it asks for them
 * (Linux, Documentation/arch/x86/xstate.rst). */
static bool has_amx_bf16(void)
{
    enum { ARCH_REQ_XCOMP_PERM = 0x1023, XFEATURE_XTILEDATA = 18 };
    const unsigned amx_bf16 = 1u << 22, amx_tile = 1u << 24;
    unsigned a, b, c, d;

    return __get_cpuid_count(7, 0, &a, &b, &c, &d) && (d & amx_bf16) && (d & amx_tile) &&
           syscall(SYS_arch_prctl, ARCH_REQ_XCOMP_PERM, XFEATURE_XTILEDATA) == 0;
}

#else

static bool has_avx512_bf16(void)
{
    return false;
}

static bool has_amx_bf16(void)
{
    return false;
}

#endif

/* In a virtual machine the processor's answer takes as long as a small product, so it is kept. */
static pthread_once_t units_once = PTHREAD_ONCE_INIT;
static unsigned units; /* written under units_once alone */

static void units_ask(void)
{
    units = (has_avx512_bf16() ? UNIT_AVX512_BF16 : 0u) | (has_amx_bf16() ? UNIT_AMX_BF16 : 0u);
}

static bool has(enum unit unit)
{
    pthread_once(&units_once, units_ask);
    return units & unit;
}

bool unit_usable(const struct device_queue *q, enum unit unit)
{
    return has(unit) && !(q && (q->device->without_units & unit));
}

#define F32            "fp32 products: oneDNN\n"
#define BF16_ATTENTION "bf16 attention: own kernels (AVX-512 BF16)\n"

const char *unit_description(void)
{
    if (has(UNIT_AVX512_BF16) && has(UNIT_AMX_BF16))
        return F32 "bf16 products: own kernels (AMX)\n"
                   "bf16 attention: own kernels (AVX-512 BF16, AMX)\n";
    if (has(UNIT_AVX512_BF16))
        return F32 "bf16 products: own kernels (AVX-512 BF16)\n" BF16_ATTENTION;
    return F32 "bf16 products: oneDNN, or fp32 where it has no kernel for this processor\n"
               "bf16 attention: by products\n";
}
