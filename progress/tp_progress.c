/* progress/tp_progress.c - see progress/tp_progress.h: the slot of core/heartbeat.h for other
 * programs.
 */
#include "progress/tp_progress.h"

#include <stddef.h>

#include "core/heartbeat.h"

_Static_assert((int)TP_PHASE_DRAIN == (int)TELL_DRAIN, "phases are numbered alike");

static struct tell *tell_of(struct tp_progress *p)
{
    return (struct tell *)(void *)p;
}

struct tp_progress *tp_progress_open(int rank, int world)
{
    struct tp_err err = { 0 };
    struct tell *s = NULL;

    if (rank < 0 || world <= rank || tell_open(&s, NULL, rank, world, &err))
        return NULL;
    return (struct tp_progress *)(void *)s;
}

void tp_progress_step(struct tp_progress *p, int64_t step, double loss)
{
    tell_step(tell_of(p), step, loss);
}

void tp_progress_phase(struct tp_progress *p, enum tp_phase phase)
{
    if (phase >= TP_PHASE_INIT && phase <= TP_PHASE_DRAIN)
        tell_phase(tell_of(p), (enum tell_phase)phase);
}

void tp_progress_collective(struct tp_progress *p, int enter)
{
    tell_collective(tell_of(p), enter != 0);
}

void tp_progress_close(struct tp_progress *p)
{
    tell_close(tell_of(p), true);
}
