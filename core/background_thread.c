/* core/background_thread.c - see core/background_thread.h. */
#include "core/background_thread.h"

#include <signal.h>

int background_thread_start(pthread_t *out, void *(*run)(void *ctx), void *ctx)
{
    sigset_t all, before;
    int code;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    code = pthread_create(out, NULL, run, ctx);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return code;
}
