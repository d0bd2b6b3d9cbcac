/* layout/recompute.c - see layout/recompute.h. */
#include "layout/recompute.h"

#include <string.h>

static const char *const names[RECOMPUTE_COUNT] = { "none", "selective", "full" };

const char *recompute_name(enum recompute r)
{
    return names[r];
}

bool recompute_parse(enum recompute *out, const char *text)
{
    for (int r = 0; r < RECOMPUTE_COUNT; r++)
        if (strcmp(names[r], text) == 0) {
            *out = (enum recompute)r;
            return true;
        }
    return false;
}
