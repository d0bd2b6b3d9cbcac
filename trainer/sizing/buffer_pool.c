/* trainer/sizing/buffer_pool.c - see trainer/sizing/buffer_pool.h. */
#include "trainer/sizing/buffer_pool.h"

#include <stdbool.h>
#include <stddef.h>

enum { ALIGN = 64 };

void *buffer_pool_take(struct buffer_pool *p, enum buffer_kind kind, int64_t n, int64_t size)
{
    char *taken = p->base ? p->base + p->used : NULL;
    int64_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_add_overflow(bytes, ALIGN - 1, &bytes) ||
        __builtin_mul_overflow(bytes / ALIGN * ALIGN, p->times ? p->times : 1, &bytes) ||
        __builtin_add_overflow(p->used, bytes, &p->used)) {
        p->used = INT64_MAX;
        return taken;
    }
    p->bytes[kind] += bytes;
    return taken;
}

static bool is_counting(const struct buffer_pools *p)
{
    return !p->own.base;
}

static void multiply(struct buffer_pool *p, int64_t n)
{
    p->times = (p->times ? p->times : 1) * n;
}

int64_t buffer_pools_repeat(struct buffer_pools *p, int64_t n)
{
    if (!is_counting(p) || n == 0)
        return n;
    multiply(&p->shared, n);
    multiply(&p->own, n);
    multiply(&p->pinned, n);
    return 1;
}

void buffer_pools_repeat_end(struct buffer_pools *p, int64_t n)
{
    if (!is_counting(p) || n == 0)
        return;
    p->shared.times /= n;
    p->own.times /= n;
    p->pinned.times /= n;
}

int64_t buffer_pools_bytes(const struct buffer_pools *p, enum buffer_kind kind)
{
    return p->shared.bytes[kind] + p->own.bytes[kind] + p->pinned.bytes[kind];
}
