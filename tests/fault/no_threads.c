/*
 * tests/fault/no_threads.c - a process whose limit of threads is reached (ulimit -u, or the pids of
 * a container). Preloaded (LD_PRELOAD), it lets the program start none.
 */
#include <errno.h>
#include <pthread.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*run)(void *),
                   void *ctx)
{
    (void)thread;
    (void)attributes;
    (void)run;
    (void)ctx;
    return EAGAIN;
}
