/*
 * orchestrator/backend/slurm/slurm_command.h - the command lines of Slurm's programs.
 *
 * slurm_answer.h reads what they print. All words live in the arena that is passed.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_COMMAND_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_COMMAND_H

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/backend/slurm/slurm_answer.h"
#include "orchestrator/job/job.h"
#include "orchestrator/process/environment.h"

/* Who calls Slurm's programs. */
struct slurm_client {
    const struct job *job;
    const char *self;              /* path of tp-run */
    const struct environment *env; /* by slurm_client_env */
    const char *dir;               /* working folder of the programs */
};

/* A copy of tp-run's environment for Slurm's programs, without the variables about the Slurm job in
 * which tp-run runs: a request from inside a job must not inherit that job's options. Also without
 * those that filter or format what Slurm's programs print (SQUEUE_USERS, SINFO_FORMAT): tp-run
 * reads it. The user's defaults for requests (SALLOC_ACCOUNT, SBATCH_PARTITION) stay. */
void slurm_client_env(struct environment *out, const struct environment *env);

/* Make words from arguments that end with NULL. out->n is 0 when there is no memory. */
void slurm_words(struct job_words *out, struct arena *arena, ...);

/* squeue, for slurm_view_read. */
void slurm_view_words(struct job_words *out, long job, struct arena *arena);

/* squeue, for slurm_identity_read. */
void slurm_identity_words(struct job_words *out, long job, struct arena *arena);

/* srun of one process on one node of a Slurm job, in addition to other processes there. argv: what
 * it runs; NULL after the last word. */
void slurm_on_node(struct job_words *out, long job, const char *node, char *const *argv,
                   struct arena *arena);

/* A request for nodes. */
struct slurm_request {
    int64_t nodes;
    const char *exclude; /* node names with commas, "" */
    long expand;         /* the Slurm job that the nodes should join; 0: a separate job */
    double seconds;      /* with expand: how long they are needed, -1: without limit */
};

/* salloc, with slurm.options. */
tp_status slurm_salloc(struct job_words *out, const struct job *job, const struct slurm_request *q,
                       struct arena *arena, struct tp_err *err);

/* A batch job that runs `tp-run JOB.yaml`. */
struct slurm_batch {
    long after;                    /* begins when this Slurm job has ended, 0: at any time */
    const struct slurm_view *like; /* job from which missing slurm.options are copied; or NULL */
    int64_t nodes;
};

/* The script of the batch jobs of this job. */
char *slurm_script_path(const struct job *job, struct arena *arena);

/* sbatch, with slurm.options. Writes its script. */
tp_status slurm_sbatch(struct job_words *out, const struct slurm_client *client,
                       const struct slurm_batch *batch, struct arena *arena, struct tp_err *err);

/* A step of the ranks. */
struct slurm_step {
    long job;
    const char *nodes; /* names with commas */
    int n_nodes, ranks;
};

/* srun, before the command of an attempt. */
tp_status slurm_step_words(struct job_words *out, const struct job *job,
                           const struct slurm_step *step, struct arena *arena, struct tp_err *err);

/* ---- waiting for the answer ---- */

/* Run the words and wait for their end, at most patience_s seconds (0: no limit). *output, if not
 * NULL, gets what they printed, in the arena. TP_E_IO: they failed; their last line is in err. */
tp_status slurm_ask(char **output, const struct job_words *words, const struct slurm_client *client,
                    double patience_s, struct arena *arena, struct tp_err *err);

/* Whether to ask again: `why`, a failure, says that Slurm does not answer, and it is not yet
 * clock_seconds() == until. Waits a second before. */
bool slurm_again(const char *why, double until);

/* scancel; repeated for patience_s seconds while Slurm does not answer. TP_E_IO. */
tp_status slurm_cancel(const struct slurm_client *client, long job, double patience_s,
                       struct tp_err *err);

/* sbatch. *job: the new Slurm job. TP_E_IO. */
tp_status slurm_submit(long *job, const struct slurm_client *client,
                       const struct slurm_batch *batch, struct tp_err *err);

#endif
