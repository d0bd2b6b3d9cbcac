/*
 * orchestrator/slurm.h - the words of Slurm's programs, and what their answers mean.
 *
 * Builds command lines and reads texts; what is run when stands in run_slurm.c. All words live in
 * the arena that is passed.
 */
#ifndef ORCHESTRATOR_SLURM_H
#define ORCHESTRATOR_SLURM_H

#include <time.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job.h"

/* A request for nodes. */
struct slurm_request {
    int64_t nodes;
    const char *exclude; /* node names with commas, "" */
    long expand;         /* grow this Slurm job by what is given; 0: a job of its own */
    double seconds;      /* with expand: how long they are wanted, -1: without limit */
};

/* What squeue says of a job. The texts lie in the text that was read. */
struct slurm_view {
    const char *state, *reason; /* "RUNNING"; "Resources", "None" */
    double left;                /* seconds until its end, -1: no limit; see slurm_view_read */
    int64_t nodes;              /* how many it has or waits for */
    const char *list;           /* of its nodes, "n[1-3]"; "" when it has none */
    /* as it was submitted; "" where there is none */
    const char *limit, *account, *partition, *qos;
};

/* What Slurm's programs print for a program to read. */
void slurm_view_words(struct job_words *out, long id, struct arena *arena);
/* Cuts the text. now: the wall clock, which is what Slurm ends jobs by; the end may be earlier than
 * the time limit (an administrator, a reservation, a preemption). false: no line is an answer. */
bool slurm_view_read(struct slurm_view *out, char *text, time_t now);

/* "1-02:03:04", "5:00", "UNLIMITED" -> seconds, -1: no limit, or not known yet. */
double slurm_seconds(const char *text);

/* The id in salloc's "Pending|Granted job allocation N", 0: it is not there (yet). */
long slurm_allocated(const char *text, bool *granted);

/* The id in sbatch --parsable's "N" or "N;cluster", 0: it is not one. */
long slurm_submitted(const char *text);

/* Whether Slurm could not be asked, rather than said no: worth asking again. */
bool slurm_is_away(const char *text);

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

/* Run words to their end, waiting. *output, if not NULL, gets what was said.
 * TP_E_IO: it said no, and its last line is in err. */
tp_status slurm_ask(char **output, const struct job_words *words, const char *dir,
                    struct arena *arena, struct tp_err *err);

/* scancel, waiting for it. TP_E_IO: Slurm refuses. */
tp_status slurm_cancel(const struct job *job, long id, struct tp_err *err);

/* sbatch of tp-run itself, waiting for it: see slurm_sbatch. *id: the Slurm job. */
tp_status slurm_submit(long *id, const struct job *job, const char *self, long after,
                       const struct slurm_view *like, int64_t nodes, struct tp_err *err);

#endif
