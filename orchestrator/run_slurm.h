/*
 * orchestrator/run_slurm.h - inside of orchestrator/run: what it does with backend slurm.
 *
 *     run_slurm.c        beginning and end, chores, what is looked at while it lasts
 *     run_slurm_alloc.c  the allocation: found, asked for, looked at every slurm.poll, given back
 *     run_slurm_nodes.c  its nodes: lost, back, drained
 *     run_slurm_pause.c  suspended and resumed
 *     run_slurm_taken.c  preempted, requeued
 *     run_slurm_next.c   its end: saving in time, the next one; more nodes for this one
 *
 * Nothing here waits: Slurm's programs run as children (chores) while the loop goes on, and every
 * answer moves things on. All functions are for runs with backend slurm only, but for those that
 * say otherwise.
 */
#ifndef ORCHESTRATOR_RUN_SLURM_H
#define ORCHESTRATOR_RUN_SLURM_H

#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/process/child.h"
#include "orchestrator/run_state.h"

#define RUN_SLURM_ENV "TP_SALLOC_ID" /* in salloc: of which run */

enum slurm_stage {
    SLURM_NONE,  /* no allocation */
    SLURM_ASKED, /* one is asked for, or remembered and not looked at yet */
    SLURM_HELD,  /* it runs and its nodes are known */
};

enum slurm_chore {
    CHORE_VIEW,   /* squeue: the allocation */
    CHORE_HOSTS,  /* scontrol: its nodes' names */
    CHORE_STATES, /* sinfo: their states */
    CHORE_ALLOC,  /* salloc, which may wait in the queue for days */
    CHORE_FIND,   /* squeue: is the next batch job submitted already? */
    CHORE_SUBMIT, /* sbatch of it */
    CHORE_PROBE,  /* srun: does a node start processes again? */
    CHORE_IDLE,   /* sinfo: idle nodes */
    CHORE_GROW,   /* salloc of nodes that shall join the allocation */
    CHORE_JOIN,   /* scontrol: they join */
    CHORE_GUARD,  /* srun: tp-run's stand-by on another node of the batch job */
    CHORE_CANCEL, /* scancel of what is not needed any more */
    CHORE_DRAIN,  /* scontrol: a node is drained */
    CHORES,
};

struct run_slurm {
    struct job *job; /* the run's; its nodes are set here */
    enum slurm_stage stage;
    long inside; /* the batch job around tp-run, 0: none */
    struct child chore[CHORES];
    char *view_text; /* what `view` points into; malloc'ed */
    struct slurm_view view;
    char *list;                  /* the nodes as Slurm last wrote them, malloc'ed; NULL: none */
    int64_t wanted;              /* nodes that the allocation should have */
    double seen_at;              /* when view was read */
    double margin;               /* before the end; not more than half of what there was */
    double next_look;            /* at the allocation */
    double asked_at;             /* when the look under way, or the last one, began */
    double ticked_at;            /* the last tick */
    double paused_at;            /* when Slurm's suspension was seen, 0: it is not suspended */
    double ask_again;            /* to save and stop, after a pause; 0: not */
    int asks;                    /* left */
    double doubt_at, doubted_at; /* silence that may be one: first and last asked about */
    double next_request, next_submit, next_probe, next_grow, next_guard; /* not before */
    int probed;                                                          /* node under probe */
    long grow_id;      /* the Slurm job that brings more nodes, 0: none */
    bool runs;         /* as of view; a job that was cancelled has no end to save before */
    bool must_look;    /* the allocation may be over: look before it is used again */
    bool ending;       /* the job saves because the allocation is to end */
    const char *why;   /* then */
    bool preempted;    /* Slurm says so */
    bool requeued;     /* the batch job begins anew under its number */
    bool waits;        /* it is preempted, and without chain only Slurm's requeueing goes on */
    int64_t looked_at; /* the Slurm job that the chores under way are about */
    bool grow_dropped; /* the salloc of CHORE_GROW was told to end */
    bool remembered;   /* the allocation is an earlier tp-run's: its end says nothing about ours */
    bool never_held;   /* the last one ended before it was given */
    bool away_told;
    char over[32];        /* how the last allocation ended, "" */
    char drained[64];     /* node that CHORE_DRAIN is about */
    char submit_why[200]; /* why no next job could be submitted */
};

/* ---- run_slurm.c ---- */
tp_status run_slurm_open(struct run *r, struct job *job, const json_t *last);
/* With the book read: which allocation there is. */
void run_slurm_begin(struct run *r);
tp_status run_slurm_tick(struct run *r);
/* Any backend: a child was reaped. *mine: it was one of these. */
tp_status run_slurm_reaped(struct run *r, pid_t pid, int status, bool *mine);
/* Any backend. The run is over or this tp-run ends: give back what is not needed. */
void run_slurm_close(struct run *r);
/* For status: about the allocation. */
json_t *run_slurm_json(const struct run *r);
void run_slurm_line(const struct run *r, char *line, size_t size);

/* Start a chore; nothing when it is at work already. */
tp_status run_slurm_start(struct run *r, enum slurm_chore what, const struct job_words *words,
                          double patience_s);
/* Cancel what was asked for to join the allocation, waiting for that. */
void run_slurm_drop_growth(struct run *r);
/* What the salloc of CHORE_ALLOC or CHORE_GROW has said so far, in the arena. */
char *run_slurm_alloc_text(const struct run *r, enum slurm_chore what, struct arena *arena);
bool run_slurm_busy(const struct run *r, enum slurm_chore what);
void run_slurm_event(struct run *r, const char *result, const char *reason);
/* Seconds until the allocation ends, -1: no limit. */
double run_slurm_left(const struct run *r);

/* The file that the salloc of CHORE_ALLOC or CHORE_GROW writes to. */
void run_slurm_alloc_log(const struct run *r, enum slurm_chore what, char path[PATH_MAX]);

/* ---- run_slurm_alloc.c ---- */
/* PLAN: *ready when there are nodes to plan for; else it was set going, or the run is over. */
tp_status run_slurm_ready(struct run *r, bool *ready);
/* Slurm could not be asked: said once, until it answers again. */
void run_slurm_tell_away(struct run *r, const char *said);
/* Give the allocation back and ask for another one. */
tp_status run_slurm_renew(struct run *r, const char *why);
/* Ask squeue; salloc's file; salloc to end: at the end of tp-run. */
tp_status run_slurm_ask_view(struct run *r);
tp_status run_slurm_read_request(struct run *r);
void run_slurm_end_request(struct run *r);
/* Chores are done. */
tp_status run_slurm_viewed(struct run *r, int exit_code);
tp_status run_slurm_named(struct run *r, int exit_code);
tp_status run_slurm_requested(struct run *r, int exit_code);

/* ---- run_slurm_nodes.c ---- */
tp_status run_slurm_restore_nodes(struct run *r, const json_t *last);
/* Names, a line each, in Slurm's order, are the allocation's nodes now. fresh: all of them are as
 * new, whatever was held against them. */
tp_status run_slurm_set_nodes(struct run *r, const char *names, bool fresh);
tp_status run_slurm_see_states(struct run *r, const char *text);
tp_status run_slurm_post_guard(struct run *r);
tp_status run_slurm_probe(struct run *r);
tp_status run_slurm_probed(struct run *r, int exit_code);
void run_slurm_free_nodes(struct run *r);
const char *run_slurm_excluded(const struct run *r, struct arena *arena);
/* Any backend: a node is lost, and the attempt with it if it has ranks there. */
tp_status run_node_lost(struct run *r, int node, const char *reason, double waited);
void run_slurm_drain(struct run *r, int node, const char *reason);

/* ---- run_slurm_pause.c ---- */
/* The state that Slurm told: note whether the job is suspended. */
void run_slurm_see_pause(struct run *r);
void run_slurm_end_pause(struct run *r, const char *how);
/* At each tick: what waits for the job waits longer; a tp-run that was suspended with it says so.
 */
void run_slurm_stretch(struct run *r);
/* Any backend: it is suspended. */
bool run_slurm_is_paused(const struct run *r);
/* Any backend. All ranks are silent; true: that is not to be held against anybody now, because the
 * job is suspended, or because Slurm is yet to say whether it is. Call again at the next look. */
bool run_slurm_excuses(struct run *r);
void run_slurm_look_now(struct run *r);

/* ---- run_slurm_taken.c ---- */
enum slurm_fate {
    SLURM_STAYS, /* as far as Slurm says */
    SLURM_TAKEN, /* its wall time ends, or it is preempted or requeued: nobody's wish that it stop
                  */
    SLURM_GONE,  /* it is over, or cancelled */
};
/* Any backend. Somebody sent a signal, or the ranks have saved and ended unasked: what has Slurm in
 * mind for the allocation? Asks, waiting; STAYS when there is no answer. */
enum slurm_fate run_slurm_fate(struct run *r);
/* Ask Slurm to requeue the batch job around tp-run, waiting. false: it does not. */
bool run_slurm_requeue(struct run *r);
/* The attempt has ended for that. *done: Slurm itself goes on with the batch job, or may. */
tp_status run_slurm_leave_to_slurm(struct run *r, bool *done);
/* At each look: Slurm takes the nodes away. */
tp_status run_slurm_see_taken(struct run *r);

/* ---- run_slurm_next.c ---- */
tp_status run_slurm_watch_end(struct run *r);
tp_status run_slurm_found_next(struct run *r, int exit_code);
tp_status run_slurm_submitted_next(struct run *r, int exit_code);
tp_status run_slurm_grow(struct run *r);
tp_status run_slurm_grown(struct run *r, enum slurm_chore what, int exit_code);
/* Any backend: the attempt ended because the allocation does. */
bool run_slurm_is_ending(const struct run *r);
/* Then: go on in the next allocation, or leave it to the next batch job. */
tp_status run_slurm_hand_over(struct run *r, const char *why);
/* A new allocation is held: count those that brought nothing. */
tp_status run_slurm_new_link(struct run *r);

#endif
