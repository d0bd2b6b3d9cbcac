/* core/stop.c - see core/stop.h. */
#include "core/stop.h"

#include <signal.h>

void stop_listen(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool stop_requested(void)
{
    sigset_t pending;

    return sigpending(&pending) == 0 && sigismember(&pending, SIGUSR1) == 1;
}
