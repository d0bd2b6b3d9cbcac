/*
 * orchestrator/backend/slurm/slurm_run.h - inside of the Slurm backend: its state during a run.
 *
 * Nothing here waits, except where it is said: Slurm's programs run as children while tp-run's loop
 * continues, and each answer leads to the next action. The members of each struct are changed only
 * by the file that is named with it; other files call its functions.
 */
#ifndef ORCHESTRATOR_BACKEND_SLURM_SLURM_RUN_H
#define ORCHESTRATOR_BACKEND_SLURM_SLURM_RUN_H

#include <limits.h>

#include "orchestrator/backend/backend.h"
#include "orchestrator/backend/slurm/slurm_codes.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/child.h"

#define SLURM_SALLOC_ENV "TP_SALLOC_ID" /* in salloc: the run that it belongs to */

/* What Slurm's programs are run for; at most one of each at a time. */
enum slurm_command {
    SLURM_COMMAND_VIEW,    /* squeue: the allocation */
    SLURM_COMMAND_HOSTS,   /* scontrol: the names of its nodes */
    SLURM_COMMAND_STATES,  /* sinfo: their states */
    SLURM_COMMAND_ALLOC,   /* salloc, which may wait in the queue for days */
    SLURM_COMMAND_FIND,    /* squeue: is the next batch job submitted already? */
    SLURM_COMMAND_SUBMIT,  /* sbatch of the next batch job */
    SLURM_COMMAND_PROBE,   /* srun: does a node start processes again? */
    SLURM_COMMAND_IDLE,    /* sinfo: idle nodes */
    SLURM_COMMAND_GROW,    /* salloc of nodes that shall join the allocation */
    SLURM_COMMAND_JOIN,    /* scontrol: they join it */
    SLURM_COMMAND_STANDBY, /* srun: tp-run's standby on another node */
    SLURM_COMMAND_CANCEL,  /* scancel of an allocation that is given back */
    SLURM_COMMAND_DRAIN,   /* scontrol: a node is drained */
    SLURM_COMMANDS,
};

enum slurm_stage {
    SLURM_STAGE_NONE,  /* there is no allocation */
    SLURM_STAGE_ASKED, /* one was requested, or is remembered and was not looked at yet */
    SLURM_STAGE_HELD,  /* it runs and its nodes are known */
};

/* slurm_allocation.c */
struct slurm_allocation {
    enum slurm_stage stage;
    long job;        /* requested or held, 0: none */
    bool own;        /* tp-run has requested it, and gives it back */
    bool remembered; /* by an earlier tp-run: its end says nothing about this run */
    int64_t wanted;  /* nodes that it should have */
    char *view_text; /* malloc'ed; `view` points into it. NULL: it was not seen yet */
    struct slurm_view view;
    double seen_at;   /* when view was read */
    double asked_at;  /* when squeue was asked last */
    long asked_about; /* the job that it was asked about */
    double next_look, next_request;
    char *list;      /* the nodes as Slurm wrote them last; malloc'ed, NULL: none */
    bool runs;       /* as of view */
    bool must_look;  /* it may be over: look at it before it is used again */
    bool no_answer;  /* Slurm does not answer, and that was reported */
    char over[32];   /* state in which the last one ended, "" */
    bool never_held; /* the last one ended before it was given */
};

/* slurm_ending.c */
struct slurm_ending {
    bool ending; /* the attempt ends because the allocation does */
    struct backend_cause cause;
    double margin;  /* seconds before the end of the wall time; at most half of what there was */
    bool preempted; /* Slurm says so */
    bool requeued;  /* the batch job begins again under its number */
    bool waits;     /* preempted without chain: it continues only if Slurm requeues it */
};

/* slurm_next.c */
struct slurm_next {
    long job; /* the batch job that continues after this one, 0: none */
    double next_try;
    char why[200]; /* why none could be submitted, "" */
    /* the newest allocation that was held: */
    long held;
    int64_t restarts; /* how often it was requeued then */
    int64_t progress; /* of the job, when it was first held */
    int64_t idle;     /* allocations in a row without progress */
};

/* slurm_growth.c */
struct slurm_growth {
    long job;     /* the Slurm job that brings more nodes, 0: none */
    bool dropped; /* its salloc was told to end */
    double next_try;
};

/* slurm_pause.c */
struct slurm_pause {
    double since;     /* when the suspension was seen, 0: not suspended */
    double ticked_at; /* the last tick */
    double silent_since,
        silence_asked_at; /* a silence that may be a suspension: first and last asked about */
    double ask_at;        /* when to repeat the request to save and stop */
    int asks;             /* how often */
};

/* slurm_nodes.c */
struct slurm_nodes {
    struct node *probed;
    double next_probe, next_standby;
    char drained[64]; /* node that COMMAND_DRAIN is about */
};

struct slurm {
    const struct backend_host *host;
    const struct slurm_options *options;
    struct environment env; /* for Slurm's programs */
    struct slurm_client client;
    long inside;           /* the batch job around tp-run, 0: none */
    const char *this_node; /* its node there, "" */
    struct child command[SLURM_COMMANDS];
    struct slurm_allocation allocation;
    struct slurm_ending ending;
    struct slurm_next next;
    struct slurm_growth growth;
    struct slurm_pause pause;
    struct slurm_nodes nodes;
};

/* ---- slurm.c ---- */

/* Start a command; does nothing when it runs already. patience_s: killed then, 0: never. */
tp_status slurm_start(struct slurm *s, enum slurm_command what, const struct job_words *words,
                      double patience_s);
bool slurm_is_running(const struct slurm *s, enum slurm_command what);
/* What salloc (ALLOC, GROW) has printed so far, in the arena. Its file is `path`. */
char *slurm_salloc_text(const struct slurm *s, enum slurm_command what, struct arena *arena);
void slurm_salloc_log(const struct slurm *s, enum slurm_command what, char path[PATH_MAX]);
/* An event `allocation`. */
void slurm_event(struct slurm *s, enum slurm_result result, enum slurm_reason reason,
                 const char *message);
struct backend_cause slurm_cause(enum slurm_reason reason, const char *message);
/* End the run. */
void slurm_finish(struct slurm *s, enum run_state state, tp_status result, enum slurm_reason reason,
                  const char *message);

/* ---- slurm_allocation.c ---- */

/* Read what is remembered. is_old: from the run record of an earlier version. */
void slurm_allocation_read(struct slurm *s, const json_t *json, bool is_old);
/* Which allocation there is when tp-run begins. */
void slurm_allocation_begin(struct slurm *s);
tp_status slurm_allocation_tick(struct slurm *s);
tp_status slurm_ready(void *state, bool *ready);
/* Look at it soon; first: before it is used again. */
void slurm_look(void *state, bool first);
/* Seconds until it ends, -1: no limit. */
double slurm_left(const struct slurm *s);
/* Slurm could not be asked: reported once, until it answers again. */
void slurm_report_no_answer(struct slurm *s, const char *said);
/* Give it back and request another one. */
tp_status slurm_renew(struct slurm *s, const struct backend_cause *cause);
/* End salloc, waiting for it: at the end of tp-run. */
void slurm_end_request(struct slurm *s);
/* Commands have ended. */
tp_status slurm_viewed(struct slurm *s, int exit_code);
tp_status slurm_named(struct slurm *s, int exit_code);
tp_status slurm_saw_states(struct slurm *s, int exit_code);
tp_status slurm_requested(struct slurm *s, int exit_code);

/* ---- slurm_nodes.c ---- */

/* Before the run record is read: the nodes that it names. */
tp_status slurm_nodes_restore(struct slurm *s, const json_t *run_record);
/* Names, a line each, in Slurm's order, are the allocation's nodes now. fresh: the allocation is
 * new, so faults of its nodes are forgotten. */
tp_status slurm_nodes_set(struct slurm *s, const char *names, bool fresh);
/* sinfo's lines NODE|STATE. */
tp_status slurm_nodes_see(struct slurm *s, const char *text);
tp_status slurm_nodes_tick(struct slurm *s);
tp_status slurm_probed(struct slurm *s, int exit_code);
/* The nodes that a request has to exclude, with commas. In the arena. */
const char *slurm_nodes_excluded(const struct slurm *s, struct arena *arena);
/* The nodes that it has lost. */
int64_t slurm_nodes_missing(const struct slurm *s);
void slurm_node_excluded(void *state, const struct node *node, const char *message);
void slurm_node_drained(struct slurm *s, int exit_code);

/* ---- slurm_pause.c ---- */

bool slurm_is_paused(const void *state);
bool slurm_explains_silence(void *state);
/* The view is new: note whether the job is suspended. */
void slurm_pause_see(struct slurm *s);
/* The allocation is gone. */
void slurm_pause_forget(struct slurm *s);
/* At each tick: what waits for the ranks waits longer while they are suspended. */
void slurm_pause_tick(struct slurm *s);

/* ---- slurm_ending.c ---- */

bool slurm_is_ending(const void *state, struct backend_cause *cause);
enum backend_allocation slurm_after_save(void *state,
                                         struct backend_cause *cause); /* waits for squeue */
bool slurm_explains_sigterm(void *state, struct backend_cause *cause); /* the same */
tp_status slurm_hand_over(void *state, const struct backend_cause *cause, bool *plan);
/* A new allocation is held. */
void slurm_ending_begin(struct slurm *s);
void slurm_ending_forget(struct slurm *s);
tp_status slurm_ending_tick(struct slurm *s);
/* Stop because of this cause, and continue afterwards. */
tp_status slurm_end_for(struct slurm *s, const struct backend_cause *cause);

/* ---- slurm_next.c ---- */

/* The batch job that continues: submit it in time; now, waiting for it; is it still there? */
tp_status slurm_next_tick(struct slurm *s);
tp_status slurm_next_submit_now(struct slurm *s);
void slurm_next_check(struct slurm *s);
void slurm_next_set(struct slurm *s, long job);
tp_status slurm_next_found(struct slurm *s, int exit_code);
tp_status slurm_next_submitted(struct slurm *s, int exit_code);
/* Whether the allocation was not held before. */
bool slurm_next_is_fresh(const struct slurm *s);
/* A new allocation is held: count those without progress. */
tp_status slurm_next_count(struct slurm *s);
void slurm_next_forgive(struct slurm *s);
/* Read what is remembered. is_old: from the run record of an earlier version. */
void slurm_next_read(struct slurm *s, const json_t *json, bool is_old);

/* ---- slurm_growth.c ---- */

tp_status slurm_growth_tick(struct slurm *s);
/* Cancel what was requested to join the allocation, waiting for that. */
void slurm_growth_drop(struct slurm *s);
/* The same; another allocation may be asked again. */
void slurm_growth_forget(struct slurm *s);
/* GROW, JOIN or IDLE has ended. */
tp_status slurm_grown(struct slurm *s, enum slurm_command what, int exit_code);

/* ---- slurm_standby.c ---- */

/* In a batch job: start a standby on another node, if there is none. */
tp_status slurm_standby_tick(struct slurm *s);
tp_status slurm_standby(bool *take_over, const struct backend_call *call, struct tp_err *err);
void slurm_standby_env(struct environment *env);
void slurm_standby_end(const struct backend_call *call);

/* ---- slurm_verbs.c ---- */

/* What the environment says: the batch job around this process and its node. */
void slurm_home(struct home *out, const struct environment *env);
void slurm_relay(struct relay_setup *out, const struct environment *env);
tp_status slurm_verb_submit(char *id, size_t size, const struct backend_call *call,
                            struct tp_err *err);
tp_status slurm_verb_cancel_next(char *text, size_t size, const struct backend_call *call,
                                 const json_t *run_record, struct tp_err *err);
tp_status slurm_verb_run_at(char **output, const struct home *home, char *const *argv,
                            const struct backend_call *call, struct arena *arena,
                            struct tp_err *err);

#endif
