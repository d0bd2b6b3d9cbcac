/*
 * tests/fakecuda/memory.cc - device memory, which host code cannot access, and pinned memory.
 */
#include "tests/fakecuda/fake.h"

#include <csignal>
#include <cstdio>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

namespace fake
{

enum : size_t {
    ARENA_BYTES = (size_t)32 << 30, /* of addresses; pages are used when they are touched */
    ALIGNMENT = 256,                /* of allocations, as CUDA promises */
    PAGE = 4096,
    FILLED = (size_t)256 << 10, /* so much of a new allocation is not a number */
};

arena arenas[MEMORY_KINDS];
struct allocation {
    size_t size;
    unsigned flags;
};
static std::map<const char *, allocation> *allocations[MEMORY_KINDS]; /* by begin; never freed */
static int64_t used[MEMORY_KINDS], pinned_peak;
static int n_open;
static const char *last_begin, *last_end; /* the allocation that was looked up last */

/* Say what happened before the process ends by SIGSEGV. Only async-signal-safe calls. */
static void on_segv(int, siginfo_t *info, void *)
{
    static const char text[] = "fakecuda: host code accesses device memory; it may only pass "
                               "addresses on\n";

    if (is_kind(DEVICE_MEMORY, info->si_addr))
        (void)!write(STDERR_FILENO, text, sizeof text - 1);
    signal(SIGSEGV, SIG_DFL); /* the access happens again */
}

static void catch_segv()
{
    struct sigaction a = {}, old;

    sigaction(SIGSEGV, nullptr, &old);
    if (old.sa_handler != SIG_DFL)
        return; /* a sanitizer's handler says it too */
    a.sa_sigaction = on_segv;
    a.sa_flags = SA_SIGINFO | SA_NODEFER;
    sigaction(SIGSEGV, &a, nullptr);
}

void memory_begin()
{
    if (arenas[0].begin)
        return;
    for (int k = 0; k < MEMORY_KINDS; k++) {
        int access = k == DEVICE_MEMORY ? PROT_NONE : PROT_READ | PROT_WRITE;
        void *p =
            mmap(nullptr, ARENA_BYTES, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

        if (p == MAP_FAILED)
            report(nullptr, "%zu bytes of addresses cannot be reserved", (size_t)ARENA_BYTES);
        arenas[k] = { (char *)p, (char *)p + ARENA_BYTES, (char *)p };
        allocations[k] = new std::map<const char *, allocation>;
    }
    catch_segv();
    watch_begin();
}

int64_t memory_used(memory_kind kind)
{
    return used[kind];
}

int64_t memory_pinned_peak()
{
    return pinned_peak;
}

/* All device memory that was ever given out. */
static void protect(bool open)
{
    size_t n = ((size_t)(arenas[DEVICE_MEMORY].top - arenas[DEVICE_MEMORY].begin) + PAGE - 1) /
               PAGE * PAGE;

    if (n)
        mprotect(arenas[DEVICE_MEMORY].begin, n, open ? PROT_READ | PROT_WRITE : PROT_NONE);
}

memory_open::memory_open()
{
    if (n_open++ == 0)
        protect(true);
}

memory_open::~memory_open()
{
    if (--n_open == 0)
        protect(false);
}

/* A gap on both sides, and a random place among the aligned ones. New memory has any content: here
 * it is not a number, as far as FILLED. The rest of a large allocation, often a workspace that
 * nobody uses, gets no pages, because each would make every mprotect slower. */
void *memory_take(memory_kind kind, size_t n)
{
    arena *a = &arenas[kind];
    char *p;

    memory_begin();
    p = a->top + ALIGNMENT * (1 + random_below(16));
    if (n > (size_t)(a->end - p) - 2 * PAGE)
        return nullptr;
    a->top = p + (n + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT + ALIGNMENT;
    (*allocations[kind])[p] = { n, 0 };
    used[kind] += (int64_t)n;
    if (used[PINNED_MEMORY] > pinned_peak)
        pinned_peak = used[PINNED_MEMORY];
    memory_open open;
    memset(p, 0xff, n < FILLED ? n : FILLED);
    watch_new(kind, p, n);
    return p;
}

unsigned *memory_flags(memory_kind kind, void *p)
{
    auto found = allocations[kind]->find((const char *)p);

    return found == allocations[kind]->end() ? nullptr : &found->second.flags;
}

void memory_give_after(const char *call, void *p, const std::vector<uint32_t> &before)
{
    watch_end(call, p, allocations[DEVICE_MEMORY]->at((const char *)p).size, before);
    memory_give(DEVICE_MEMORY, p);
}

bool memory_give(memory_kind kind, void *p)
{
    auto found = allocations[kind]->find((const char *)p);

    if (found == allocations[kind]->end())
        return false;
    char *begin = (char *)p, *end = begin + found->second.size;
    char *first = (char *)(((uintptr_t)begin + PAGE - 1) / PAGE * PAGE);
    char *last = (char *)((uintptr_t)end / PAGE * PAGE);
    if (last > first) /* give the whole pages back to the system, not the addresses */
        madvise(first, (size_t)(last - first), MADV_DONTNEED);
    used[kind] -= (int64_t)found->second.size;
    watch_new(kind, p, found->second.size);
    allocations[kind]->erase(found);
    last_begin = last_end = nullptr;
    return true;
}

bool memory_contains(memory_kind kind, const void *p, size_t n, const char **begin, size_t *size)
{
    auto &map = *allocations[kind];

    if ((const char *)p >= last_begin && (const char *)p + n <= last_end)
        return true;
    auto next = map.upper_bound((const char *)p);
    *begin = nullptr;
    *size = 0;
    if (next == map.begin())
        return false;
    --next;
    *begin = next->first;
    *size = next->second.size;
    if ((size_t)((const char *)p - next->first) + n > next->second.size)
        return false;
    last_begin = next->first;
    last_end = last_begin + next->second.size;
    return true;
}

} // namespace fake
