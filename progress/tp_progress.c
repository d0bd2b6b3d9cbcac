/* progress/tp_progress.c - see progress/tp_progress.h: the slot of core/slot.h for other programs.
 */
#include "progress/tp_progress.h"

#include <stddef.h>

#include "core/slot.h"

_Static_assert((int)TP_PHASE_DRAIN == (int)SLOT_DRAIN, "phases are numbered alike");

static struct slot *slot_of(struct tp_progress *p)
{
    return (struct slot *)(void *)p;
}

struct tp_progress *tp_progress_open(int rank, int world)
{
    struct tp_err err = { 0 };
    struct slot *s = NULL;

    if (rank < 0 || world <= rank || slot_open(&s, NULL, rank, world, &err))
        return NULL;
    return (struct tp_progress *)(void *)s;
}

void tp_progress_step(struct tp_progress *p, int64_t step, double loss)
{
    slot_step(slot_of(p), step, loss);
}

void tp_progress_phase(struct tp_progress *p, enum tp_phase phase)
{
    if (phase >= TP_PHASE_INIT && phase <= TP_PHASE_DRAIN)
        slot_phase(slot_of(p), (enum slot_phase)phase);
}

void tp_progress_collective(struct tp_progress *p, int enter)
{
    slot_collective(slot_of(p), enter != 0);
}

void tp_progress_close(struct tp_progress *p)
{
    slot_close(slot_of(p));
}
