/* tests/unit/core_thread_pool.c - every item is processed once, and the first failure is returned.
 */
#include "core/thread_pool.h"

#include <criterion/criterion.h>
#include <stdatomic.h>

enum { ITEMS = 5000, WORKERS = 7 };

struct work {
    atomic_int done[ITEMS];
    atomic_int n_of[WORKERS];
    atomic_int started;
    int64_t fails_at; /* -1: never */
};

static tp_status work_on(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct work *w = ctx;

    atomic_fetch_add(&w->started, 1);
    atomic_fetch_add(&w->done[item], 1);
    atomic_fetch_add(&w->n_of[worker], 1);
    if (item == w->fails_at)
        return tp_fail(err, TP_E_CORRUPT, "item %d is damaged", (int)item);
    return TP_OK;
}

Test(thread_pool, every_item_is_done_once_by_a_valid_worker)
{
    for (int workers = 0; workers <= WORKERS; workers++) {
        static struct work w;
        struct tp_err err = { 0 };
        int sum = 0;

        w = (struct work){ .fails_at = -1 };
        cr_assert_eq(thread_pool_run(work_on, &w, ITEMS, workers, &err), TP_OK, "%s", err.msg);
        for (int i = 0; i < ITEMS; i++)
            cr_assert_eq(w.done[i], 1);
        for (int i = 0; i < WORKERS; i++) {
            cr_assert(w.n_of[i] == 0 || i < (workers > 1 ? workers : 1));
            sum += w.n_of[i];
        }
        cr_assert_eq(sum, ITEMS);
    }
}

Test(thread_pool, a_failure_is_returned_and_ends_the_work)
{
    static struct work w = { .fails_at = 10 };
    struct tp_err err = { 0 };

    cr_assert_eq(thread_pool_run(work_on, &w, ITEMS, 1, &err), TP_E_CORRUPT);
    cr_assert_str_eq(err.msg, "item 10 is damaged");
    cr_assert_eq(w.started, 11, "items start in ascending order, none after the failure");
    w = (struct work){ .fails_at = ITEMS - 1 };
    cr_assert_eq(thread_pool_run(work_on, &w, ITEMS, WORKERS, &err), TP_E_CORRUPT);
}

Test(thread_pool, zero_items_succeed)
{
    struct tp_err err = { 0 };

    cr_assert_eq(thread_pool_run(work_on, NULL, 0, 4, &err), TP_OK);
}

Test(thread_pool, number_of_threads_is_checked_and_the_flag_named)
{
    struct tp_err err = { 0 };

    cr_assert_eq(thread_pool_check_workers("--jobs", 1, &err), TP_OK);
    cr_assert_eq(thread_pool_check_workers("--jobs", THREAD_POOL_WORKERS_MAX, &err), TP_OK);
    cr_assert_eq(thread_pool_check_workers("--jobs", THREAD_POOL_WORKERS_MAX + 1, &err),
                 TP_E_USAGE);
    cr_assert_eq(thread_pool_check_workers("--jobs", 0, &err), TP_E_USAGE);
    cr_assert_str_eq(err.msg, "--jobs 0 must be between 1 and 1024");
    cr_assert_geq(thread_pool_cores(), 1);
}
