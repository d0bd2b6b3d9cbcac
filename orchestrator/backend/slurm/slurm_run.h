/*
 * orchestrator/backend/slurm/slurm_run.h - the state of the Slurm backend during a run. Only
 * this folder uses it.
 *
 * Functions do not wait, unless their comment says so. Slurm's programs run as children while
 * tp-run's loop continues, and each answer leads to the next action. Only the file that is named
 * with a struct changes its members; other files call its functions.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_RUN_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_RUN_H

#include <limits.h>

#include "orchestrator/backend/backend.h"
#include "orchestrator/backend/slurm/slurm_codes.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/child.h"

#define SLURM_SALLOC_ENV "TP_SALLOC_ID" /* in salloc's environment: its run */

/* The purposes of Slurm's programs; at most one of each runs at a time. */
enum slurm_command {
    SLURM_COMMAND_VIEW,    /* squeue: the allocation */
    SLURM_COMMAND_HOSTS,   /* scontrol: the names of its nodes */
    SLURM_COMMAND_STATES,  /* sinfo: their states */
    SLURM_COMMAND_ALLOC,   /* salloc, which may wait in the queue for days */
    SLURM_COMMAND_FIND,    /* squeue: is the next batch job submitted already? */
    SLURM_COMMAND_SUBMIT,  /* sbatch of the next batch job */
    SLURM_COMMAND_PROBE,   /* srun: does a node start processes again? */
    SLURM_COMMAND_IDLE,    /* sinfo: idle nodes */
    SLURM_COMMAND_GROW,    /* salloc of nodes that should join the allocation */
    SLURM_COMMAND_JOIN,    /* scontrol: they join it */
    SLURM_COMMAND_STANDBY, /* srun: tp-run's standby on another node */
    SLURM_COMMAND_CANCEL,  /* scancel of an allocation that is given back */
    SLURM_COMMAND_DRAIN,   /* scontrol: a node is drained */
    SLURM_COMMANDS,
};

enum slurm_stage {
    SLURM_STAGE_NONE,  /* there is no allocation */
    SLURM_STAGE_ASKED, /* one was requested, or is remembered but was not checked yet */
    SLURM_STAGE_HELD,  /* it runs and its nodes are known */
};

/* slurm_allocation.c */
struct slurm_allocation {
    enum slurm_stage stage;
    long job;        /* requested or held, 0: none */
    bool own;        /* tp-run has requested it, so it gives it back */
    bool remembered; /* from an earlier tp-run: its end says nothing about this run */
    int64_t wanted;  /* nodes that it should have */
    double next_request;
    char over[32];   /* the state in which the last allocation ended, "": none */
    bool never_held; /* the last allocation ended before it was granted */
};

/* slurm_query.c: what Slurm says about the allocation */
struct slurm_query {
    char *view_text; /* malloc'ed; `view` points into it. NULL: there is no view yet */
    struct slurm_view view;
    double seen_at;   /* when view was read */
    double asked_at;  /* when squeue was asked last */
    long asked_about; /* the job that squeue was asked about */
    double next_look;
    char *list;        /* the nodes as Slurm last wrote them; malloc'ed, NULL: none */
    bool runs;         /* according to view */
    bool must_look;    /* it may be over: check it before it is used again */
    bool no_answer;    /* Slurm does not answer, and that was reported */
    double gone_since; /* since when Slurm says that there is no such job, 0: it knows the job */
};

/* slurm_ending.c */
struct slurm_ending {
    bool ending; /* the attempt ends because the allocation does */
    struct backend_cause cause;
    double margin;  /* seconds before the end of the wall time; at most half of the wall time */
    bool preempted; /* Slurm has reported it */
    bool requeued;  /* the batch job begins again with the same number */
    bool waits;     /* preempted without chain: it continues only if Slurm requeues it */
};

/* slurm_next.c */
struct slurm_next {
    long job; /* the batch job that continues after this one, 0: none */
    double next_try;
    char why[200]; /* why none could be submitted, "" */
    /* the newest allocation that was held: */
    long held;
    int64_t restarts; /* how often it had been requeued */
    int64_t progress; /* of the job when the allocation was first held */
    int64_t idle;     /* allocations in a row without progress */
};

/* slurm_growth.c */
struct slurm_growth {
    long job;     /* the Slurm job that brings more nodes, 0: none */
    bool dropped; /* SIGTERM was sent to its salloc */
    double next_try;
};

/* slurm_pause.c */
struct slurm_pause {
    double since;     /* when the suspension was seen, 0: not suspended */
    double ticked_at; /* the last tick */
    double silent_since,
        silence_asked_at; /* first and last question about a silence that may be a suspension */
    double ask_at;        /* when to repeat the request to save and stop */
    int asks;             /* how often */
};

/* slurm_nodes.c */
struct slurm_nodes {
    struct node *probed;
    double next_probe, next_standby;
    char drained[64]; /* the node of SLURM_COMMAND_DRAIN */
};

struct slurm {
    const struct backend_host *host;
    const struct slurm_options *options;
    struct environment env; /* for Slurm's programs */
    struct slurm_client client;
    long inside;           /* the batch job in which tp-run runs, 0: none */
    const char *this_node; /* its node there, "" */
    struct child command[SLURM_COMMANDS];
    struct slurm_allocation allocation;
    struct slurm_query query;
    struct slurm_ending ending;
    struct slurm_next next;
    struct slurm_growth growth;
    struct slurm_pause pause;
    struct slurm_nodes nodes;
};

/* ---- slurm.c ---- */

/* Start a command; does nothing if it runs already. It is killed after patience_s seconds; 0:
 * never. */
tp_status slurm_start(struct slurm *s, enum slurm_command what, const struct job_words *words,
                      double patience_s);
bool slurm_is_running(const struct slurm *s, enum slurm_command what);
/* What salloc (ALLOC, GROW) has printed so far, in the arena; and the path of that file. */
char *slurm_salloc_text(const struct slurm *s, enum slurm_command what, struct arena *arena);
void slurm_salloc_log(const struct slurm *s, enum slurm_command what, char path[PATH_MAX]);
/* Report an event `allocation`. */
void slurm_event(struct slurm *s, enum slurm_result result, enum slurm_reason reason,
                 const char *message);
struct backend_cause slurm_cause(enum slurm_reason reason, const char *message);
/* End the run. */
void slurm_finish(struct slurm *s, enum run_state state, tp_status result, enum slurm_reason reason,
                  const char *message);

/* ---- slurm_allocation.c ---- */

/* Read what is remembered. is_old: from the run record of an earlier version. */
void slurm_allocation_read(struct slurm *s, const json_t *json, bool is_old);
/* Find the allocation that exists when tp-run begins. */
void slurm_allocation_begin(struct slurm *s);
tp_status slurm_allocation_tick(struct slurm *s);
tp_status slurm_ready(void *state, bool *ready);
/* Its nodes are known: from the first time on it is held. fresh: it was not held before. */
void slurm_allocation_held(struct slurm *s, bool fresh);
/* Slurm says that it is over: its last state. */
tp_status slurm_allocation_over(struct slurm *s, const char *state);
/* Give the allocation back and request another one. */
tp_status slurm_renew(struct slurm *s, const struct backend_cause *cause);
/* End salloc and wait for it, at the end of tp-run. */
void slurm_end_request(struct slurm *s);
/* Call this when SLURM_COMMAND_ALLOC has ended. */
tp_status slurm_requested(struct slurm *s, int exit_code);

/* ---- slurm_query.c ---- */

/* If there is an allocation or a request, and it is time: ask squeue about it. */
tp_status slurm_query_tick(struct slurm *s);
/* Ask at the next tick; first: before the allocation is used again. */
void slurm_look(void *state, bool first);
/* Ask within a second. */
void slurm_query_soon(struct slurm *s);
/* The allocation is gone. */
void slurm_query_forget(struct slurm *s);
/* Seconds until the allocation ends, -1: no limit. */
double slurm_left(const struct slurm *s);
/* Report once that Slurm does not answer, until it answers again. */
void slurm_report_no_answer(struct slurm *s, const char *said);
/* Call these when their commands have ended: VIEW, HOSTS, STATES. */
tp_status slurm_viewed(struct slurm *s, int exit_code);
tp_status slurm_named(struct slurm *s, int exit_code);
tp_status slurm_saw_states(struct slurm *s, int exit_code);

/* ---- slurm_nodes.c ---- */

/* Add the nodes that the run record names, before it is read. */
tp_status slurm_nodes_restore(struct slurm *s, const json_t *run_record);
/* Set the allocation's nodes: one name per line, in Slurm's order. fresh: the allocation is new, so
 * faults of its nodes are forgotten. */
tp_status slurm_nodes_set(struct slurm *s, const char *names, bool fresh);
/* Read sinfo's lines NODE|STATE. */
tp_status slurm_nodes_see(struct slurm *s, const char *text);
/* Whether Slurm does not know the state of a node yet, because its controller was just started. */
bool slurm_nodes_unknown(const struct slurm *s);
tp_status slurm_nodes_tick(struct slurm *s);
tp_status slurm_probed(struct slurm *s, int exit_code);
/* The nodes that a request must exclude, with commas. In the arena. */
const char *slurm_nodes_excluded(const struct slurm *s, struct arena *arena);
/* The number of nodes that the allocation has lost. */
int64_t slurm_nodes_missing(const struct slurm *s);
void slurm_node_excluded(void *state, const struct node *node, const char *message);
void slurm_node_drained(struct slurm *s, int exit_code);

/* ---- slurm_pause.c ---- */

bool slurm_is_paused(const void *state);
bool slurm_explains_silence(void *state);
/* Note whether the job is suspended according to the new view. */
void slurm_pause_see(struct slurm *s);
/* The allocation is gone. */
void slurm_pause_forget(struct slurm *s);
/* At each tick: extend all waits for the ranks while they are suspended. */
void slurm_pause_tick(struct slurm *s);

/* ---- slurm_ending.c ---- */

bool slurm_is_ending(const void *state, struct backend_cause *cause);
enum backend_allocation slurm_after_save(void *state,
                                         struct backend_cause *cause); /* waits for squeue */
bool slurm_explains_sigterm(void *state, struct backend_cause *cause); /* also */
tp_status slurm_hand_over(void *state, const struct backend_cause *cause, bool *plan);
/* A new allocation is held. */
void slurm_ending_begin(struct slurm *s);
void slurm_ending_forget(struct slurm *s);
tp_status slurm_ending_tick(struct slurm *s);
/* A new view says that the job does not run: *requeued when Slurm has requeued the batch job of
 * tp-run, which then saves and stops. The SIGTERM that Slurm sends may come before or after such a
 * view. */
tp_status slurm_see_requeued(struct slurm *s, bool *requeued);
/* Save and stop for this cause; the job continues afterwards. */
tp_status slurm_end_for(struct slurm *s, const struct backend_cause *cause);

/* ---- slurm_next.c ---- */

/* Submit the batch job that continues in time; submit it now and wait for that; check whether it
 * still exists. */
tp_status slurm_next_tick(struct slurm *s);
tp_status slurm_next_submit_now(struct slurm *s);
void slurm_next_check(struct slurm *s);
void slurm_next_set(struct slurm *s, long job);
tp_status slurm_next_found(struct slurm *s, int exit_code);
tp_status slurm_next_submitted(struct slurm *s, int exit_code);
/* Whether the allocation was not held before. */
bool slurm_next_is_fresh(const struct slurm *s);
/* A new allocation is held: count the allocations without progress. */
tp_status slurm_next_count(struct slurm *s);
void slurm_next_forgive(struct slurm *s);
/* Read what is remembered. is_old: from the run record of an earlier version. */
void slurm_next_read(struct slurm *s, const json_t *json, bool is_old);

/* ---- slurm_growth.c ---- */

tp_status slurm_growth_tick(struct slurm *s);
/* Cancel the request for more nodes and wait until it is cancelled. */
void slurm_growth_drop(struct slurm *s);
/* The same, because the allocation is gone. The next one may request nodes again. */
void slurm_growth_forget(struct slurm *s);
/* GROW, JOIN or IDLE has ended. */
tp_status slurm_grown(struct slurm *s, enum slurm_command what, int exit_code);

/* ---- slurm_standby.c ---- */

/* In a batch job: start a standby on another node if none runs. */
tp_status slurm_standby_tick(struct slurm *s);
tp_status slurm_standby(bool *take_over, const struct backend_call *call, struct tp_err *err);
void slurm_standby_env(struct environment *env);
void slurm_standby_end(const struct backend_call *call);

/* ---- slurm_status.c ---- */

/* The backend's `status` and `line`. */
json_t *slurm_status(const void *state);
void slurm_line(const void *state, char *line, size_t size);

/* ---- slurm_verbs.c ---- */

/* Read from the environment the batch job and the node of this process. */
void slurm_home(struct home *out, const struct environment *env);
void slurm_relay(struct relay_setup *out, const struct environment *env);
tp_status slurm_verb_submit(char *id, size_t size, const struct backend_call *call,
                            const json_t *run_record, struct tp_err *err);
tp_status slurm_verb_cancel_next(char *text, size_t size, const struct backend_call *call,
                                 const json_t *run_record, struct tp_err *err);
tp_status slurm_verb_run_at(char **output, const struct home *home, char *const *argv,
                            const struct backend_call *call, struct arena *arena,
                            struct tp_err *err);

#endif
