/* tests/unit/core_heap.c - memory that is freed and allocated again keeps its pages. */
#include "core/heap.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#ifdef TP_SANITIZE
Test(heap, freed_memory_keeps_its_pages)
{
    cr_skip("the sanitizer has its own malloc, which heap_keep does not control");
}
#else

enum { BLOCKS = 8, BLOCK_BYTES = 1 << 20, PAGES = BLOCKS * BLOCK_BYTES / 4096 };

static long faults(void)
{
    struct rusage u;

    getrusage(RUSAGE_SELF, &u);
    return u.ru_minflt;
}

/* Page faults of one round that allocates, writes and frees all blocks. */
static long round_faults(void)
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

/* Other code may cause page faults too, so the minimum of several rounds counts. */
static long least_faults(void)
{
    long least = round_faults();

    for (int i = 0; i < 10; i++) {
        long n = round_faults();

        least = n < least ? n : least;
    }
    return least;
}

Test(heap, freed_memory_keeps_its_pages)
{
    long before = least_faults(), after;

    heap_keep();
    after = least_faults();
    cr_expect_geq(before, PAGES / 4,
                  "only %ld faults without heap_keep, so this test shows nothing", before);
    cr_expect_leq(after, PAGES / 100, "%ld page faults in a round of %d pages", after, PAGES);
}

#endif
