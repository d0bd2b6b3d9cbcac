/*
 * core/background_thread.h - a thread of a library, which handles no signals.
 */
#ifndef CORE_BACKGROUND_THREAD_H
#define CORE_BACKGROUND_THREAD_H

#include <pthread.h>

/* As pthread_create, with all signals blocked in the new thread, so the threads of the program get
 * them. Returns 0 or an errno. */
int background_thread_start(pthread_t *out, void *(*run)(void *ctx), void *ctx);

#endif
