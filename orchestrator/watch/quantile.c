/* orchestrator/watch/quantile.c - see orchestrator/watch/quantile.h. */
#include "orchestrator/watch/quantile.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;

    return (x > y) - (x < y);
}

double quantile(const double *v, int n, double q)
{
    double sorted[QUANTILE_MAX];
    int at = (int)ceil(q * n) - 1;

    memcpy(sorted, v, (size_t)n * sizeof *v);
    qsort(sorted, (size_t)n, sizeof *sorted, by_value);
    return sorted[at < 0 ? 0 : at];
}
