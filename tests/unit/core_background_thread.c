/* tests/unit/core_background_thread.c - signals go to the threads of the program. */
#include "core/background_thread.h"

#include <criterion/criterion.h>
#include <signal.h>

static void *find_blocked(void *ctx)
{
    pthread_sigmask(SIG_SETMASK, NULL, ctx);
    return ctx;
}

Test(background_thread, it_blocks_signals_and_its_caller_does_not)
{
    sigset_t there, here;
    pthread_t thread;
    void *result;

    cr_assert_eq(background_thread_start(&thread, find_blocked, &there), 0);
    pthread_join(thread, &result);
    pthread_sigmask(SIG_SETMASK, NULL, &here);
    cr_expect_eq(result, &there);
    cr_expect(sigismember(&there, SIGTERM) && sigismember(&there, SIGUSR1));
    cr_expect(!sigismember(&here, SIGTERM) && !sigismember(&here, SIGUSR1));
}
