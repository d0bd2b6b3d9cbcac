/* tests/unit/kernels_clear.c - the elements of all arrays become 0, and no others. */
#include "kernels/clear.h"

#include "tests/unit/kernels_support.h"

Test(clear, clears_each_array_and_nothing_beside)
{
    enum { ARRAYS = 40, ROOM = 300 };
    struct rng r = rng_start("clear");
    float *x = filled_floats(ARRAYS * ROOM, 7);
    struct clear_array arrays[ARRAYS];

    for (int i = 0; i < ARRAYS; i++)
        arrays[i] = (struct clear_array){ x + i * ROOM, rng_int(&r, 0, ROOM - 1) };
    RUN(clear, clear, arrays, ARRAYS);
    for (int64_t k = 0; k < ARRAYS * ROOM; k++)
        cr_assert_eq(x[k], k % ROOM < arrays[k / ROOM].n ? 0 : 7);
    free(x);
}
