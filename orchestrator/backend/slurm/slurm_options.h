/*
 * orchestrator/backend/slurm/slurm_options.h - the section `slurm` of the job file.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_OPTIONS_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_OPTIONS_H

#include "orchestrator/job/job_backend.h"

enum slurm_chain { SLURM_CHAIN_OFF, SLURM_CHAIN_ON, SLURM_CHAIN_REQUEUE };
enum slurm_grow { SLURM_GROW_EXPAND, SLURM_GROW_NEW, SLURM_GROW_OFF };

struct slurm_options {
    struct job_words options;      /* for salloc and sbatch */
    struct job_words step_options; /* for the srun of the ranks */
    int64_t nodes;                 /* to request; 0: as many as the batch job has, or 1 */
    int64_t min_nodes;
    int64_t tasks_per_node; /* 0: see slurm_tasks_per_node */
    int chain;     /* enum slurm_chain: continue in another Slurm job when the wall time ends */
    double margin; /* seconds before that end at which the job saves */
    int grow;      /* enum slurm_grow: how lost nodes are replaced */
    bool drain;    /* drain nodes at fault */
    double lost;   /* seconds without a heartbeat after which a node is lost */
    double poll;   /* seconds between two checks of the allocation */
};

extern const struct job_backend SLURM_JOB_BACKEND;

/* The options of a job with this backend. */
const struct slurm_options *slurm_options(const struct job *job);

/* The value of the option in word i of slurm.options, as --name=V, --name V, -l V or -lV; NULL: it
 * is another one. letter 0: it has none. */
const char *slurm_option(const struct job *job, int i, const char *name, char letter);

/* The ranks that a node holds: slurm.tasks_per_node, or as many as the GPUs that slurm.options ask
 * for on a node if tp-train uses GPUs, or 1. */
int slurm_tasks_per_node(const struct job *job);

/* Whether slurm.options ask for GPUs or other generic resources. */
bool slurm_asks_for_gres(const struct job *job);

#endif
