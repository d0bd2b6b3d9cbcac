/* kernels/cpu/thread_buffer.c - see kernels/cpu/thread_buffer.h. */
#include "kernels/cpu/thread_buffer.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>

enum { ALIGN = 64 };

/* Before the memory itself. */
struct thread_buffer {
    _Alignas(ALIGN) int64_t n_bytes;
};

static pthread_key_t buffer_key;
static pthread_once_t buffer_once = PTHREAD_ONCE_INIT;
static bool buffer_has_key; /* written under buffer_once alone */

static void buffer_key_make(void)
{
    buffer_has_key = pthread_key_create(&buffer_key, free) == 0;
}

void *thread_buffer(int64_t n_bytes)
{
    struct thread_buffer *b;

    pthread_once(&buffer_once, buffer_key_make);
    if (!buffer_has_key)
        return NULL;
    b = pthread_getspecific(buffer_key);
    if (b && b->n_bytes >= n_bytes)
        return b + 1;
    free(b);
    n_bytes = (n_bytes + ALIGN - 1) / ALIGN * ALIGN;
    b = aligned_alloc(ALIGN, sizeof *b + (size_t)n_bytes);
    if (pthread_setspecific(buffer_key, b)) {
        free(b);
        pthread_setspecific(buffer_key, NULL);
        return NULL;
    }
    if (!b)
        return NULL;
    b->n_bytes = n_bytes;
    return b + 1;
}
