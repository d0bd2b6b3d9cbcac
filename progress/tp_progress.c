/* progress/tp_progress.c - see progress/tp_progress.h. A thin layer over core/heartbeat.h. */
#include "progress/tp_progress.h"

#include <stdlib.h>

#include "core/heartbeat.h"

_Static_assert((int)TP_PHASE_DRAIN == (int)HEARTBEAT_DRAIN, "phases have the same numbers");

static struct heartbeat *heartbeat_of(struct tp_progress *p)
{
    return (struct heartbeat *)(void *)p;
}

struct tp_progress *tp_progress_open(int rank, int world)
{
    struct tp_err err = { 0 };
    struct heartbeat *h = NULL;

    if (rank < 0 || world <= rank ||
        heartbeat_open(&h, getenv(HEARTBEAT_DIR_ENV), rank, world, &err))
        return NULL;
    return (struct tp_progress *)(void *)h;
}

void tp_progress_step(struct tp_progress *p, int64_t step, double loss)
{
    heartbeat_step(heartbeat_of(p), step, loss);
}

void tp_progress_phase(struct tp_progress *p, enum tp_phase phase)
{
    if (phase >= TP_PHASE_INIT && phase <= TP_PHASE_DRAIN)
        heartbeat_phase(heartbeat_of(p), (enum heartbeat_phase)phase);
}

void tp_progress_collective(struct tp_progress *p, int enter)
{
    heartbeat_collective(heartbeat_of(p), enter != 0);
}

void tp_progress_close(struct tp_progress *p)
{
    heartbeat_close(heartbeat_of(p), true);
}
