/* orchestrator/process/standby.c - see orchestrator/process/standby.h. */
#include "orchestrator/process/standby.h"

#include <math.h>
#include <string.h>
#include <time.h>

bool standby_wait(const struct standby *s)
{
    const struct timespec pause = { .tv_sec = (time_t)s->period,
                                    .tv_nsec = (long)(fmod(s->period, 1) * 1e9) };
    enum standby_verdict v = STANDBY_WAIT;

    while (v == STANDBY_WAIT) {
        struct home home;

        nanosleep(&pause, NULL);
        if (!home_read(&home, s->state) || home.job != s->job || strcmp(home.node, s->node) == 0)
            return false;
        v = s->look(s->ctx, &home);
    }
    return v == STANDBY_TAKE_OVER;
}
