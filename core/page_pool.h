/*
 * core/page_pool.h - large buffers whose memory returns to the system.
 *
 * malloc keeps freed memory in several heaps, so a program that frees buffers on other threads than
 * it takes them has more resident memory than buffers. A pool maps its buffers itself. Free ones
 * are taken again for the same size, and unmapped before another size is mapped: so a pool never
 * maps more than the most that was in use at one time, and one buffer.
 */
#ifndef CORE_PAGE_POOL_H
#define CORE_PAGE_POOL_H

#include <pthread.h>
#include <stdint.h>

enum { PAGE_POOL_FREE_MAX = 512 };

struct page_pool {
    pthread_mutex_t lock;
    int n; /* free buffers */
    void *free[PAGE_POOL_FREE_MAX];
    int64_t bytes[PAGE_POOL_FREE_MAX];
};

/* An empty pool; nothing is mapped. */
void page_pool_init(struct page_pool *p);

/* Unmap the free buffers. Those in use must have been given back. */
void page_pool_release(struct page_pool *p);

/* A buffer of n_bytes, aligned to a page; NULL without memory. Its contents are not specified.
 * Thread safe. */
void *page_pool_take(struct page_pool *p, int64_t n_bytes);

/* Give back what was taken with the same n_bytes. buffer may be NULL. Thread safe. */
void page_pool_give(struct page_pool *p, void *buffer, int64_t n_bytes);

#endif
