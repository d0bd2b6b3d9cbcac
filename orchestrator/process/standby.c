/* orchestrator/process/standby.c - see orchestrator/process/standby.h. */
#include "orchestrator/process/standby.h"

#include <math.h>
#include <string.h>
#include <time.h>

static const double CONFIRM_S = 2;

static void sleep_for(double seconds)
{
    const struct timespec pause = { .tv_sec = (time_t)seconds,
                                    .tv_nsec = (long)(fmod(seconds, 1) * 1e9) };

    nanosleep(&pause, NULL);
}

bool standby_wait(const struct standby *s)
{
    enum standby_verdict v = STANDBY_WAIT, before;
    double pause = s->period;

    do {
        struct home home;

        before = v;
        sleep_for(pause);
        if (!home_read(&home, s->state) || home.job != s->job || strcmp(home.node, s->node) == 0)
            return false;
        v = s->look(s->ctx, &home);
        pause = v == STANDBY_WAIT || s->period < CONFIRM_S ? s->period : CONFIRM_S;
    } while (v == STANDBY_WAIT || v != before);
    return v == STANDBY_TAKE_OVER;
}
