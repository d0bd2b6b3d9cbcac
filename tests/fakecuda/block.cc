/*
 * tests/fakecuda/block.cc - runs a grid: blocks one after the other in a random order, and the
 * threads of a block as fibers of one host thread, also in a random order. A thread runs until it
 * waits at a barrier or for the other lanes of its warp.
 */
#include <cstdio>
#include <map>
#include <memory>
#include <sys/mman.h>

#include "tests/fakecuda/api.h"
#include "tests/fakecuda/block.h"
#include "tests/fakecuda/ptx_kernels.h"
#include "tests/fakecuda/stream.h"
#include "tests/fakecuda/traffic.h"

fakecuda_place fakecuda_at;

/* Save the registers that a function must keep, and the stack; continue on another stack. What is
 * saved has SAVED words, and word CONTINUES_AT is the address at which a stack continues. */
extern "C" void fakecuda_switch(void **save, void *to);

#if defined(__aarch64__)
enum { SAVED = 20, CONTINUES_AT = 11 };
asm(".text\n"
    ".globl fakecuda_switch\n"
    ".hidden fakecuda_switch\n"
    ".type fakecuda_switch, %function\n"
    "fakecuda_switch:\n"
    "    sub sp, sp, #160\n"
    "    stp x19, x20, [sp]\n    stp x21, x22, [sp, #16]\n    stp x23, x24, [sp, #32]\n"
    "    stp x25, x26, [sp, #48]\n    stp x27, x28, [sp, #64]\n    stp x29, x30, [sp, #80]\n"
    "    stp d8, d9, [sp, #96]\n    stp d10, d11, [sp, #112]\n"
    "    stp d12, d13, [sp, #128]\n    stp d14, d15, [sp, #144]\n"
    "    mov x9, sp\n    str x9, [x0]\n    mov sp, x1\n"
    "    ldp x19, x20, [sp]\n    ldp x21, x22, [sp, #16]\n    ldp x23, x24, [sp, #32]\n"
    "    ldp x25, x26, [sp, #48]\n    ldp x27, x28, [sp, #64]\n    ldp x29, x30, [sp, #80]\n"
    "    ldp d8, d9, [sp, #96]\n    ldp d10, d11, [sp, #112]\n"
    "    ldp d12, d13, [sp, #128]\n    ldp d14, d15, [sp, #144]\n"
    "    add sp, sp, #160\n"
    "    ret\n");
#elif defined(__x86_64__)
enum { SAVED = 8, CONTINUES_AT = 6 }; /* the last word aligns the stack */
asm(".text\n"
    ".globl fakecuda_switch\n"
    ".hidden fakecuda_switch\n"
    ".type fakecuda_switch, @function\n"
    "fakecuda_switch:\n"
    "    pushq %rbp\n    pushq %rbx\n    pushq %r12\n    pushq %r13\n    pushq %r14\n    pushq "
    "%r15\n"
    "    movq %rsp, (%rdi)\n    movq %rsi, %rsp\n"
    "    popq %r15\n    popq %r14\n    popq %r13\n    popq %r12\n    popq %rbx\n    popq %rbp\n"
    "    ret\n");
#else
#error "fakecuda_switch has no instructions for this processor"
#endif

/* The linker makes these around the section of all __shared__ variables. */
extern "C" char __start_fakecuda_shared[] __attribute__((weak, visibility("hidden")));
extern "C" char __stop_fakecuda_shared[] __attribute__((weak, visibility("hidden")));

/* Here the dynamic shared memory of each kernel begins. */
alignas(1024) static __attribute__((section("fakecuda_shared"))) char dynamic[fake::DYNAMIC_MAX];

namespace fake
{

place here;
char *stacks_begin, *stacks_end;
running_block block;

/* A kernel may have 32 KiB of arguments. Not a power of two, so that the stacks' tops are in
 * different sets of the caches. */
enum : size_t { STACK = (96 << 10) + 1088 };

char *shared_begin()
{
    return __start_fakecuda_shared;
}

char *shared_end()
{
    return __stop_fakecuda_shared;
}

static size_t dynamic_now; /* bytes that the grid has */

char *dynamic_begin()
{
    return dynamic;
}

size_t dynamic_bytes()
{
    return dynamic_now;
}

/* The most dynamic shared memory with which a kernel may be launched. */
static std::map<const void *, size_t> dynamic_limits;

static size_t dynamic_limit(const void *kernel)
{
    auto found = dynamic_limits.find(kernel);

    return found == dynamic_limits.end() ? (size_t)SHARED_DEFAULT : found->second;
}

/* ---- switching ---- */

static void enter(fiber *f)
{
    block.current = f;
    fakecuda_at.thread = f->index;
    here.thread = (uint16_t)(f - block.f);
    here.in_kernel = true;
    fakecuda_switch(&block.scheduler, f->stack_pointer);
    here.in_kernel = false;
}

static void leave(fiber *f)
{
    here.in_kernel = false;
    fakecuda_switch(&f->stack_pointer, block.scheduler);
}

static void fiber_main()
{
    block.call->run(block.call);
    async_copy_end_thread();
    wgmma_end_thread();
    block.current->state = ENDED;
    leave(block.current);
}

/* A stack from which fakecuda_switch continues at the beginning of fiber_main. */
static void prepare(fiber *f, unsigned number)
{
    void **saved = (void **)(stacks_begin + (size_t)(number + 1) * STACK) - SAVED;

    memset(saved, 0, SAVED * sizeof *saved);
    saved[CONTINUES_AT] = (void *)fiber_main;
    f->stack_pointer = saved;
    f->state = READY;
    f->index = { number % blockDim.x, number / blockDim.x % blockDim.y,
                 number / (blockDim.x * blockDim.y) };
}

void block_make_ready(fiber *f)
{
    f->state = READY;
    block.ready[block.n_ready++] = (unsigned)(f - block.f);
}

/* ---- waiting ---- */

static void release_barrier()
{
    const fiber *first = nullptr;
    int count = 0;

    for (unsigned i = 0; i < block.n; i++)
        if (block.f[i].state == AT_BARRIER) {
            count += block.f[i].predicate;
            if (!first)
                first = &block.f[i];
            if (block.f[i].waits_at != first->waits_at)
                report(nullptr,
                       "threads of a block wait at different barriers: thread %u in %s, and others "
                       "elsewhere (kernel at block %u)",
                       i, symbol_of(block.f[i].waits_at), here.block);
        }
    here.barrier++;
    block.at_barrier = 0;
    for (unsigned i = 0; i < block.n; i++)
        if (block.f[i].state == AT_BARRIER) {
            block.f[i].count = count;
            block_make_ready(&block.f[i]);
        }
}

[[noreturn]] static void report_stuck()
{
    char text[800];
    size_t at = 0;

    for (unsigned i = 0; i < block.n && at < 600; i++) {
        const fiber *f = &block.f[i];

        if (i && f->state == f[-1].state && f->waits_at == f[-1].waits_at)
            continue;
        at += (size_t)snprintf(text + at, sizeof text - at, "; thread %u %s%s", i,
                               f->state == ENDED ? "has ended" : "waits in ",
                               f->state == ENDED ? "" : symbol_of(f->waits_at));
    }
    report(nullptr, "block %u of %s waits for ever%s", here.block, symbol_of(here.kernel), text);
}

/* ---- blocks and grids ---- */

/* Lanes that wait for this one wait in vain. */
static void end_thread(const fiber *f)
{
    unsigned first = (unsigned)(f - block.f) / WARP * WARP;

    block.alive--;
    block.ended[first / WARP]++;
    for (unsigned i = first; i < first + WARP && i < block.n; i++)
        if (block.f[i].state == IN_WARP)
            warp_try(&block.f[i]);
}

static void run_block()
{
    block.alive = block.n;
    block.at_barrier = block.n_ready = 0;
    here.barrier = 0;
    memset(here.warp_barrier, 0, sizeof here.warp_barrier);
    memset(here.proxy_fences, 0, sizeof here.proxy_fences);
    memset(block.in_warp, 0, sizeof block.in_warp);
    memset(block.ended, 0, sizeof block.ended);
    watch_block();
    wgmma_begin_block();
    for (unsigned i = 0; i < block.n; i++) {
        prepare(&block.f[i], i);
        block_make_ready(&block.f[i]);
    }
    while (block.alive) {
        if (!block.n_ready)
            report_stuck();
        unsigned chosen = (unsigned)random_below(block.n_ready);
        fiber *f = &block.f[block.ready[chosen]];

        block.ready[chosen] = block.ready[--block.n_ready];
        enter(f);
        if (traffic_is_on)
            traffic_wait();
        if (f->state == ENDED)
            end_thread(f);
        else if (f->state == IN_WARP)
            warp_try(f);
        if (block.at_barrier && block.at_barrier == block.alive)
            release_barrier();
    }
    wgmma_end_block();
    if (traffic_is_on)
        traffic_end_block();
}

static void take_stacks()
{
    enum : size_t { BYTES = THREADS_MAX * STACK };
    void *p = mmap(nullptr, BYTES, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        report(nullptr, "no addresses for the stacks of a block");
    stacks_begin = (char *)p;
    stacks_end = stacks_begin + BYTES;
}

static void run_grid(const cudaLaunchConfig_t &config, const fakecuda_call &call)
{
    const dim3 g = config.gridDim, b = config.blockDim;
    std::vector<uint32_t> order(g.x * g.y * g.z);

    if (!stacks_begin)
        take_stacks();
    traffic_begin();
    fakecuda_at.block_dim = b;
    fakecuda_at.grid_dim = g;
    dynamic_now = config.dynamicSmemBytes;
    block.n = b.x * b.y * b.z;
    block.call = &call;
    here.kernel = call.kernel;
    here.args = (const char *)call.args;
    here.args_end = here.args + call.args_bytes;
    for (uint32_t i = 0; i < order.size(); i++) {
        uint32_t k = (uint32_t)random_below(i + 1);
        order[i] = order[k];
        order[k] = i;
    }
    for (uint32_t i : order) {
        here.block = i;
        fakecuda_at.block = { i % g.x, i / g.x % g.y, i / g.x / g.y };
        run_block();
    }
    if (traffic_is_on)
        traffic_end_grid();
    here.kernel = nullptr;
}

/* ---- called by kernels ---- */

void block_wait(fiber *f, fiber_state state, const void *pc)
{
    f->state = state;
    f->waits_at = pc;
    leave(f);
    here.in_kernel = true;
}

} // namespace fake

void *fakecuda_dynamic_shared()
{
    return dynamic;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute, int value)
{
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize)
        fake::report(nullptr, "cudaFuncSetAttribute: the fake device has no attribute %d",
                     (int)attribute);
    if (value < 0 || (size_t)value > fake::DYNAMIC_MAX)
        return cudaErrorInvalidValue;
    fake::dynamic_limits[kernel] = (size_t)value;
    return cudaSuccess;
}

static int wait_at_barrier(const void *which, int predicate)
{
    fake::fiber *f = fake::block.current;

    f->predicate = predicate;
    fake::block.at_barrier++;
    fake::block_wait(f, fake::AT_BARRIER, which);
    return f->count;
}

int fakecuda_barrier(int predicate)
{
    return wait_at_barrier(__builtin_return_address(0), predicate);
}

void fakecuda_barrier_anywhere()
{
    wait_at_barrier(reinterpret_cast<const void *>(fakecuda_barrier_anywhere), 0);
}

cudaError_t fakecuda_launch(const cudaLaunchConfig_t *config, const fakecuda_call &launched)
{
    const dim3 g = config->gridDim, b = config->blockDim;
    const cudaLaunchConfig_t copy = *config;
    uint64_t threads = (uint64_t)b.x * b.y * b.z;
    const fakecuda_call call = fake::ptx_call(launched, (unsigned)threads);
    const std::shared_ptr<const void> args(call.args, call.free);
    fake::api_call guard;

    if (!fake::stream_exists(config->stream))
        fake::report(nullptr, "a launch: the stream does not exist");
    if (config->dynamicSmemBytes > fake::dynamic_limit(launched.kernel))
        return cudaErrorInvalidValue;
    if (threads == 0 || threads > 1024 || b.z > 64 || g.x == 0 || g.y == 0 || g.z == 0 ||
        g.x > 0x7fffffff || g.y > 65535 || g.z > 65535)
        return cudaErrorInvalidConfiguration;
    if (!config->stream || !config->stream->capture)
        fake::load(call.kernel);
    fake::enqueue(config->stream, "kernel", [=] {
        (void)args; /* freed with this function */
        fake::run_grid(copy, call);
    });
    return fake::device_failure;
}
