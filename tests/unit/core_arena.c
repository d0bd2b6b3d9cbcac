/* tests/unit/core_arena.c - allocations of an arena are zeroed, aligned and apart from each other.
 */
#include "core/arena.h"

#include <criterion/criterion.h>
#include <stdalign.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "tests/unit/random.h"

enum { ALLOCATIONS = 300 };

Test(arena, allocations_are_zeroed_aligned_and_do_not_overlap)
{
    struct rng r = rng_start("arena/apart");
    struct arena a = { 0 };
    unsigned char *p[ALLOCATIONS];
    size_t size[ALLOCATIONS];

    for (int i = 0; i < ALLOCATIONS; i++) {
        size[i] = (size_t)rng_int(&r, 0, rng_int(&r, 0, 9) ? 500 : 200000);
        p[i] = arena_alloc(&a, size[i]);
        cr_assert_not_null(p[i]);
        cr_assert_eq((uintptr_t)p[i] % alignof(max_align_t), 0);
        for (size_t k = 0; k < size[i]; k++)
            cr_assert_eq(p[i][k], 0);
        memset(p[i], i % 255 + 1, size[i]);
    }
    for (int i = 0; i < ALLOCATIONS; i++)
        for (size_t k = 0; k < size[i]; k++)
            cr_assert_eq(p[i][k], i % 255 + 1);
    arena_free(&a);
    cr_assert(a.blocks == NULL && a.used_bytes == 0);
    cr_assert_not_null(arena_alloc(&a, 1), "an empty arena can be used again");
    arena_free(&a);
}

Test(arena, refuses_sizes_that_overflow)
{
    struct arena a = { 0 };

    cr_assert_null(arena_alloc(&a, SIZE_MAX));
    cr_assert_null(arena_array(&a, SIZE_MAX / 2, 3));
    cr_assert_null(arena_array(&a, 3, SIZE_MAX / 2));
    cr_assert_not_null(arena_array(&a, 0, 8));
    arena_free(&a);
}

Test(arena, with_a_limit_it_stops_there_and_keeps_the_limit)
{
    struct arena a = { .limit_bytes = 1000 };

    for (int round = 0; round < 2; round++) {
        cr_assert_not_null(arena_alloc(&a, 900));
        cr_assert_null(arena_alloc(&a, 200));
        cr_assert_not_null(arena_alloc(&a, 50));
        cr_assert_leq(a.used_bytes, 1000);
        arena_free(&a);
    }
    cr_assert_eq(a.limit_bytes, 1000);
}

Test(arena, strings_are_copied_and_formatted_whole)
{
    struct arena a = { 0 };
    char source[] = "model.norm.weight", *copy = arena_strdup(&a, source);
    char *text = arena_printf(&a, "%s:%d: %0500d", "my.plan", 3, 7);

    source[0] = 'x';
    cr_assert_str_eq(copy, "model.norm.weight");
    cr_assert_eq(strlen(text), strlen("my.plan:3: ") + 500);
    cr_assert_eq(strncmp(text, "my.plan:3: 00", 13), 0);
    arena_free(&a);
}
