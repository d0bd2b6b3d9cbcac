/*
 * orchestrator/state/run_record.h - all that tp-run must remember when it is killed.
 *
 * Every record of the journal has the whole run record after a transition, so a tp-run that takes
 * over reads one record. The journal record also has the nodes (node.h) and the backend's state.
 * Times are clock_seconds of this boot, so they do not depend on the wall clock. After a reboot
 * they are in the future, and are forgotten.
 */
#ifndef ORCHESTRATOR_STATE_RUN_RECORD_H
#define ORCHESTRATOR_STATE_RUN_RECORD_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "orchestrator/job/run_config.h"
#include "orchestrator/state/job_findings.h"
#include "orchestrator/state/time_account.h"

/* The state of the job. Each transition is recorded before its action. */
enum run_state {
    RUN_PLAN,     /* chooses layout and checkpoint; waits for nodes or for a back-off */
    RUN_RESHARD,  /* converts a checkpoint, or runs the job's prepare command */
    RUN_LAUNCH,   /* starts the command */
    RUN_INIT,     /* started; not every rank has done a step */
    RUN_TRAIN,    /* every rank has done a step */
    RUN_SAVE,     /* ranks wait for a save */
    RUN_DRAIN,    /* ends the attempt */
    RUN_DIAGNOSE, /* the attempt has ended: finds out why, and decides what follows */
    RUN_DONE,     /* final: all steps are done */
    RUN_STOPPED,  /* final for this tp-run: a later one continues */
    RUN_FAILED,   /* final: tp-run has given up */
    RUN_STATES,
};

enum {
    RUN_RECORD_RESTARTS_MAX = 1024,
    RUN_RECORD_BAD_MAX = 64,
    RUN_RECORD_TEXT_MAX = 512,
    RUN_RECORD_CODE_MAX = 64,
    RUN_RECORD_PATH_MAX = 4096,
    RUN_ID_TEXT = 17,
};

struct run_record {
    char run_id[RUN_ID_TEXT];
    enum run_state state;
    int64_t attempt, epoch;
    struct run_config config; /* of the attempt */
    bool open;                /* processes of the attempt may be alive */
    int64_t supervisor, supervisor_start;
    char heartbeats[RUN_RECORD_PATH_MAX];   /* the folder of its heartbeats, "": none */
    int64_t heartbeats_dev, heartbeats_ino; /* which folder that is; 0: not made yet */
    int64_t best_step;      /* highest step that any attempt has reached, -1: none */
    int64_t best_at_launch; /* the same when the attempt began */
    int64_t resumed_at;     /* step that the attempt began from, -1: the beginning */
    int64_t saved;          /* newest step known to be committed, -1: none */
    int64_t fails_in_row;   /* starts in a row without progress */
    int64_t fault_step;     /* step at which the last fault ended an attempt, -1: before a step */
    int64_t done_steps;     /* the job's steps when all were done, 0: not done, or not known */
    int64_t bad_loss_step;  /* where a loss was not finite, -1: nowhere */
    bool loss_known;        /* a finite loss was reported */
    bool reports;           /* a rank has had a heartbeat, in any attempt */
    bool stop;              /* asked to stop for good */
    bool relaunch;          /* the attempt ends so that another one can begin */
    bool continues;         /* stopped, and another job of the scheduler continues */
    char resize[SPEC_TEXT_MAX];       /* asked for: a spec or a number of ranks, "": neither */
    char reason[RUN_RECORD_CODE_MAX]; /* code of the reason for the end, "" */
    char message[RUN_RECORD_TEXT_MAX];
    int n_restarts;
    double restarts[RUN_RECORD_RESTARTS_MAX];
    int n_bad;
    struct {
        int64_t step, fails;
    } bad[RUN_RECORD_BAD_MAX]; /* checkpoints that did not verify or load */
    struct job_findings findings;
    double spent[TIME_CAUSES]; /* seconds */
    double fault_at;           /* time of the fault being recovered from, 0: none */
    /* the last fault that led to a restart, for people: */
    char fault_reason[RUN_RECORD_CODE_MAX], fault[RUN_RECORD_TEXT_MAX]; /* its code, sentence; "" */
    double fault_wall;    /* when, in seconds since 1970 */
    double fault_seconds; /* until every rank trained again; 0: not yet */
    int64_t fault_steps;  /* steps that had to be repeated */
    double read_rate, load_rate,
        convert_rate;       /* bytes per second, see conversion.h; 0: not known */
    double restart_seconds; /* what a restart costs here, 0: not known */
};

/* The record of a new run. TP_E_IO: no random numbers. */
tp_status run_record_init(struct run_record *r, struct tp_err *err);

/* Read what run_record_json wrote, also in an earlier version. `name` is used in messages.
 * TP_E_CORRUPT. */
tp_status run_record_read(struct run_record *r, const json_t *json, const char *name, double now,
                          struct tp_err *err);

/* NULL: no memory. */
json_t *run_record_json(const struct run_record *r);

const char *run_state_name(enum run_state s);
bool run_state_is_final(enum run_state s);

/* The share (0 .. 1) of the time so far that was spent on steps that were kept and on saves. */
double run_record_goodput(const struct run_record *r);

#endif
