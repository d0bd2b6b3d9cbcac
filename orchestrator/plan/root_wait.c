/* orchestrator/plan/root_wait.c - see orchestrator/plan/root_wait.h. */
#include "orchestrator/plan/root_wait.h"

#include "ckpt/root_lock.h"

static const double REPORT_AFTER_S = 2;

bool root_wait_is_locked(struct root_wait *w, const char *root, double now, bool *report,
                         struct tp_err *who)
{
    *report = false;
    if (!root_lock_is_held(root, who)) {
        w->since = 0;
        return false;
    }
    if (w->since <= 0)
        w->since = now;
    *report = now - w->since > REPORT_AFTER_S && w->reported < w->since;
    if (*report)
        w->reported = now;
    return true;
}
