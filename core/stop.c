/* core/stop.c - see core/stop.h. */
#include "core/stop.h"

#include <signal.h>

/* A library can handle a signal in its constructor, although the parent wanted it ignored: UCX,
 * which Open MPI 5 loads, does so with SIGHUP (UCX_DEBUG_SIGNO), and nohup would have no effect.
 * What the parent wanted is read before the constructors of libraries run, and restored after them.
 */
static const int by_a_terminal[] = { SIGINT, SIGHUP };
static volatile bool ignored_at_exec[2]; /* clang takes constructors for the first code that runs */

static void read_what_exec_left(void)
{
    for (int i = 0; i < 2; i++)
        ignored_at_exec[i] = stop_is_ignored(by_a_terminal[i]);
}

__attribute__((section(".preinit_array"),
               used)) static void (*const before_constructors)(void) = read_what_exec_left;

__attribute__((constructor)) static void ignore_as_exec_left(void)
{
    for (int i = 0; i < 2; i++)
        if (ignored_at_exec[i])
            signal(by_a_terminal[i], SIG_IGN);
}

void stop_listen(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGUSR1);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool stop_is_ignored(int signal_number)
{
    struct sigaction is;

    return sigaction(signal_number, NULL, &is) == 0 && is.sa_handler == SIG_IGN;
}

void stop_listen_all(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    for (int i = 0; i < 2; i++)
        if (!stop_is_ignored(by_a_terminal[i]))
            sigaddset(&set, by_a_terminal[i]);
    pthread_sigmask(SIG_BLOCK, &set, NULL);
}

bool stop_requested(void)
{
    static const int signals[] = { SIGUSR1, SIGTERM, SIGINT, SIGHUP };
    bool found = false;
    sigset_t pending;

    /* a signal that is not blocked is delivered at once and never found here */
    if (sigpending(&pending) != 0)
        return false;
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        found = found || sigismember(&pending, signals[i]) == 1;
    return found;
}
