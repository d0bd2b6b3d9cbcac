/*
 * orchestrator/backend/slurm/slurm_standby.h - on another node of a batch job: when tp-run's own
 * node dies.
 *
 * A batch job that was submitted with --no-kill outlives its first node, but nothing would use the
 * others until the wall time ends. So tp-run in a batch job starts a guard on one of them, which
 * takes tp-run's place once Slurm has taken that node out of the allocation: not before, so that
 * two are never in charge.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_STANDBY_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_STANDBY_H

#include <stdbool.h>

#include "core/err.h"
#include "orchestrator/job/job.h"

/* Wait until tp-run has ended, or its node is lost: then *take_over. id: the batch job; node: this
 * one, as Slurm calls it. Looks every slurm.poll seconds. */
tp_status slurm_standby_wait(bool *take_over, const struct job *job, long id, const char *node,
                             struct tp_err *err);

#endif
