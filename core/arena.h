/*
 * core/arena.h - memory that lives and dies together: one arena a manifest, a plan, a model.
 * Pointers stay valid until arena_free. Not for tensors: those have budgets of their own.
 */
#ifndef CORE_ARENA_H
#define CORE_ARENA_H

#include <stddef.h>

struct arena {
    struct arena_block *blocks; /* newest first */
    size_t used_bytes;          /* handed out so far */
};

/* An empty arena is all zeroes; arena_free leaves it empty and ready for use again. */
void arena_free(struct arena *a);

/* n zeroed bytes aligned for any type, or NULL when memory is out. n = 0 gives a valid pointer. */
void *arena_alloc(struct arena *a, size_t n);

/* count zeroed elements of size bytes; NULL also when count * size overflows. */
void *arena_array(struct arena *a, size_t count, size_t size);

/* A copy of s; NULL when memory is out. */
char *arena_strdup(struct arena *a, const char *s);

/* A formatted string; NULL when memory is out. */
char *arena_printf(struct arena *a, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
