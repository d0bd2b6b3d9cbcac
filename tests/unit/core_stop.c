/* tests/unit/core_stop.c - a signal that asks to stop is recorded, and others keep their effect.
 */
#include "core/stop.h"

#include <criterion/criterion.h>
#include <signal.h>

Test(stop, a_request_stays_until_the_end)
{
    stop_listen();
    cr_expect_not(stop_requested());
    raise(SIGUSR1);
    cr_expect(stop_requested());
    cr_expect(stop_requested(), "asking again gives the same answer");
}

Test(stop, listening_to_all_includes_term_and_int)
{
    stop_listen_all();
    cr_expect_not(stop_requested());
    raise(SIGTERM);
    cr_expect(stop_requested());
}

Test(stop, interrupt_is_a_request_too)
{
    stop_listen_all();
    raise(SIGINT);
    cr_expect(stop_requested());
}

/* A shell starts background jobs with SIGINT ignored. */
Test(stop, an_ignored_interrupt_stays_ignored)
{
    signal(SIGINT, SIG_IGN);
    stop_listen_all();
    raise(SIGINT);
    cr_expect_not(stop_requested());
}

Test(stop, a_terminal_that_closes_is_a_request)
{
    signal(SIGHUP, SIG_DFL); /* the tests themselves may run under nohup */
    stop_listen_all();
    raise(SIGHUP);
    cr_expect(stop_requested());
}

Test(stop, under_nohup_a_hangup_stays_ignored)
{
    signal(SIGHUP, SIG_IGN);
    stop_listen_all();
    raise(SIGHUP);
    cr_expect_not(stop_requested());
}

Test(stop, term_still_kills_where_only_usr1_is_a_request, .signal = SIGTERM)
{
    stop_listen();
    raise(SIGTERM);
}
