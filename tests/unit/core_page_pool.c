/* tests/unit/core_page_pool.c - buffers are taken again, and others are unmapped first. */
#include "core/page_pool.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <string.h>

#include "core/thread_pool.h"

/* Resident bytes of this process. */
static long resident(void)
{
    FILE *f = fopen("/proc/self/statm", "r");
    long all = 0, pages = 0;

    cr_assert_eq(fscanf(f, "%ld %ld", &all, &pages), 2);
    fclose(f);
    return pages * 4096;
}

Test(page_pool, a_buffer_of_the_same_size_is_taken_again)
{
    struct page_pool p;
    void *a, *b;

    page_pool_init(&p);
    a = page_pool_take(&p, 100000);
    cr_assert_not_null(a);
    page_pool_give(&p, a, 100000);
    b = page_pool_take(&p, 100001); /* as many pages */
    cr_assert_eq(a, b);
    page_pool_give(&p, b, 100001);
    page_pool_give(&p, NULL, 5);
    page_pool_release(&p);
}

Test(page_pool, memory_is_what_is_in_use_at_one_time)
{
    enum { BYTES = 1 << 20, SIZES = 64 };
    struct page_pool p;
    long before = resident();

    page_pool_init(&p);
    for (int i = 0; i < SIZES; i++) { /* each size is new */
        void *a = page_pool_take(&p, BYTES + 4096 * i);

        memset(a, 1, BYTES);
        page_pool_give(&p, a, BYTES + 4096 * i);
    }
    cr_assert_lt(resident() - before, 4 * BYTES);
    page_pool_release(&p);
}

/* Two threads never have the same buffer. */
static tp_status use(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const int64_t n = 4096 * (1 + item % 3);
    unsigned char *a = page_pool_take(ctx, n);

    (void)worker;
    memset(a, (int)item, (size_t)n);
    for (int64_t i = 0; i < n; i++)
        if (a[i] != (unsigned char)item)
            return tp_fail(err, TP_E_INTERNAL, "another thread wrote into a buffer");
    page_pool_give(ctx, a, n);
    return TP_OK;
}

Test(page_pool, threads_share_it)
{
    struct page_pool p;
    struct tp_err err = { 0 };

    page_pool_init(&p);
    cr_assert_eq(thread_pool_run(use, &p, 5000, 4, &err), TP_OK, "%s", err.msg);
    page_pool_release(&p);
}
