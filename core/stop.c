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

void stop_listen_all(void)
{
    struct sigaction is;
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    if (sigaction(SIGINT, NULL, &is) == 0 && is.sa_handler != SIG_IGN)
        sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool stop_requested(void)
{
    sigset_t pending;

    /* a signal that is not blocked is delivered at once and never found here */
    return sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGUSR1) == 1 || sigismember(&pending, SIGTERM) == 1 ||
            sigismember(&pending, SIGINT) == 1);
}
