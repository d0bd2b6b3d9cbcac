/*
 * tests/fakecuda/async_copy.cc - asynchronous copies to shared memory, as
 * kernels/cuda/async_copy.cuh uses them. The bytes arrive as late as PTX allows: when the thread
 * that copies waits for their group. From the copy until then nobody may use the place where they
 * go.
 */
#include <cuda_runtime.h>

#include <list>

#include "tests/fakecuda/block.h"

namespace
{

struct copy {
    char *to;
    const char *from;
    int n, n_read, group;
};

/* The copies of a thread that are not complete, the oldest first. A list, because other containers
 * call memmove, which hooks.cc takes for the kernel's. */
struct copies {
    std::list<copy> in_flight;
    int group; /* number of the group that is not committed */
};

copies of_thread[fake::THREADS_MAX];

copies &mine()
{
    return of_thread[fake::here.thread];
}

/* What may be copied at once: to and from multiples of its size. */
void check(const copy &c, const void *pc)
{
    if (c.n != 4 && c.n != 8 && c.n != 16)
        fake::report(pc, "cp.async of %d bytes: 4, 8 or 16 can be copied", c.n);
    if (c.n_read < 0 || c.n_read > c.n)
        fake::report(pc, "cp.async reads %d of %d bytes", c.n_read, c.n);
    if (c.to < fake::shared_begin() || c.to + c.n > fake::shared_end())
        fake::report(pc, "cp.async: the target %p is not in shared memory", (const void *)c.to);
    if ((uintptr_t)c.to % (unsigned)c.n || (uintptr_t)c.from % (unsigned)c.n)
        fake::report(pc, "cp.async from %p to %p: both must be multiples of %d",
                     (const void *)c.from, (const void *)c.to, c.n);
    if (c.from >= fake::shared_begin() && c.from < fake::shared_end())
        fake::report(pc, "cp.async: the source %p is in shared memory", (const void *)c.from);
}

void complete(const copy &c, const void *pc)
{
    fake::watch_load(c.from, (size_t)c.n_read, pc);
    fake::watch_async(c.to, (size_t)c.n, fake::ASYNC_END, pc);
    fake::copy_unwatched(c.to, c.from, (size_t)c.n_read);
    fake::fill_unwatched(c.to + c.n_read, 0, (size_t)(c.n - c.n_read));
}

} // namespace

void fake::async_copy_end_thread()
{
    if (!mine().in_flight.empty())
        report(nullptr, "a thread ends, and has not waited for its asynchronous copies");
}

void fakecuda_cp_async(void *to, const void *from, int n, int n_read)
{
    const void *pc = __builtin_return_address(0);
    const copy c = { (char *)to, (const char *)from, n, n_read, mine().group };

    check(c, pc);
    fake::watch_load(from, (size_t)n_read, pc);
    fake::count_access(from, (size_t)n_read, false, pc);
    fake::count_access(to, (size_t)n, true, pc);
    fake::watch_async(to, (size_t)n, fake::ASYNC_BEGIN, pc);
    fake::fill_unwatched(to, 0xff, (size_t)n);
    mine().in_flight.push_back(c);
}

void fakecuda_cp_async_commit()
{
    mine().group++;
}

/* Until at most n_groups of the groups that are committed are not complete. */
void fakecuda_cp_async_wait(int n_groups)
{
    const void *pc = __builtin_return_address(0);
    copies &c = mine();

    while (!c.in_flight.empty() && c.in_flight.front().group < c.group - n_groups) {
        complete(c.in_flight.front(), pc);
        c.in_flight.pop_front();
    }
}
