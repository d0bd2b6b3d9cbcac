/* tests/unit/reshard_tensor_digests.c - the digests of a transfer's tensors, which threads add to.
 */
#include "reshard/engine/tensor_digests.h"

#include <criterion/criterion.h>

enum { TENSORS = 3, THREADS = 4, ROWS = 1 << 16 };

static const int64_t shape[] = { ROWS };

struct adder {
    struct tensor_digests *digests;
    const struct digest *rows;
    pthread_barrier_t *start;
    int number;
};

/* Add every THREADS-th row to all tensors. */
static void *add_rows(void *ctx)
{
    const struct adder *a = ctx;

    pthread_barrier_wait(a->start);
    for (int row = a->number; row < ROWS; row += THREADS)
        for (int i = 0; i < TENSORS; i++)
            tensor_digests_add(a->digests, i, &a->rows[row]);
    return NULL;
}

static void add_all(struct tensor_digests *d, const struct digest *rows)
{
    pthread_t threads[THREADS];
    struct adder adders[THREADS];
    pthread_barrier_t start;

    pthread_barrier_init(&start, NULL, THREADS);
    for (int i = 0; i < THREADS; i++) {
        adders[i] = (struct adder){ d, rows, &start, i };
        cr_assert_eq(pthread_create(&threads[i], NULL, add_rows, &adders[i]), 0);
    }
    for (int i = 0; i < THREADS; i++)
        pthread_join(threads[i], NULL);
    pthread_barrier_destroy(&start);
}

Test(tensor_digests, rows_that_threads_add_in_any_order_sum_to_the_digest_of_the_whole)
{
    static float elements[ROWS];
    static struct digest rows[ROWS];
    const struct box whole = box_whole(1, shape);
    const struct digest expected = digest_box(elements, &whole, 1, shape, sizeof *elements);
    struct tensor_digests d;
    struct arena arena = { 0 };
    struct reshard_sums words;

    for (int i = 0; i < ROWS; i++) {
        const struct box row = { .ndim = 1, .lo = { i }, .len = { 1 } };

        rows[i] = digest_box(elements + i, &row, 1, shape, sizeof *elements);
    }
    tensor_digests_init(&d);
    cr_assert(tensor_digests_make(&d, TENSORS, &arena));
    add_all(&d, rows);
    words = tensor_digests_words(&d);
    cr_expect_eq(words.n, 2 * TENSORS);
    for (int i = 0; i < TENSORS; i++) {
        const struct digest sum = tensor_digests_of(&d, i);

        cr_expect_arr_eq(sum.d, expected.d, sizeof sum.d);
        cr_expect_arr_eq(words.words + 2 * i, expected.d, sizeof sum.d);
    }
    tensor_digests_end(&d);
    arena_free(&arena);
}

Test(tensor_digests, no_memory_is_said_and_none_is_kept)
{
    struct tensor_digests d;
    struct arena arena = { .limit_bytes = 16 };

    tensor_digests_init(&d);
    cr_expect_not(tensor_digests_make(&d, TENSORS, &arena));
    cr_expect_eq(d.n, 0);
    tensor_digests_end(&d);
    arena_free(&arena);
}
