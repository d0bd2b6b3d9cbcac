/* trainer/buffer_pool.c - see trainer/buffer_pool.h. */
#include "trainer/buffer_pool.h"

#include <inttypes.h>
#include <stddef.h>
#include <sys/mman.h>

enum { ALIGN = 64 };

void *buffer_pool_take(struct buffer_pool *s, int64_t n, int64_t size)
{
    char *p = s->base ? s->base + s->used : NULL;
    int64_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes) ||
        __builtin_add_overflow(bytes, ALIGN - 1, &bytes) ||
        __builtin_add_overflow(s->used, bytes / ALIGN * ALIGN, &s->used))
        s->used = INT64_MAX;
    return p;
}

tp_status buffer_pool_map(struct buffer_pool *s, int64_t n_bytes, struct tp_err *err)
{
    void *p;

    *s = (struct buffer_pool){ 0 };
    if (n_bytes == 0)
        n_bytes = ALIGN;
    p = mmap(NULL, (size_t)n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
        return tp_fail(err, TP_E_NOMEM, "no memory for %" PRId64 " bytes of tensors", n_bytes);
    madvise(p, (size_t)n_bytes, MADV_HUGEPAGE); /* advice: refusal costs speed only */
    s->base = p;
    return TP_OK;
}

void buffer_pool_unmap(struct buffer_pool *s, int64_t n_bytes)
{
    if (s->base)
        munmap(s->base, (size_t)(n_bytes ? n_bytes : ALIGN));
    *s = (struct buffer_pool){ 0 };
}
