/*
 * core/arena.h - memory that is freed all at once: one arena for a manifest, a plan, a model.
 *
 * Pointers stay valid until arena_free. Tensors do not live in arenas, because their memory has a
 * budget.
 */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include <stddef.h>

/* All zeroes is an empty arena. */
struct arena {
    struct arena_block *blocks; /* newest first */
    size_t used_bytes;          /* allocated so far */
    size_t limit_bytes; /* set by the caller: used_bytes does not grow beyond it, as if memory
                           were out; 0: no limit */
};

/* Free everything. The arena is empty then, keeps its limit, and may be used again. */
void arena_free(struct arena *a);

/* n bytes, zeroed and aligned for any type; NULL when memory is out. n may be 0. */
void *arena_alloc(struct arena *a, size_t n);

/* `count` elements of `size` bytes, zeroed; NULL when memory is out or the product overflows. */
void *arena_array(struct arena *a, size_t count, size_t size);

/* A copy of s; NULL when memory is out. */
char *arena_strdup(struct arena *a, const char *s);

/* A formatted string; NULL when memory is out. */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
