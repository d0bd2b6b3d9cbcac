/*
 * trainer/buffer_pool.h - one stretch of memory that many buffers are taken from, all at the start.
 *
 * The same code runs twice: over a span without memory it only counts, over one with memory it
 * hands out. So what a rank needs is known before anything is allocated, to the byte, and the step
 * allocates nothing.
 */
#ifndef TRAINER_BUFFER_POOL_H
#define TRAINER_BUFFER_POOL_H

#include <stdint.h>

struct buffer_pool {
    char *base;   /* NULL: count only */
    int64_t used; /* bytes; INT64_MAX after an overflow */
};

/* n elements of `size` bytes, 64-byte aligned; NULL while counting. Memory is zero at first. */
void *buffer_pool_take(struct buffer_pool *s, int64_t n, int64_t size);

#endif
