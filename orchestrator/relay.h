/*
 * orchestrator/relay.h - tp-run on a node: between Slurm's step and a rank.
 *
 * A rank's slot lies in its node's memory. The relay starts the rank, and five times a second
 * copies the slot to the state folder, which all nodes share, with a beat that counts: a node
 * whose beats stop is lost, whatever its ranks do. Each copy is open, write, close, so that it is
 * seen over NFS too. When DIR/stop appears the relay kills its rank at once: so a step whose srun
 * is gone ends within a beat.
 */
#ifndef ORCHESTRATOR_RELAY_H
#define ORCHESTRATOR_RELAY_H

#include "core/err.h"
#include "core/tell.h"

/* The word of a slot that counts beats. */
enum { RELAY_BEAT = 14, RELAY_PERIOD_MS = 200 };

/* Run argv as rank SLURM_PROCID, with its slot copied to dir; *exit_code is the rank's. */
tp_status relay_run(char **argv, const char *dir, int *exit_code, struct tp_err *err);

#endif
