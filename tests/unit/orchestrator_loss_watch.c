/* tests/unit/orchestrator_loss_watch.c - losses that are not finite, or that jump.
 *
 * covers: orchestrator/watch/quantile */
#include "orchestrator/watch/loss_watch.h"

#include <criterion/criterion.h>
#include <math.h>
#include <string.h>

#include "orchestrator/watch/quantile.h"

static char text[200];

static struct loss_watch watch(void)
{
    return (struct loss_watch){ .jump = 20, .last_step = -1 };
}

static enum loss_watch_finding step(struct loss_watch *w, int64_t at, double loss)
{
    return loss_watch_step(w, at, loss, text, sizeof text);
}

/* n steps with losses around 3, from step 0. */
static void learn(struct loss_watch *w, int n)
{
    for (int i = 0; i < n; i++)
        cr_assert_eq(step(w, i, 3 + 0.01 * (i % 7)), LOSS_WATCH_FINE);
}

Test(loss_watch, a_loss_that_is_not_finite_is_found_once)
{
    struct loss_watch w = watch();

    cr_expect_eq(step(&w, 0, 3), LOSS_WATCH_FINE);
    cr_expect_eq(step(&w, 1, NAN), LOSS_WATCH_NOT_FINITE);
    cr_expect(strstr(text, "step 1 "), "%s", text);
    cr_expect_eq(step(&w, 2, INFINITY), LOSS_WATCH_FINE);
}

Test(loss_watch, a_program_that_never_reports_a_loss_has_no_fault)
{
    struct loss_watch w = watch();

    for (int i = 0; i < 100; i++)
        cr_expect_eq(step(&w, i, NAN), LOSS_WATCH_FINE);
}

Test(loss_watch, a_jump_is_found_and_the_new_level_is_learnt)
{
    struct loss_watch w = watch();

    learn(&w, 40);
    cr_expect_eq(step(&w, 40, 3.5), LOSS_WATCH_FINE, "within 20 times the spread of 0.06");
    cr_expect_eq(step(&w, 41, 30), LOSS_WATCH_JUMP);
    for (int i = 42; i < 80; i++)
        cr_expect_eq(step(&w, i, 30 + 0.01 * (i % 7)), LOSS_WATCH_FINE);
    cr_expect_eq(step(&w, 80, 3), LOSS_WATCH_FINE, "a fall is not a jump");
}

Test(loss_watch, nothing_jumps_before_20_losses_or_without_the_key)
{
    struct loss_watch w = watch();

    learn(&w, 19);
    cr_expect_eq(step(&w, 19, 1e6), LOSS_WATCH_FINE);
    w = watch();
    w.jump = 0;
    learn(&w, 40);
    cr_expect_eq(step(&w, 40, 1e6), LOSS_WATCH_FINE);
}

Test(loss_watch, a_step_is_judged_once)
{
    struct loss_watch w = watch();

    learn(&w, 40);
    cr_expect_eq(step(&w, 39, 1e6), LOSS_WATCH_FINE);
    cr_expect_eq(step(&w, -1, NAN), LOSS_WATCH_FINE);
}

Test(loss_watch, a_quantile_is_by_nearest_rank)
{
    const double v[] = { 5, 1, 4, 2, 3 };

    cr_expect_eq(quantile(v, 5, 0), 1);
    cr_expect_eq(quantile(v, 5, 0.2), 1);
    cr_expect_eq(quantile(v, 5, 0.5), 3);
    cr_expect_eq(quantile(v, 5, 0.81), 5);
    cr_expect_eq(quantile(v, 5, 1), 5);
    cr_expect_eq(quantile(v, 1, 0.99), 5);
}
