/*
 * orchestrator/state/run_record.h - all that tp-run must remember when it is killed: the book.
 *
 * Every journal record carries the book as it is after the edge, so a tp-run that takes over reads
 * one record. Times are CLOCK_MONOTONIC seconds (of this boot): setting the clock changes nothing.
 * After a reboot they lie in the future and are forgotten.
 */
#ifndef ORCHESTRATOR_STATE_RUN_RECORD_H
#define ORCHESTRATOR_STATE_RUN_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/spec.h"
#include "orchestrator/job/job.h"
#include "orchestrator/job/run_config.h"

/* Where the job is; every change is a journal record before the action it stands for. */
enum run_state {
    RUN_PLAN,     /* choosing layout and checkpoint; waiting for nodes or for a back-off */
    RUN_RESHARD,  /* the job's prepare command is at work */
    RUN_LAUNCH,   /* starting the command */
    RUN_INIT,     /* started, not every rank has done a step */
    RUN_TRAIN,    /* every rank has */
    RUN_SAVE,     /* ranks wait for a save */
    RUN_DRAIN,    /* ending the attempt */
    RUN_DIAGNOSE, /* it has ended: why, and what now */
    RUN_DONE,     /* final: all steps are done */
    RUN_STOPPED,  /* final for this tp-run: saved and stopped, goes on when started again */
    RUN_FAILED,   /* final: given up, with the reason */
    RUN_STATES,
};

enum {
    RUN_RECORD_RESTARTS_MAX = 1024,
    RUN_RECORD_BAD_MAX = 64,
    RUN_RECORD_MEASURED_MAX = 64,
    RUN_RECORD_TEXT_MAX = 512,
    RUN_ID_TEXT = 17,
};

/* What time was spent on. */
enum time_cause {
    TIME_TRAINING,
    TIME_SAVING,
    TIME_LOST,      /* steps that have to be done again */
    TIME_DETECTING, /* from the last sign of life to the verdict */
    TIME_PLANNING,
    TIME_RESHARDING,
    TIME_STARTING,
    TIME_WAITING,  /* for nodes, or backing off */
    TIME_STOPPING, /* the last step and save of an attempt that was asked to stop */
    TIME_CAUSES,
};

struct run_node {
    bool down;          /* lost, or taken away */
    int64_t blame;      /* faults of its ranks since it was last excluded */
    double excluded_to; /* until then, 0: is not */
    double back_since;  /* when it came back, 0: was never away */
    /* not remembered, for they are Slurm's to say: */
    bool left;    /* it was taken out of the allocation */
    bool suspect; /* it is down, does not answer or is drained */
};

struct run_record {
    char run_id[RUN_ID_TEXT];
    enum run_state state;
    int64_t attempt, epoch;
    struct run_config way; /* of the attempt */
    bool open;             /* processes of the attempt may be alive */
    int64_t keeper, keeper_start;
    int64_t best_step;      /* highest step that any attempt trained to */
    int64_t best_at_launch; /* the same when the attempt began */
    int64_t resumed_at;     /* the step that it began from */
    int64_t saved;          /* newest step known to be committed, -1: none */
    int64_t fails_in_row;   /* without a new step */
    int64_t steps;          /* done: the job's steps then; 0: not done, or not known */
    int64_t nan_step;       /* where a loss was not finite, -1 */
    bool loss_known, stop, new_layout;
    bool reports; /* a rank has had a progress slot, in this attempt or an earlier one */
    char resize[SPEC_TEXT_MAX];       /* asked for: a spec or a number of ranks; "" none */
    char reason[RUN_RECORD_TEXT_MAX]; /* of the last fault, or of the end */
    int n_restarts;
    double restarts[RUN_RECORD_RESTARTS_MAX];
    int n_bad;
    struct {
        int64_t step, fails;
    } bad[RUN_RECORD_BAD_MAX]; /* checkpoints that did not load or verify */
    int n_measured;
    struct {
        char way[RUN_CONFIG_TEXT_MAX];
        double seconds;
    } measured[RUN_RECORD_MEASURED_MAX]; /* median step time of a way to run it */
    double spent[TIME_CAUSES];           /* seconds */
    double fault_at;                     /* of the fault that is being recovered from, 0: none */
    double read_rate, load_rate, convert_rate; /* bytes a second, see convert.h; 0: not known */
    double restart_seconds; /* median cost of the restarts so far, 0: not known */
    int64_t slurm_job;      /* the allocation, asked for or held; 0: none */
    int64_t slurm_next;     /* the batch job that goes on after this one, 0: none */
    int64_t slurm_link;     /* the newest allocation that was held */
    int64_t slurm_restarts; /* how often Slurm had requeued it then */
    int64_t link_saved;     /* progress when it was first held: as run_slurm counts it */
    int64_t idle_links;     /* allocations in a row without progress */
    bool slurm_own;         /* tp-run asked for slurm_job, and gives it back */
    bool chained;           /* stopped because the wall time ended; slurm_next goes on */
    int n_nodes;
    struct run_node *nodes; /* as in the job; malloc'ed */
};

/* A new book for the job. */
tp_status run_record_init(struct run_record *b, const struct job *job, struct tp_err *err);

/* Read what run_record_json wrote. Nodes are matched by name; times after `now` are forgotten. */
tp_status run_record_read(struct run_record *b, const json_t *json, const struct job *job,
                          double now, struct tp_err *err);
void run_record_free(struct run_record *b);

/* NULL: no memory. */
json_t *run_record_json(const struct run_record *b, const struct job *job);

const char *run_state_name(enum run_state s);
const char *time_cause_name(enum time_cause c);

/* Share of all time so far that trained steps which were kept. 0 .. 1. */
double run_record_goodput(const struct run_record *b);

#endif
