/* core/page_pool.c - see core/page_pool.h. */
#include "core/page_pool.h"

#include <stddef.h>
#include <sys/mman.h>

enum { PAGE_BYTES = 4096 };

static int64_t mapped_bytes(int64_t n_bytes)
{
    return (n_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

void page_pool_init(struct page_pool *p)
{
    p->n = 0;
    pthread_mutex_init(&p->lock, NULL);
}

void page_pool_release(struct page_pool *p)
{
    while (p->n > 0) {
        p->n--;
        munmap(p->free[p->n], (size_t)p->bytes[p->n]);
    }
    pthread_mutex_destroy(&p->lock);
}

/* Take free buffer number i off the list. */
static void *unlist(struct page_pool *p, int i)
{
    void *buffer = p->free[i];

    p->n--;
    p->free[i] = p->free[p->n];
    p->bytes[i] = p->bytes[p->n];
    return buffer;
}

/* Unmap free buffers, until as much was unmapped as will be mapped, or none is left. */
static void make_room(struct page_pool *p, int64_t bytes)
{
    while (p->n > 0 && bytes > 0) {
        int64_t last = p->bytes[p->n - 1];

        munmap(unlist(p, p->n - 1), (size_t)last);
        bytes -= last;
    }
}

void *page_pool_take(struct page_pool *p, int64_t n_bytes)
{
    const int64_t bytes = mapped_bytes(n_bytes);
    void *buffer = NULL;

    pthread_mutex_lock(&p->lock);
    for (int i = p->n - 1; i >= 0 && !buffer; i--)
        if (p->bytes[i] == bytes)
            buffer = unlist(p, i);
    if (!buffer)
        make_room(p, bytes);
    pthread_mutex_unlock(&p->lock);
    if (buffer)
        return buffer;
    buffer = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    return buffer == MAP_FAILED ? NULL : buffer;
}

void page_pool_give(struct page_pool *p, void *buffer, int64_t n_bytes)
{
    const int64_t bytes = mapped_bytes(n_bytes);

    if (!buffer)
        return;
    pthread_mutex_lock(&p->lock);
    if (p->n < PAGE_POOL_FREE_MAX) {
        p->free[p->n] = buffer;
        p->bytes[p->n++] = bytes;
        buffer = NULL;
    }
    pthread_mutex_unlock(&p->lock);
    if (buffer)
        munmap(buffer, (size_t)bytes);
}
