/*
 * orchestrator/backend/slurm/slurm.h - the Slurm backend: ranks run as a step of an allocation.
 *
 * Outside of Slurm, tp-run holds an allocation that salloc has made (--no-shell). In a batch job it
 * uses the batch job's allocation. Both are made with --no-kill, so they survive the loss of a
 * node.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_H

#include "orchestrator/backend/backend.h"

extern const struct backend SLURM_BACKEND;

#endif
