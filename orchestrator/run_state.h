/*
 * orchestrator/run_state.h - inside of orchestrator/run: the state that its files share.
 *
 *     run.c         the epoll loop, beginning and end
 *     run_transition.c    the edges: record, event, final word
 *     run_plan.c    PLAN: nodes, layout, checkpoint
 *     run_reshard.c RESHARD: a conversion, the prepare command
 *     run_launch.c  LAUNCH, and taking over
 *     run_watch.c   INIT, TRAIN, SAVE: slots, verdicts
 *     run_beats.c   the beats of relays
 *     run_scale.c   scaling up
 *     run_drain.c   DRAIN: ending an attempt
 *     run_end.c     DIAGNOSE: what ended it, and what comes next
 *     run_status.c  what `status` and the page show
 *     run_control.c requests from other terminals
 *     run_slurm.h   backend slurm: the allocation
 */
#ifndef ORCHESTRATOR_RUN_STATE_H
#define ORCHESTRATOR_RUN_STATE_H

#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "orchestrator/plan/candidates.h"
#include "orchestrator/plan/checkpoint_selection.h"
#include "orchestrator/process/supervisor.h"
#include "orchestrator/run.h"
#include "orchestrator/state/events.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/state/run_record.h"
#include "orchestrator/state/time_account.h"
#include "orchestrator/watch/monitor.h"
#include "orchestrator/web/control.h"
#include "orchestrator/web/status_page.h"
#include "orchestrator/web/webhook.h"

enum run_fault_kind {
    FAULT_NONE,
    FAULT_RANK,    /* a rank ended that should not have */
    FAULT_HANG,    /* no progress */
    FAULT_NAN,     /* the loss */
    FAULT_NODE,    /* a node was lost */
    FAULT_EXIT,    /* the command ended with an error of its own */
    FAULT_LOST,    /* the keeper is gone and left no word */
    FAULT_START,   /* the command cannot be executed */
    FAULT_RESHARD, /* the conversion before a launch failed */
};

struct run_fault {
    enum run_fault_kind kind;
    int rank; /* -1: not known */
    int node; /* -1 */
    int64_t step;
    double waited; /* seconds from the last sign of life */
    char reason[RUN_RECORD_TEXT_MAX];
};

/* A rank of the attempt under way, as tp-run sees it. */
struct run_rank {
    int node;
    int pidfd;      /* -1: not seen yet, or gone */
    double beat_at; /* slurm: when its relay's last beat came */
    pid_t pid;
    bool gone;
};

/* A child at work for tp-run itself; it dies with tp-run. */
enum run_helper_kind {
    HELPER_CHECK,   /* verifies a checkpoint */
    HELPER_CONVERT, /* tp-reshard */
    HELPER_PREPARE, /* the job's own command */
};

struct run_helper {
    pid_t pid; /* 0: none */
    enum run_helper_kind kind;
    double since;
};

struct run {
    const struct job *job;
    const char *self;
    const struct run_reporter *voice;
    struct arena arena; /* of the attempt; emptied at each launch */
    struct arena kept;  /* of the whole run */
    struct journal *journal;
    struct run_record book;
    struct events *events;
    struct time_account *ledger;
    struct control *control;
    struct status_page *page;
    struct webhook *webhook;
    struct run_slurm *slurm; /* NULL: another backend */
    int epoll, timer, signals;
    int beats, beats_port; /* slurm: where relays' beats arrive; -1 */

    /* the attempt */
    struct plan_candidate layout;       /* chosen, or of the attempt */
    struct checkpoint_selection choice; /* the checkpoint that it begins from */
    bool lived; /* the attempt reports nothing, and has outlived watch.init */
    bool is_verified;
    bool no_convert; /* a conversion for this launch failed */
    bool crosses;    /* the attempt reads a checkpoint of another layout as it is */
    int world;
    struct run_rank *ranks; /* malloc'ed */
    struct monitor *monitor;
    struct supervisor_outcome outcome;
    pid_t keeper;
    int keeper_pidfd; /* -1: none */
    char slots[PATH_MAX], log[PATH_MAX], exit_path[PATH_MAX];
    struct run_fault fault;
    struct run_helper helper;
    double drain_until; /* SIGKILL then; 0: no attempt is being ended */
    bool drain_killed;
    double stuck_since;          /* SIGKILL was sent and processes are left; 0: no */
    double wait_until;           /* back-off, 0: none */
    double launched_at;          /* seconds */
    double saved_at;             /* when the newest checkpoint was begun, as far as is known */
    double saving_since;         /* when the save under way began */
    struct run_config stays_for; /* a better layout that was found not to be worth a restart */
    double next_scale_look;      /* when to look again whether scaling up is worth it */
    double line_at;              /* when the live line was last shown */
    double looked_at;            /* when the beats were last looked at */
    bool no_nodes_told;
    double busy_since, busy_told; /* the checkpoint root: held by another; when that was said */
    bool journal_failed;          /* the last record could not be written */
    tp_status asked;              /* a failure of tp-run itself during a request */
    bool over;                    /* a final state */
    tp_status result;             /* then */
    char result_text[TP_ERR_MAX];
    struct tp_err err; /* of what is going on now */
};

/* ---- run_transition.c ---- */
double run_now(void);
/* Go to a state: the journal record, then return; st is that of the journal. */
tp_status run_transition(struct run *r, enum run_state to, const char *what);
/* An event; fmt is a json_pack object format with what belongs to it, "" for none. */
void run_event(struct run *r, const char *event, json_t *more);
void run_finish(struct run *r, enum run_state final, tp_status result, const char *text);

/* ---- run.c ---- */
/* Wake the loop when fd can be read; -1: it cannot be watched. */
int run_watch_fd(struct run *r, int fd);

/* ---- run_plan.c ---- */
tp_status run_plan_begin(struct run *r);
tp_status run_plan_tick(struct run *r);
tp_status run_bad_checkpoint(struct run *r, const struct checkpoint_selection *c, const char *why);
int run_free_ranks(const struct run *r, bool settled_only);
bool run_node_usable(const struct run *r, int node, bool settled_only);
tp_status run_choose(struct run *r, struct plan_candidate *out, bool settled_only,
                     struct tp_err *err);
/* The same with so many ranks. */
tp_status run_choose_of(const struct run *r, struct plan_candidate *out, int ranks,
                        struct tp_err *err);

/* ---- run_reshard.c ---- */
tp_status run_verify_checkpoint(struct run *r);
/* Layout and checkpoint are chosen: convert if need be, prepare, launch. */
tp_status run_reshard_begin(struct run *r);
tp_status run_helper_done(struct run *r, int exit_code);
void run_helper_stop(const struct run *r);

/* ---- run_launch.c ---- */
tp_status run_launch(struct run *r);
tp_status run_take_over(struct run *r);
void run_attempt_id(const struct run *r, char buf[64]);
pid_t run_spawn(struct run *r, char *const *argv, const char *log, bool keeper);

/* ---- run_watch.c ---- */
tp_status run_watch_tick(struct run *r);
tp_status run_rank_gone(struct run *r, int rank);
/* What the slots say after the end. */
void run_watch_last(struct run *r);

/* ---- run_beats.c ---- */
/* Where beats stop the node is gone or cut off; where the last one says so, a rank has failed. */
tp_status run_beats_check(struct run *r);
/* Instead, while Slurm has suspended the job: nobody is to blame for standing still. */
void run_beats_stand_by(struct run *r);

/* ---- run_scale.c ---- */
/* Nodes have come back, or a node's exclusion is over: is a larger layout worth a restart? With a
 * list of layouts the earlier one is what the job wants. Else the time that the rest of the run
 * takes at each must differ by `restart.worth` times what restarts cost here. */
tp_status run_scale_consider(struct run *r);
/* Whether with so many ranks there is a larger layout that is worth a restart. */
bool run_scale_pays(const struct run *r, int ranks);

/* ---- run_drain.c ---- */
/* Ask the attempt to save and end. */
tp_status run_drain_softly(struct run *r, const char *why);
/* End it at once because of r->fault. */
tp_status run_drain_fault(struct run *r, const struct run_fault *f);
tp_status run_drain_tick(struct run *r);

/* ---- run_end.c ---- */
/* The keeper has ended: clear up what is left, find out why, decide. */
tp_status run_keeper_gone(struct run *r);
void run_forget_attempt(struct run *r);
/* r->fault kept a launch from training: once more, after a back-off, while the budgets allow. */
tp_status run_retry(struct run *r);

/* ---- run_control.c, run_status.c ---- */
json_t *run_answer(void *ctx, const json_t *request);
json_t *run_status(const struct run *r);
json_t *run_timeline(const struct run *r);
void run_live_line(struct run *r);

#endif
