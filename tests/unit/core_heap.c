/* tests/unit/core_heap.c - memory that is freed and asked for again keeps its pages. */
#include "core/heap.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifdef TP_SANITIZE
Test(core_heap, freed_memory_keeps_its_pages)
{
    cr_skip("the sanitizer's own malloc gives pages back by rules of its own");
}
#else

enum { BLOCKS = 8, BLOCK_BYTES = 1 << 20, PAGES = BLOCKS * BLOCK_BYTES / 4096 };

static long faults(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt;
}

/* Page faults of a turn in which blocks are taken, written and freed. */
static long turn(void)
{
    void *block[BLOCKS];
    long before = faults();

    for (int i = 0; i < BLOCKS; i++) {
        block[i] = malloc(BLOCK_BYTES);
        cr_assert_not_null(block[i]);
        memset(block[i], i + 1, BLOCK_BYTES);
    }
    for (int i = BLOCKS - 1; i >= 0; i--)
        free(block[i]);
    return faults() - before;
}

/* Other things may fault too, so it is the least of several turns that counts. */
static long least_of_turns(void)
{
    long least = turn();

    for (int i = 0; i < 10; i++) {
        long n = turn();

        least = n < least ? n : least;
    }
    return least;
}

Test(core_heap, freed_memory_keeps_its_pages)
{
    long before = least_of_turns(), after;

    heap_keep();
    after = least_of_turns();
    cr_expect_geq(before, PAGES / 4, "without: %ld faults, so this test shows nothing", before);
    cr_expect_leq(after, PAGES / 100, "%ld page faults a turn of %d pages", after, PAGES);
}

#endif
