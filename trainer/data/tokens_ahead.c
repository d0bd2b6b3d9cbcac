/* trainer/data/tokens_ahead.c - see trainer/data/tokens_ahead.h. */
#include "trainer/data/tokens_ahead.h"

#include <string.h>

bool tokens_ahead_take(struct tokens_ahead *a, int64_t first, int32_t *out)
{
    bool found = a->is_full && a->first == first;

    a->is_full = false;
    if (found)
        memcpy(out, a->tokens, (size_t)a->n * sizeof *out);
    return found;
}
