/*
 * orchestrator/backend/slurm/slurm_command.h - the command lines of Slurm's programs.
 *
 * What is run when stands in run_slurm.h, what comes back is read by slurm_answer.h. All words live
 * in the arena that is passed.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_COMMAND_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_COMMAND_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/backend/slurm/slurm_answer.h"
#include "orchestrator/job/job.h"

/* A request for nodes. */
struct slurm_request {
    int64_t nodes;
    const char *exclude; /* node names with commas, "" */
    long expand;         /* grow this Slurm job by what is given; 0: a job of its own */
    double seconds;      /* with expand: how long they are wanted, -1: without limit */
};

/* squeue, for slurm_view_read. */
void slurm_view_words(struct job_words *out, long id, struct arena *arena);

/* salloc, with slurm.options. */
tp_status slurm_salloc(struct job_words *out, const struct job *job, const struct slurm_request *q,
                       struct arena *arena, struct tp_err *err);

/* sbatch of `tp-run JOB.yaml`, with slurm.options; script: a file to be written here. after: begin
 * when this Slurm job has ended, 0: at any time. like: the job to resemble where options say
 * nothing, or NULL. */
tp_status slurm_sbatch(struct job_words *out, const struct job *job, const char *self, long after,
                       const struct slurm_view *like, int64_t nodes, struct arena *arena,
                       struct tp_err *err);

/* srun, before the command of an attempt. nodes: names with commas. */
tp_status slurm_step(struct job_words *out, const struct job *job, long id, const char *nodes,
                     int n_nodes, int ranks, struct arena *arena, struct tp_err *err);

/* Words from a list that ends with NULL. out->n is 0 when there is no memory. */
void slurm_words(struct job_words *out, struct arena *arena, ...);

/* srun of one process on one node of a Slurm job, beside whatever runs there; the words of what it
 * runs follow, a list that ends with NULL. */
void slurm_on_node(struct job_words *out, long id, const char *node, struct arena *arena, ...);

/* Run words to their end, waiting, at most patience_s seconds (0: any time). *output, if not NULL,
 * gets what was said. TP_E_IO: it said no, and its last line is in err. */
tp_status slurm_ask(char **output, const struct job_words *words, const char *dir,
                    double patience_s, struct arena *arena, struct tp_err *err);

/* scancel, waiting for it; again for patience_s seconds while Slurm does not answer. TP_E_IO: it
 * did not, or refuses. */
tp_status slurm_cancel(const struct job *job, long id, double patience_s, struct tp_err *err);

/* sbatch of tp-run itself, waiting for it: see slurm_sbatch. *id: the Slurm job. */
tp_status slurm_submit(long *id, const struct job *job, const char *self, long after,
                       const struct slurm_view *like, int64_t nodes, struct tp_err *err);

#endif
