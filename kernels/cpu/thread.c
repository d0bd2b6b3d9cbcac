/* kernels/cpu/thread.c - see kernels/cpu/thread.h. */
#include "kernels/cpu/thread.h"

#include <omp.h>
#include <stddef.h>

/* ThreadSanitizer does not see that OpenMP's threads wait for each other, unless GCC's libgomp was
 * built for it. So the loops tell it: what is before a loop happened before each of its calls, and
 * each call before what is after the loop. They are not instrumented themselves, because the
 * compiler hands over their variables in ways that it does not see either. */
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#define NOT_INSTRUMENTED  __attribute__((no_sanitize("thread")))
#define HAPPENS_BEFORE(p) __tsan_release(p)
#define HAPPENS_AFTER(p)  __tsan_acquire(p)
#else
#define NOT_INSTRUMENTED
#define HAPPENS_BEFORE(p) (void)(p)
#define HAPPENS_AFTER(p)  (void)(p)
#endif

int kernels_team(const struct device_queue *q)
{
    return !q || omp_in_parallel() ? 1 : q->device->threads;
}

NOT_INSTRUMENTED void kernels_for(const struct device_queue *q, int64_t n, int64_t grain,
                                  kernels_range_fn fn, void *ctx)
{
    int64_t n_grains = (n + grain - 1) / grain, team = kernels_team(q);
    int64_t parts = team < n_grains ? team : n_grains;
    char begin, end;

    if (n <= 0)
        return;
    if (parts <= 1) {
        fn(ctx, 0, n, 0);
        return;
    }
    HAPPENS_BEFORE(&begin);
#pragma omp parallel for num_threads((int)parts) schedule(static, 1)
    for (int64_t t = 0; t < parts; t++) {
        HAPPENS_AFTER(&begin);
        int64_t lo = n_grains * t / parts * grain;
        int64_t hi = n_grains * (t + 1) / parts * grain;
        fn(ctx, lo, hi < n ? hi : n, (int)t);
        HAPPENS_BEFORE(&end);
    }
    HAPPENS_AFTER(&end);
}

NOT_INSTRUMENTED void kernels_each(const struct device_queue *q, int64_t n, kernels_range_fn fn,
                                   void *ctx)
{
    int threads = kernels_team(q);
    char begin, end;

    /* For one thread, OpenMP would still allocate a parallel region each time. */
    if (threads == 1) {
        for (int64_t i = 0; i < n; i++)
            fn(ctx, i, i + 1, 0);
        return;
    }
    /* also for one item: inside of a parallel region products do not spread over threads */
    HAPPENS_BEFORE(&begin);
#pragma omp parallel for num_threads(threads) schedule(static, 1)
    for (int64_t i = 0; i < n; i++) {
        HAPPENS_AFTER(&begin);
        fn(ctx, i, i + 1, omp_get_thread_num());
        HAPPENS_BEFORE(&end);
    }
    HAPPENS_AFTER(&end);
}

int64_t kernels_grain(int64_t item_bytes)
{
    const int64_t worth_bytes = 64 << 10; /* about 5 microseconds, the cost of waking a thread */

    return item_bytes >= worth_bytes ? 1 : worth_bytes / (item_bytes > 0 ? item_bytes : 1);
}
