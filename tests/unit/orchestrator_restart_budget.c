/* tests/unit/orchestrator_restart_budget.c - a job is started again as often as its file allows. */
#include "orchestrator/state/restart_budget.h"

#include <criterion/criterion.h>
#include <string.h>

/* Two restarts in 100 s, three starts in a row without progress, waits of 2, 4, 5, 5 s. */
static const struct job job = {
    .restart = { .max = 2, .within = 100, .backoff = 2, .backoff_max = 5, .no_progress = 3 }
};
static struct run_record record; /* it is large */

TestSuite(restart_budget);

Test(restart_budget, restarts_are_counted_within_a_time)
{
    enum event_reason reason = REASON_NO_PROGRESS;
    char why[RESTART_BUDGET_TEXT];

    record.best_step = -1;
    cr_expect(restart_budget_take(&record, &job, 1000, &reason, why));
    cr_expect(restart_budget_take(&record, &job, 1050, &reason, why));
    cr_expect_not(restart_budget_take(&record, &job, 1099, &reason, why));
    cr_expect_eq(reason, REASON_TOO_MANY_RESTARTS);
    cr_expect_str_eq(why, "2 restarts within 100 s");
    cr_expect(restart_budget_take(&record, &job, 1100, &reason, why), "the first one is forgotten");
    cr_expect_eq(record.n_restarts, 2);
}

Test(restart_budget, starts_without_progress_are_counted_at_any_time)
{
    enum event_reason reason = REASON_TOO_MANY_RESTARTS;
    char why[RESTART_BUDGET_TEXT];

    record.best_step = -1;
    record.fails_in_row = 2;
    cr_expect(restart_budget_take(&record, &job, 1000, &reason, why));
    record.fails_in_row = 3;
    cr_expect_not(restart_budget_take(&record, &job, 5000, &reason, why));
    cr_expect_eq(reason, REASON_NO_PROGRESS);
    cr_expect_str_eq(why, "3 starts in a row without a step");
    record.best_step = 40;
    cr_expect_not(restart_budget_take(&record, &job, 5000, &reason, why));
    cr_expect_str_eq(why, "3 starts in a row without a step beyond 40");
}

Test(restart_budget, the_wait_doubles_with_each_start_without_progress)
{
    static const double waits[] = { 0, 0, 2, 4, 5, 5 };

    for (int i = 0; i < 6; i++) {
        record.fails_in_row = i;
        cr_expect_eq(restart_budget_back_off(&record, &job), waits[i], "after %d", i);
    }
}
