/*
 * orchestrator/backend/slurm/slurm_answer.h - reads what Slurm's programs print. No I/O.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_ANSWER_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_ANSWER_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* What squeue says about a job. The texts point into the text that was read. */
struct slurm_view {
    const char *state, *reason; /* "RUNNING"; "Resources", "None" */
    double left;                /* seconds until its end, -1: no limit */
    int64_t nodes;              /* how many it has or waits for */
    const char *list;           /* its nodes, "n[1-3]"; "" when it has none */
    /* as it was submitted; "": none */
    const char *limit, *account, *partition, *qos;
    bool preempted; /* its nodes go to a job of higher priority, now or after its grace */
    long restarts;  /* how often it was requeued */
};

/* squeue's -O, for slurm_view_read: -o has no letters for two of these. */
#define SLURM_VIEW_FORMAT                                                                       \
    "State:|,Reason:|,TimeLeft:|,EndTime:|,NumNodes:|,TimeLimit:|,Account:|,Partition:|,QOS:|," \
    "PreemptTime:|,RestartCnt:|,NodeList:|"

/* Find squeue's answer among other lines; changes the text. now: the wall clock, by which Slurm
 * ends jobs. The end may be earlier than the time limit (an administrator, a reservation, a
 * preemption). False: no line is an answer. */
bool slurm_view_read(struct slurm_view *out, char *text, time_t now);

/* What tells a job from another one that got the same number: Slurm gives numbers out again, after
 * the largest one or when its controller has lost its state. */
struct slurm_identity {
    const char *state;
    time_t submitted;    /* -1: not known */
    const char *command; /* of a batch job its script, "" when there is none */
};

/* squeue's -o, for slurm_identity_read; the command is last because it may contain a bar. */
#define SLURM_IDENTITY_FORMAT "%T|%V|%o"

/* As slurm_view_read. */
bool slurm_identity_read(struct slurm_identity *out, char *text);

/* Whether a job in this state waits for its nodes; has them (perhaps suspended; also a state that
 * we do not know); has ended, while Slurm still cleans up. */
bool slurm_state_waits(const char *state);
bool slurm_state_runs(const char *state);
bool slurm_state_ends(const char *state);
bool slurm_state_is_suspended(const char *state);

/* Whether it has nodes on which its processes can run now. */
bool slurm_state_is_active(const char *state);

/* Seconds of "1-02:03:04" or "5:00"; -1, for example for "UNLIMITED": no limit, or not known
 * yet. */
double slurm_seconds(const char *text);

/* The job in salloc's "Pending|Granted job allocation N", 0: salloc has not printed it (yet). */
long slurm_allocated(const char *text, bool *granted);

/* The job in sbatch --parsable's "N" or "N;cluster", 0: there is none. */
long slurm_submitted(const char *text);

/* The job in squeue's answer "ID|DEPENDENCY" that begins after `job`, 0: there is none. */
long slurm_dependent(const char *text, long job);

/* What sinfo says about a node. */
enum slurm_node_state {
    SLURM_NODE_UP,
    SLURM_NODE_DRAINING,
    SLURM_NODE_UNKNOWN, /* not registered since Slurm's controller was started */
    SLURM_NODE_DOWN,
};

/* The state as sinfo writes it. *answers: the node answers Slurm. */
enum slurm_node_state slurm_node_state(const char *text, bool *answers);

/* Whether a program failed because Slurm did not answer, so that it can be tried again. */
bool slurm_is_unreachable(const char *text);

/* Whether srun could not begin its step because Slurm did not answer. Messages of srun about nodes
 * that do not answer do not count. */
bool slurm_refused_step(const char *text);

/* Whether srun ended before it started its step. Slurm 22.05 then exits with code 0. */
bool slurm_aborted_step(const char *text);

/* Whether srun says that it cannot start processes on this node. */
bool slurm_lost_node(const char *text, const char *node);

/* The rank at fault in a line such as "srun: error: n2: task 3: Exited with exit code 1", -1: none.
 * Ranks that srun itself has ended do not count. */
int slurm_rank_of_line(const char *line);

#endif
