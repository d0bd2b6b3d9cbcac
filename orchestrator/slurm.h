/*
 * orchestrator/slurm.h - nodes from Slurm: one held allocation, a step an attempt.
 *
 * The allocation is made with salloc --no-shell --no-kill: it stays when a node dies, so that the
 * next step starts on the survivors without queueing. Inside a batch job or salloc's shell
 * (SLURM_JOB_ID is set) that job's allocation is used. STATE/allocation remembers it for a tp-run
 * that takes over.
 */
#ifndef ORCHESTRATOR_SLURM_H
#define ORCHESTRATOR_SLURM_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job.h"

/* Find or make the allocation (this may wait in Slurm's queue) and put its nodes into the job.
 * TP_E_IO: Slurm's programs are missing or refuse; their words are in err. */
tp_status slurm_allocate(struct job *job, struct arena *arena, struct tp_err *err);

/* Give back an allocation that slurm_allocate made; one that it found is left. */
void slurm_release(const struct job *job);

/* The words before the command: srun with the step's nodes. nodes: names with commas. */
tp_status slurm_command(struct job_words *out, const struct job *job, const char *nodes,
                        int n_nodes, int ranks, struct arena *arena, struct tp_err *err);

/* Tell Slurm not to give this node to anybody until someone has looked at it. */
void slurm_drain(const char *node, const char *reason);

#endif
