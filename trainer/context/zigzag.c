/* trainer/context/zigzag.c - see trainer/context/zigzag.h. */
#include "trainer/context/zigzag.h"

struct zigzag zigzag_of(const struct spec *s, int cp, int64_t seq)
{
    return (struct zigzag){ .seq = seq, .n = s->cp, .rank = cp };
}

int64_t zigzag_tokens(const struct zigzag *z)
{
    return z->seq / z->n;
}

int64_t zigzag_position(const struct zigzag *z, int64_t i, int64_t *run)
{
    int64_t block = zigzag_tokens(z) / 2;

    if (z->n == 1) {
        *run = z->seq - i;
        return i;
    }
    if (i < block) {
        *run = block - i;
        return z->rank * block + i;
    }
    *run = 2 * block - i;
    return (2 * z->n - 1 - z->rank) * block + i - block;
}
