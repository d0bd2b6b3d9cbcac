/* tests/unit/storage_remote_wanted.c - what will be read is cut into few, long requests. */
#include "storage/remote_wanted.h"

#include <criterion/criterion.h>
#include <stdlib.h>
#include <string.h>

#include "tests/unit/random.h"

/* Only its address matters. */
struct remote_object {
    int number;
};

enum { OBJECTS = 3, BYTES = 1 << 16, STREAMS_MAX = 4 };

static struct remote_object objects[OBJECTS];

Test(remote_wanted, every_byte_is_requested_once_and_no_request_is_too_long)
{
    struct rng r = rng_start("remote_wanted/once");
    static unsigned char asked[OBJECTS][BYTES], sent[OBJECTS][BYTES];

    for (int round = 0; round < 50; round++) {
        struct remote_wanted_list l = { 0 };
        const int64_t most = rng_int(&r, 1, 5000);
        int64_t at[OBJECTS] = { 0 }, wanted = 0, taken = 0;
        struct remote_wanted *w;

        memset(asked, 0, sizeof asked);
        memset(sent, 0, sizeof sent);
        for (int i = 0; i < 200; i++) {
            const int o = (int)rng_int(&r, 0, OBJECTS - 1);
            const int64_t begin = at[o] + rng_int(&r, 0, 1) * rng_int(&r, 0, 50);
            const int64_t end = begin + rng_int(&r, 1, 200);

            cr_assert(end <= BYTES);
            cr_assert(remote_wanted_add(&l, &objects[o], begin, end));
            memset(asked[o] + begin, 1, (size_t)(end - begin));
            wanted += end - begin;
            at[o] = end;
        }
        while ((w = remote_wanted_next(&l))) {
            const long o = w->object - objects;
            const int64_t begin = w->begin;
            const struct remote_wanted_request q = remote_wanted_take(&l, w, most);

            cr_assert(q.begin <= begin && begin < q.end && q.end - q.begin <= most);
            cr_assert(q.wanted_bytes > 0 && q.wanted_bytes <= q.end - q.begin);
            taken += q.wanted_bytes;
            for (int64_t i = q.begin; i < q.end; i++)
                sent[o][i]++;
        }
        cr_expect_eq(taken, wanted);
        for (int o = 0; o < OBJECTS; o++)
            for (int i = 0; i < BYTES; i++)
                cr_assert(sent[o][i] <= 1 && (sent[o][i] || !asked[o][i]), "object %d, byte %d", o,
                          i);
        remote_wanted_forget(&l, NULL);
    }
}

Test(remote_wanted, neighbours_in_an_object_are_one_request)
{
    struct remote_wanted_list l = { 0 };
    struct remote_wanted_request q;

    for (int64_t i = 0; i < 8; i++)
        for (int o = 0; o < 2; o++)
            cr_assert(remote_wanted_add(&l, &objects[o], 100 * i, 100 * i + 90));
    q = remote_wanted_take(&l, remote_wanted_next(&l), 600);
    cr_expect(q.begin == 0 && q.end == 590 && q.wanted_bytes == 540);
    cr_expect_eq(remote_wanted_next(&l)->object, &objects[1]);
    q = remote_wanted_take(&l, remote_wanted_next(&l), 1 << 20);
    cr_expect(q.begin == 0 && q.end == 790 && q.wanted_bytes == 720);
    cr_expect_eq(remote_wanted_next(&l)->begin, 600, "the rest of the first object");
    remote_wanted_forget(&l, &objects[0]);
    cr_expect_null(remote_wanted_next(&l));
}

Test(remote_wanted, requests_are_so_long_that_each_run_of_neighbours_has_room_for_one)
{
    const int64_t mib = 1 << 20;

    for (int streams = 1; streams <= STREAMS_MAX; streams *= 2) {
        struct remote_wanted_list l = { 0 };
        struct remote_object *each = calloc((size_t)streams, sizeof *each);

        for (int64_t i = 0; i < 64; i++)
            for (int s = 0; s < streams; s++)
                cr_assert(remote_wanted_add(&l, &each[s], i * mib / 4, (i + 1) * mib / 4));
        cr_expect_eq(remote_wanted_length(&l, 8 * mib, 8 * mib), 8 * mib / streams);
        cr_expect_eq(remote_wanted_length(&l, mib / 2, 8 * mib), mib / 2);
        for (int s = 0; s < streams; s++)
            remote_wanted_forget(&l, &each[s]);
        free(each);
    }
}

Test(remote_wanted, a_range_that_is_put_back_is_first_again)
{
    struct remote_wanted_list l = { 0 };

    cr_assert(remote_wanted_add(&l, &objects[0], 0, 100));
    cr_assert(remote_wanted_add(&l, &objects[1], 0, 100));
    remote_wanted_take(&l, remote_wanted_next(&l), 100);
    cr_assert_eq(remote_wanted_next(&l)->object, &objects[1]);
    remote_wanted_put_back(&l, &objects[0], 0, 100);
    cr_expect_eq(remote_wanted_next(&l)->object, &objects[0]);
    cr_expect_not_null(remote_wanted_find(&l, &objects[1], 99));
    cr_expect_null(remote_wanted_find(&l, &objects[1], 100));
    for (int o = 0; o < OBJECTS; o++)
        remote_wanted_forget(&l, &objects[o]);
}
