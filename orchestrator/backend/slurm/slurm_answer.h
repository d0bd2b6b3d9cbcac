/*
 * orchestrator/backend/slurm/slurm_answer.h - what Slurm's programs say, read. Pure.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_ANSWER_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* What squeue says of a job. The texts lie in the text that was read. */
struct slurm_view {
    const char *state, *reason; /* "RUNNING"; "Resources", "None" */
    double left;                /* seconds until its end, -1: no limit; see slurm_view_read */
    int64_t nodes;              /* how many it has or waits for */
    const char *list;           /* of its nodes, "n[1-3]"; "" when it has none */
    /* as it was submitted; "" where there is none */
    const char *limit, *account, *partition, *qos;
    bool preempted; /* somebody of more right gets its nodes: at once, or when its grace is over */
    long restarts;  /* how often it was requeued */
};

/* squeue's -O, for slurm_view_read: -o has no letters for two of these. */
#define SLURM_VIEW_FORMAT                                                                       \
    "State:|,Reason:|,TimeLeft:|,EndTime:|,NumNodes:|,TimeLimit:|,Account:|,Partition:|,QOS:|," \
    "PreemptTime:|,RestartCnt:|,NodeList:|"

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

/* The same in what srun said: for that it could not begin its step. What it says of nodes that do
 * not answer is another matter. */
bool slurm_kept_step(const char *text);

#endif
