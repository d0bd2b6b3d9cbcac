/*
 * tests/fakecuda/watch.cc - what the loads and stores of kernels, and copies, may not do.
 *
 * Called before each access (hooks.cc). A cell for each GRANULE bytes has the last write, and the
 * reads since. Two accesses, one of them a write, are a race unless one comes before the other: by
 * streams and events (vector clocks) between operations; by a barrier within a block; never between
 * blocks of one kernel.
 */
#include <cuda_runtime.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <map>
#include <sys/mman.h>

#include "tests/fakecuda/fake.h"

namespace fake
{

enum : size_t { GRANULE = 2, SHARED_MAX = 2 << 20 };

struct access {
    uint32_t op, block;
    uint16_t stream, thread, barrier, warp_barrier, proxy_fences, none;
};

/* IN_FLIGHT: of an asynchronous copy that is not complete. */
enum { IS_ATOMIC = 1, BY_LANES = 2, BY_WARPS = 4, BY_BLOCKS = 8, IN_FLIGHT = 16 };

struct alignas(16) cell {
    access write, read;
    uint32_t readers;               /* other operations that read it: a number of reader_sets */
    uint8_t written, seen, defined; /* the bytes of the last write, the last reads, any write */
    uint8_t flags; /* BY_*: who has read it in the operation of `read`; IN_FLIGHT */
};

static cell *cells[MEMORY_KINDS], *shared_cells;
static const char *shared_first, *shared_last; /* shared_begin() and shared_end() */
static char *touched_begin, *touched_end; /* of shared memory: what is not as a block finds it */

static cell *reserve(size_t bytes)
{
    void *p = mmap(nullptr, bytes / GRANULE * sizeof(cell), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);

    if (p == MAP_FAILED)
        report(nullptr, "no addresses for the cells of %zu bytes of memory", bytes);
    return (cell *)p;
}

void watch_begin()
{
    for (int k = 0; k < MEMORY_KINDS; k++)
        cells[k] = reserve((size_t)(arenas[k].end - arenas[k].begin));
    shared_cells = reserve(SHARED_MAX);
    shared_first = touched_begin = shared_begin();
    shared_last = touched_end = shared_end();
}

/* Any content: here it is not a number. The shared memory of all kernels together is hundreds of
 * KiB, so only what the block before has written is filled. */
void watch_block()
{
    if (touched_begin < touched_end)
        memset(touched_begin, 0xff, (size_t)(touched_end - touched_begin));
    touched_begin = shared_end();
    touched_end = shared_begin();
}

static void touch_shared(char *p, size_t n)
{
    touched_begin = std::min(touched_begin, p);
    touched_end = std::max(touched_end, p + n);
}

/* Cells that are zero were never accessed. Whole pages of them go back to the system. */
void watch_new(memory_kind kind, const void *p, size_t n)
{
    enum : uintptr_t { PAGE = 4096 };
    size_t at = (size_t)((const char *)p - arenas[kind].begin);
    char *begin = (char *)(cells[kind] + at / GRANULE);
    char *end = (char *)(cells[kind] + (at + n + GRANULE - 1) / GRANULE);
    char *first = (char *)(((uintptr_t)begin + PAGE - 1) / PAGE * PAGE);
    char *last = (char *)((uintptr_t)end / PAGE * PAGE);

    if (first >= last) {
        memset(begin, 0, (size_t)(end - begin));
        return;
    }
    memset(begin, 0, (size_t)(first - begin));
    madvise(first, (size_t)(last - first), MADV_DONTNEED);
    memset(last, 0, (size_t)(end - last));
}

/* ---- the end of an allocation ---- */

static void check_ended(const char *call, const cell &c, const void *at,
                        const std::vector<uint32_t> &before);

/* Most cells of a large workspace were never accessed, and their pages are not there. */
void watch_end(const char *call, const void *p, size_t n, const std::vector<uint32_t> &before)
{
    enum : size_t { PAGE = 4096 };
    cell *const all = cells[DEVICE_MEMORY];
    const size_t first = (size_t)((const char *)p - arenas[DEVICE_MEMORY].begin) / GRANULE;
    const size_t end = first + (n + GRANULE - 1) / GRANULE;
    char *const pages = (char *)((uintptr_t)(all + first) / PAGE * PAGE);
    std::vector<unsigned char> is_there(((size_t)((char *)(all + end) - pages) + PAGE - 1) / PAGE);

    if (mincore(pages, is_there.size() * PAGE, is_there.data()))
        report(nullptr, "mincore failed");
    for (size_t i = first; i < end; i++) {
        const size_t at = (size_t)((char *)(all + i) - pages), next = at + sizeof *all;

        if (is_there[at / PAGE] || is_there[(next - 1) / PAGE])
            check_ended(call, all[i], (const char *)p + (i - first) * GRANULE, before);
        else if (next % PAGE &&
                 PAGE - next % PAGE > sizeof *all) /* to the last cell of this page */
            i += (PAGE - next % PAGE) / sizeof *all - 1;
    }
}

/* ---- sets of operations that have read a cell ---- */

using reader = std::pair<uint16_t, uint32_t>; /* stream and number */

static std::vector<std::vector<reader>> reader_sets = { {} };
static std::map<std::vector<reader>, uint32_t> set_numbers = { { {}, 0 } };

static bool came_before(uint32_t stream, uint32_t op)
{
    return stream < now_running.before->size() && (*now_running.before)[stream] >= op;
}

/* The set without what came before the operation that runs, and with one more. */
static uint32_t find_with_reader(uint32_t set, reader more)
{
    std::vector<reader> next;

    for (const reader &r : reader_sets[set])
        if (!came_before(r.first, r.second))
            next.push_back(r);
    if (!came_before(more.first, more.second))
        next.push_back(more);
    std::sort(next.begin(), next.end());
    next.erase(std::unique(next.begin(), next.end()), next.end());
    auto found = set_numbers.find(next);
    if (found != set_numbers.end())
        return found->second;
    reader_sets.push_back(next);
    return set_numbers[next] = (uint32_t)reader_sets.size() - 1;
}

/* The same; cells that are read one after the other mostly have the same readers. */
static uint32_t with_reader(uint32_t set, reader more)
{
    static struct {
        uint32_t stream, op, set;
        reader more;
        uint32_t result;
    } last;

    if (last.stream != now_running.stream || last.op != now_running.op || last.set != set ||
        last.more != more || last.op == 0)
        last = { now_running.stream, now_running.op, set, more, find_with_reader(set, more) };
    return last.result;
}

static void check_ended(const char *call, const cell &c, const void *at,
                        const std::vector<uint32_t> &before)
{
    const auto check = [&](const char *what, uint32_t stream, uint32_t op) {
        if (stream >= before.size() || before[stream] < op)
            report(nullptr,
                   "%s of memory in use: %s of %p by operation %u of stream %u may come later, "
                   "and the call does not wait",
                   call, what, at, op, stream);
    };

    if (c.written)
        check("a write", c.write.stream, c.write.op);
    if (c.seen)
        check("a read", c.read.stream, c.read.op);
    for (const reader &r : reader_sets[c.readers])
        check("a read", r.first, r.second);
}

/* ---- one access ---- */

struct request {
    const char *at;
    const access &by;
    bool is_write, is_atomic, is_shared;
    const void *pc;
    async_end end = NOT_ASYNC;
    bool is_wgmma = false;
};

static bool same_operation(const access &a, const access &b)
{
    return a.stream == b.stream && a.op == b.op;
}

[[noreturn]] static void report_race(const request &q, const access &a, const char *then)
{
    const char *now = q.is_atomic ? "an atomic access" : q.is_write ? "a write" : "a read";

    if (!same_operation(a, q.by))
        report(q.pc,
               "race between streams: %s of %p, and %s by operation %u of stream %u, which no "
               "event orders",
               now, (const void *)q.at, then, a.op, a.stream);
    if (a.block != q.by.block)
        report(q.pc, "race between blocks: %s of %p, and %s by block %u, thread %u", now,
               (const void *)q.at, then, a.block, a.thread);
    report(q.pc,
           "race within a block, in %s memory: %s of %p, and %s by thread %u, with no barrier "
           "between",
           q.is_shared ? "shared" : "global", now, (const void *)q.at, then, a.thread);
}

/* Whether access a came before q. several: BY_* of all accesses that a stands for. */
static bool is_before(const access &a, const request &q, unsigned several)
{
    if (!same_operation(a, q.by))
        return came_before(a.stream, a.op);
    if (!here.in_kernel)
        return true;
    if (a.block != q.by.block || (several & BY_BLOCKS))
        return false;
    if (a.barrier != q.by.barrier)
        return true;
    if ((several & BY_WARPS) || a.thread / 32 != q.by.thread / 32)
        return false;
    if (a.warp_barrier != q.by.warp_barrier)
        return true;
    return a.thread == q.by.thread && !(several & BY_LANES);
}

static void note_read(cell *c, const request &q, uint8_t mask)
{
    const access &a = c->read;

    if (!c->seen || !same_operation(a, q.by)) {
        if (c->seen || c->readers)
            c->readers = with_reader(c->readers, { a.stream, a.op });
        c->flags &= IS_ATOMIC;
        c->seen = 0;
    } else if (a.block != q.by.block) {
        c->flags |= BY_BLOCKS;
    } else if (a.barrier != q.by.barrier) {
        c->flags &= (uint8_t) ~(BY_LANES | BY_WARPS);
    } else if (a.thread / 32 != q.by.thread / 32) {
        c->flags |= BY_WARPS;
    } else if (a.warp_barrier != q.by.warp_barrier) {
        c->flags &= (uint8_t)~BY_LANES;
    } else if (a.thread != q.by.thread) {
        c->flags |= BY_LANES;
    }
    c->seen |= mask;
    c->read = q.by;
}

static bool same_access(const access &a, const access &b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* Whether check_cell would find nothing and change nothing: the same thread has done the same, and
 * nobody else anything since. */
static bool is_repeated(const cell *c, const request &q, uint8_t mask)
{
    if (!q.is_write)
        return (c->seen & mask) == mask && same_access(c->read, q.by);
    return c->written == mask && !c->seen && !c->readers && !c->flags && !q.is_atomic &&
           same_access(c->write, q.by);
}

static void note_write(cell *c, const request &q, uint8_t mask)
{
    c->write = q.by;
    c->written = mask;
    c->defined |= mask;
    c->flags = q.is_atomic ? IS_ATOMIC : 0;
    c->seen = 0;
    c->readers = 0;
    if (q.end == ASYNC_BEGIN) {
        c->defined &= (uint8_t)~mask;
        c->flags |= IN_FLIGHT;
    }
}

static void check_cell(cell *c, const request &q, uint8_t mask)
{
    bool both_atomic = q.is_atomic && (c->flags & IS_ATOMIC);

    if ((c->written & mask) && !both_atomic && !is_before(c->write, q, 0))
        report_race(q, c->write, c->flags & IS_ATOMIC ? "an atomic access" : "a write");
    if (q.is_write && (c->flags & IN_FLIGHT) && q.end != ASYNC_END)
        report(q.pc, "a write of %p, which an asynchronous copy may still write",
               (const void *)q.at);
    if ((!q.is_write || q.is_atomic) && (c->defined & mask) != mask)
        report(q.pc, "a read of %p, which %s", (const void *)q.at,
               c->flags & IN_FLIGHT ? "an asynchronous copy may still write" : "was never written");
    if (q.is_wgmma && c->write.proxy_fences == here.proxy_fences[c->write.thread])
        report(q.pc,
               "wgmma: a read of %p, which thread %u has written, with no fence.proxy.async since",
               (const void *)q.at, c->write.thread);
    if (!q.is_write) {
        note_read(c, q, mask);
        return;
    }
    if ((c->seen & mask) && !is_before(c->read, q, c->flags))
        report_race(q, c->read, "a read");
    for (const reader &r : reader_sets[c->readers])
        if (!came_before(r.first, r.second))
            report_race(q, { r.second, 0, r.first, 0, 0, 0, 0, 0 }, "a read");
    note_write(c, q, mask);
}

/* Shared memory is a block's own: what another block left in a cell is no more. */
static void renew_shared(cell *c, const access &by)
{
    const access &last = c->written ? c->write : c->read;

    if (!same_operation(last, by) || last.block != by.block)
        memset(c, 0, sizeof *c);
}

/* Three comparisons; memcmp would be a call. */
static bool same_cell(const cell &a, const cell &b)
{
    using part = long long __attribute__((vector_size(16), may_alias));
    const part *x = (const part *)&a, *y = (const part *)&b;
    const part differs = (x[0] ^ y[0]) | (x[1] ^ y[1]) | (x[2] ^ y[2]);

    static_assert(sizeof a == 3 * sizeof(part), "a cell is three parts");
    return (differs[0] | differs[1]) == 0;
}

static void check_bytes(cell *c, const request &q, uint8_t mask)
{
    if (q.is_shared)
        renew_shared(c, q.by);
    if (!is_repeated(c, q, mask))
        check_cell(c, q, mask);
}

/* What an access does to a cell depends on the cell alone. So a cell that was as the one before it
 * becomes what that has become: most accesses are of several cells that have the same past. */
static void check_range(cell *first, size_t offset, size_t n, request &q)
{
    cell was;
    uint8_t mask_before = 0;

    for (size_t at = offset, end = offset + n; at < end;) {
        size_t next = std::min((at / GRANULE + 1) * GRANULE, end);
        uint8_t mask = (uint8_t)(((1u << (next - at)) - 1) << at % GRANULE);
        cell *c = &first[at / GRANULE];

        if (mask == mask_before && same_cell(*c, was)) {
            *c = c[-1];
        } else {
            if (next < end)
                was = *c;
            mask_before = next < end ? mask : 0;
            check_bytes(c, q, mask);
        }
        q.at += next - at;
        at = next;
    }
}

/* ---- where an access goes ---- */

/* A thread does many accesses before another one runs. So the answer is mostly there, and whole: a
 * processor waits when it loads at once what it has just stored in parts. */
static const access &who()
{
    static access now;
    access a = {};

    a.op = now_running.op;
    a.stream = (uint16_t)now_running.stream;
    if (here.in_kernel) {
        a.block = here.block;
        a.thread = here.thread;
        a.barrier = here.barrier;
        a.warp_barrier = here.warp_barrier[here.thread / 32];
        a.proxy_fences = here.proxy_fences[here.thread];
    }
    if (a.op != now.op || a.block != now.block || a.stream != now.stream ||
        a.thread != now.thread || a.barrier != now.barrier || a.warp_barrier != now.warp_barrier ||
        a.proxy_fences != now.proxy_fences)
        now = a;
    return now;
}

/* Memory of the program that a kernel uses: its stack, its arguments, built-in variables. */
bool is_private(const char *p)
{
    const char *builtin = (const char *)&::fakecuda_at;

    return on_a_stack(p) || (p >= here.args && p < here.args_end) ||
           (p >= builtin && p < builtin + sizeof ::fakecuda_at);
}

static void check(const void *address, size_t n, bool is_write, bool is_atomic, const void *pc,
                  async_end end = NOT_ASYNC, bool is_wgmma = false)
{
    const char *p = (const char *)address, *begin;
    size_t size;
    request q = { p, who(), is_write, is_atomic, false, pc, end, is_wgmma };

    if (p >= shared_first && p < shared_last) {
        q.is_shared = true;
        if (p >= dynamic_begin() && p + n > dynamic_begin() + dynamic_bytes() &&
            p < dynamic_begin() + DYNAMIC_MAX)
            report(pc, "%s of %zu bytes at %p, %zd bytes from the begin of %zu of shared memory",
                   is_write ? "a write" : "a read", n, address, (ssize_t)(p - dynamic_begin()),
                   dynamic_bytes());
        if (is_write)
            touch_shared((char *)(uintptr_t)address, n);
        check_range(shared_cells, (size_t)(p - shared_first), n, q);
        return;
    }
    for (int k = 0; k < MEMORY_KINDS; k++) {
        memory_kind kind = (memory_kind)k;

        if (!is_kind(kind, p))
            continue;
        if (!memory_contains(kind, p, n, &begin, &size))
            report(pc,
                   "%s of %zu bytes at %p is outside of every allocation (the one before it: "
                   "%zu bytes at %p)",
                   is_write ? "a write" : "a read", n, address, size, (const void *)begin);
        check_range(cells[k], (size_t)(p - arenas[k].begin), n, q);
        return;
    }
    if (!is_private(p))
        report(pc, "%s of host memory at %p, which is not pinned", is_write ? "a write" : "a read",
               address);
}

/* What the host wrote into pinned memory is not seen, so all of it counts as written. */
static void define_pinned(const void *p, size_t n)
{
    size_t at = (size_t)((const char *)p - arenas[PINNED_MEMORY].begin);

    if (!is_kind(PINNED_MEMORY, p))
        return;
    for (size_t i = at / GRANULE; i <= (at + n - 1) / GRANULE; i++)
        cells[PINNED_MEMORY][i].defined = 3;
}

void watch_access(const void *p, size_t n, bool is_write, bool is_atomic, const void *pc)
{
    define_pinned(p, n);
    check(p, n, is_write, is_atomic, pc);
}

void watch_wgmma(const void *p, size_t n, const void *pc)
{
    check(p, n, false, false, pc, NOT_ASYNC, true);
}

void watch_async(void *dst, size_t n, async_end end, const void *pc)
{
    check(dst, n, true, false, pc, end);
}

void watch_copy(void *dst, const void *src, size_t n)
{
    define_pinned(src, n);
    check(src, n, false, false, nullptr);
    check(dst, n, true, false, nullptr);
}

void watch_fill(void *dst, size_t n)
{
    check(dst, n, true, false, nullptr);
}

void watch_read(const void *src, size_t n)
{
    check(src, n, false, false, nullptr);
}

} // namespace fake
