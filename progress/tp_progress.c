/* progress/tp_progress.c - see progress/tp_progress.h: the slot of core/heartbeat.h for other
 * programs.
 */
#include "progress/tp_progress.h"

#include <stdlib.h>

#include "core/heartbeat.h"

_Static_assert((int)TP_PHASE_DRAIN == (int)HEARTBEAT_DRAIN, "phases are numbered alike");

static struct heartbeat *tell_of(struct tp_progress *p)
{
    return (struct heartbeat *)(void *)p;
}

struct tp_progress *tp_progress_open(int rank, int world)
{
    struct tp_err err = { 0 };
    struct heartbeat *s = NULL;

    if (rank < 0 || world <= rank ||
        heartbeat_open(&s, getenv(HEARTBEAT_DIR_ENV), rank, world, &err))
        return NULL;
    return (struct tp_progress *)(void *)s;
}

void tp_progress_step(struct tp_progress *p, int64_t step, double loss)
{
    heartbeat_step(tell_of(p), step, loss);
}

void tp_progress_phase(struct tp_progress *p, enum tp_phase phase)
{
    if (phase >= TP_PHASE_INIT && phase <= TP_PHASE_DRAIN)
        heartbeat_phase(tell_of(p), (enum heartbeat_phase)phase);
}

void tp_progress_collective(struct tp_progress *p, int enter)
{
    heartbeat_collective(tell_of(p), enter != 0);
}

void tp_progress_close(struct tp_progress *p)
{
    heartbeat_close(tell_of(p), true);
}
