/* orchestrator/watch/quantile.h - quantiles of a few numbers. */
#ifndef ORCHESTRATOR_WATCH_QUANTILE_H
#define ORCHESTRATOR_WATCH_QUANTILE_H

enum { QUANTILE_MAX = 256 };

/* The q-quantile of v[0 .. n - 1] by nearest rank, 1 <= n <= QUANTILE_MAX. */
double quantile(const double *v, int n, double q);

#endif
