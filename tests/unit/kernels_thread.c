/* tests/unit/kernels_thread.c - how a loop is divided among threads. */
#include "kernels/cpu/thread.h"

#include <stdatomic.h>

#include "tests/unit/kernels_support.h"

struct seen {
    int64_t n, grain;
    atomic_int times[400]; /* per item */
    atomic_int threads[8]; /* calls per thread number */
};

static void note(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct seen *s = ctx;

    cr_assert(lo < hi && lo % s->grain == 0 && (hi % s->grain == 0 || hi == s->n));
    s->threads[thread]++;
    for (int64_t i = lo; i < hi; i++)
        s->times[i]++;
}

Test(thread, every_item_runs_once_and_each_thread_is_called_at_most_once)
{
    struct rng r = rng_start("thread");

    for (int i = 0; i < 500; i++) {
        struct seen s = { .n = rng_int(&r, 0, 400), .grain = rng_int(&r, 1, 70) };
        int threads = (int)rng_int(&r, 1, 8);

        use_threads(threads);
        cr_assert_eq(kernels_team(kernels_on()), threads);
        kernels_for(kernels_on(), s.n, s.grain, note, &s);
        for (int64_t j = 0; j < 400; j++)
            cr_assert_eq(s.times[j], j < s.n, "item %lld of %lld", (long long)j, (long long)s.n);
        for (int t = 0; t < 8; t++)
            cr_assert_leq(s.threads[t], t < threads);
    }
}

static void nested(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct seen *all = ctx;

    (void)thread;
    for (int64_t i = lo; i < hi; i++) {
        struct seen inner = { .n = 100, .grain = 1 };
        kernels_for(kernels_queue, inner.n, inner.grain, note, &inner);
        cr_assert_eq(inner.threads[0], 1, "the inner loop runs in one call");
        all->times[i]++;
    }
}

Test(thread, a_loop_within_a_loop_runs_in_place)
{
    struct seen s = { .n = 0 };

    use_threads(3);
    kernels_for(kernels_on(), 30, 1, nested, &s);
    for (int i = 0; i < 30; i++)
        cr_assert_eq(s.times[i], 1);
}

static void note_one(void *ctx, int64_t lo, int64_t hi, int thread)
{
    struct seen *s = ctx;

    (void)thread;
    cr_assert_eq(hi, lo + 1);
    cr_assert_eq(kernels_team(kernels_queue), 1, "inside an item, a kernel uses one thread");
    s->times[lo]++;
}

Test(thread, each_item_is_one_call)
{
    for (int threads = 2; threads <= 4; threads++) {
        struct seen s = { .n = 30 };

        use_threads(threads);
        kernels_each(kernels_on(), s.n, note_one, &s);
        for (int i = 0; i < 30; i++)
            cr_assert_eq(s.times[i], 1);
    }
}

Test(thread, without_a_queue_there_is_one_thread)
{
    struct seen s = { .n = 300, .grain = 1 };

    use_threads(4);
    kernels_for(NULL, s.n, s.grain, note, &s);
    cr_assert_eq(s.threads[0], 1);
}
