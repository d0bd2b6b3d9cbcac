/* orchestrator/watch/loss_watch.c - see orchestrator/watch/loss_watch.h. */
#include "orchestrator/watch/loss_watch.h"

#include <math.h>
#include <stdio.h>

#include "orchestrator/watch/quantile.h"

enum { LEARNT_AFTER = 20 };

static const double SPREAD_MIN = 1e-3; /* the least spread, for losses that hardly differ */

static bool is_jump(const struct loss_watch *w, double loss, double *median)
{
    int n = w->n < LOSS_WATCH_WINDOW ? w->n : LOSS_WATCH_WINDOW;
    double spread;

    if (w->jump <= 0 || n < LEARNT_AFTER)
        return false;
    *median = quantile(w->last, n, 0.5);
    spread = quantile(w->last, n, 0.9) - quantile(w->last, n, 0.1);
    return loss - *median > w->jump * (spread > SPREAD_MIN ? spread : SPREAD_MIN);
}

enum loss_watch_finding loss_watch_step(struct loss_watch *w, int64_t step, double loss, char *text,
                                        size_t size)
{
    double median = 0;

    if (step < 0 || step <= w->last_step || w->reported_nan)
        return LOSS_WATCH_FINE;
    w->last_step = step;
    if (!isfinite(loss)) {
        if (!w->known)
            return LOSS_WATCH_FINE;
        w->reported_nan = true;
        snprintf(text, size, "the loss of step %lld is NaN or infinite", (long long)step);
        return LOSS_WATCH_NOT_FINITE;
    }
    w->known = true;
    if (is_jump(w, loss, &median)) {
        w->n = 0;
        snprintf(text, size, "the loss of step %lld is %.4g; the median before it is %.4g",
                 (long long)step, loss, median);
        return LOSS_WATCH_JUMP;
    }
    w->last[w->n++ % LOSS_WATCH_WINDOW] = loss;
    return LOSS_WATCH_FINE;
}
