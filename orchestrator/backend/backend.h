/*
 * orchestrator/backend/backend.h - where ranks run: a table of functions, one for each backend.
 *
 * A backend is a folder in orchestrator/backend/ with one `struct backend`, which
 * orchestrator/backends.c lists. It knows its nodes, starts the ranks of an attempt on them, and
 * reports what its scheduler does with them. The state machine makes the decisions about the job.
 * It offers the functions of struct backend_host to the backend.
 *
 * A function that a backend does not need is NULL; backend.c has the default. A function that
 * returns tp_status writes its message to host->err. A status other than TP_OK ends tp-run.
 */
#ifndef ORCHESTRATOR_BACKEND_BACKEND_H
#define ORCHESTRATOR_BACKEND_BACKEND_H

#include <jansson.h>
#include <stdbool.h>
#include <sys/types.h>

#include "core/arena.h"
#include "core/err.h"
#include "orchestrator/job/job_backend.h"
#include "orchestrator/process/environment.h"
#include "orchestrator/process/home.h"
#include "orchestrator/process/relay.h"
#include "orchestrator/state/event.h"
#include "orchestrator/state/node.h"
#include "orchestrator/state/run_record.h"

/* Why something happens: a code and its sentence. */
struct backend_cause {
    const char *reason, *message;
};

/* How a run ends. */
struct backend_end {
    enum run_state state; /* RUN_STOPPED or RUN_FAILED */
    tp_status result;
    struct backend_cause cause;
    bool continues; /* another job of the scheduler continues */
};

/* What the run offers to its backend. */
struct backend_host {
    void *run; /* first argument of each function */
    const struct job *job;
    const char *self;              /* path of tp-run */
    const struct environment *env; /* of tp-run */
    const struct run_record *record;
    struct node_list *nodes; /* for the backend to fill */
    struct tp_err *err;      /* gets the sentence of a failure */

    /* Report an event with codes of state/event.h or of the backend; "" as reason: none. Takes over
     * `more`, which may be NULL. */
    void (*event)(void *run, const char *event, const char *reason, const char *message,
                  json_t *more);
    /* Write a journal record; `what` is a text for people. */
    tp_status (*commit)(void *run, const char *what);
    /* Ask the attempt, if ranks run, to save and stop. */
    tp_status (*save_and_stop)(void *run, const struct backend_cause *cause);
    /* Remember that the attempt ends so that another one can begin, not because the job stops. */
    void (*relaunch)(void *run);
    void (*finish)(void *run, const struct backend_end *end);

    /* A node is lost. If the attempt has ranks there, it is lost too. */
    tp_status (*node_lost)(void *run, struct node *node, const struct backend_cause *cause);
    bool (*node_has_ranks)(const void *run, const struct node *node);
    /* Whether a rank on the node reports, so that the node is alive whatever the scheduler says. */
    bool (*node_reports)(const void *run, const struct node *node);
    int (*free_ranks)(const void *run);
    /* Whether this number of ranks allows a larger layout that is worth a restart. */
    bool (*larger_pays)(void *run, int ranks);

    /* The job is suspended: the time from `since` until resume counts as waiting. */
    void (*pause)(void *run, double since);
    void (*resume)(void *run);
    /* Extend all waits for the ranks by this time. */
    void (*extend)(void *run, double seconds);
    /* Repeat the request to save and stop, if one was made. */
    void (*ask_again)(void *run);
};

/* An attempt to launch. */
struct backend_launch {
    int world;
    struct node *const *node; /* of each rank, in blocks */
    const char *heartbeats;   /* folder of the attempt's heartbeats */
    struct arena *arena;      /* for the command's words */
};

/* What the scheduler does with the job's nodes. */
enum backend_allocation {
    BACKEND_ALLOCATION_STAYS, /* as far as is known, the job keeps them */
    BACKEND_ALLOCATION_TAKEN, /* they are taken away, and the job should continue on others */
    BACKEND_ALLOCATION_OVER,  /* the allocation has ended, or was cancelled */
};

/* What the end of an attempt's log says. */
struct backend_log {
    bool unreachable; /* the scheduler did not answer, so the ranks were not started */
    bool not_started; /* the launcher ended with 0 and had not started the ranks */
};

/* What a verb passes to a backend, because it has no run. */
struct backend_call {
    const struct job *job;
    const char *self;
    const struct environment *env;
};

struct backend {
    const struct job_backend *job; /* its name, and its keys of the job file */
    const struct event_code *events, *reasons, *results; /* its own codes; NULL: none */
    const char *node_verb_refusal; /* why `tp-run node` is refused; NULL: it is allowed */
    bool is_one_machine;           /* its nodes are parts of this machine */
    bool has_relays; /* ranks run on other hosts, under `tp-run relay` (process/relay.h) */

    /* ---- a run; open creates `state` ---- */

    /* Fill host->nodes, including the nodes that run_record names. run_record: NULL for a new
     * run. */
    tp_status (*open)(void **state, const struct backend_host *host, const json_t *run_record);
    /* host->record has been read. fresh: a person has started the job again after its end. */
    void (*begin)(void *state, bool fresh);
    tp_status (*tick)(void *state); /* ten times a second */
    /* A child was reaped. *mine: the backend has started it. */
    tp_status (*reaped)(void *state, pid_t pid, int status, bool *mine);
    /* over: the run has ended; otherwise only this tp-run ends. Frees state. */
    void (*close)(void *state, bool over);
    /* What must be remembered; open gets it as the member "backend" of run_record. */
    json_t *(*record)(const void *state);

    /* ---- planning ---- */

    /* *ready: host->nodes has the nodes to plan for. False: they were requested, or the run is
     * over. */
    tp_status (*ready)(void *state, bool *ready);
    /* Whether too few nodes remain, so that hand_over should get others. */
    bool (*wants_nodes)(const void *state, int usable, bool has_layout);
    /* Check the nodes soon; first: before anything is launched. */
    void (*look)(void *state, bool first);

    /* ---- an attempt ---- */

    /* The words before the ranks' command, which start it. */
    tp_status (*command)(void *state, const struct backend_launch *launch, struct job_words *out);
    /* With relays: seconds without a message after which a node is lost. */
    double (*node_timeout)(const void *state);
    bool (*is_paused)(const void *state);
    /* No rank reports anything. True: this is not a fault, or not known to be a fault yet; call
     * this again at the next check. */
    bool (*explains_silence)(void *state);
    /* tp-run got SIGTERM. True: the scheduler sent it, and the job should continue elsewhere. */
    bool (*explains_sigterm)(void *state, struct backend_cause *cause);

    /* ---- the end of an attempt ---- */

    /* The ranks have saved and ended although tp-run did not ask for it. This asks the scheduler
     * why, and waits for its answer. */
    enum backend_allocation (*after_save)(void *state, struct backend_cause *cause);
    /* Whether the attempt ends because the allocation does. */
    bool (*is_ending)(const void *state, struct backend_cause *cause);
    /* Continue on other nodes, or let another job of the scheduler continue. cause: NULL when
     * wants_nodes has returned true. *plan: plan a new attempt; false: the run is over, or
     * waits. */
    tp_status (*hand_over)(void *state, const struct backend_cause *cause, bool *plan);
    /* Read the end of the log. */
    struct backend_log (*read_log)(const void *state, const char *text);
    /* Report to the host what the log says: lost nodes, a scheduler that does not answer. */
    void (*report_log)(void *state, const char *text);
    /* The rank at fault in a line of the backend's launcher, -1: it names none. */
    int (*rank_of_line)(const char *line);
    /* A node is excluded after repeated faults. */
    void (*node_excluded)(void *state, const struct node *node, const char *message);

    /* ---- showing ---- */

    /* An object for `status`, under the backend's name. Its "text" is a sentence. */
    json_t *(*status)(const void *state);
    /* Replace the live line when something is more important. */
    void (*line)(const void *state, char *line, size_t size);

    /* ---- verbs and tp-run's other roles ---- */

    /* Describe this host, with what the environment says about the scheduler. */
    void (*home)(struct home *out, const struct environment *env);
    /* Fill in what a relay learns from its environment. */
    void (*relay)(struct relay_setup *out, const struct environment *env);
    /* Run the job in a job of the scheduler. id gets its number. run_record: of the last tp-run, or
     * NULL. TP_E_EXISTS: the scheduler has such a job already. */
    tp_status (*submit)(char *id, size_t size, const struct backend_call *call,
                        const json_t *run_record, struct tp_err *err);
    /* No tp-run runs the job: cancel the scheduler's job that would continue it. text gets a
     * sentence. TP_E_NOTFOUND: there is none. */
    tp_status (*cancel_next)(char *text, size_t size, const struct backend_call *call,
                             const json_t *run_record, struct tp_err *err);
    /* Run argv on the node where tp-run is. *output lives in the arena. */
    tp_status (*run_at)(char **output, const struct home *home, char *const *argv,
                        const struct backend_call *call, struct arena *arena, struct tp_err *err);
    /* `tp-run standby`: wait until tp-run has ended (false) or its node is lost (true). */
    tp_status (*standby)(bool *take_over, const struct backend_call *call, struct tp_err *err);
    /* The environment for the tp-run that takes over here, and what to do when it has ended. */
    void (*standby_env)(struct environment *env);
    void (*standby_end)(const struct backend_call *call);
};

/* The backend of a run. */
struct backend_run {
    const struct backend *table;
    void *state;
};

/* Call the functions of the table, or do the default, which the comment names. */
tp_status backend_open(struct backend_run *b, const struct backend *table,
                       const struct backend_host *host, const json_t *run_record);
void backend_begin(const struct backend_run *b, bool fresh);
tp_status backend_tick(const struct backend_run *b);
tp_status backend_reaped(const struct backend_run *b, pid_t pid, int status, bool *mine);
void backend_close(struct backend_run *b, bool over);
json_t *backend_record(const struct backend_run *b);                                /* NULL */
tp_status backend_ready(const struct backend_run *b, bool *ready);                  /* ready */
bool backend_wants_nodes(const struct backend_run *b, int usable, bool has_layout); /* no */
void backend_look(const struct backend_run *b, bool first);
tp_status backend_command(const struct backend_run *b, const struct backend_launch *launch,
                          struct job_words *out);           /* no words */
double backend_node_timeout(const struct backend_run *b);   /* 0: none */
bool backend_is_paused(const struct backend_run *b);        /* no */
bool backend_explains_silence(const struct backend_run *b); /* no */
bool backend_explains_sigterm(const struct backend_run *b, struct backend_cause *cause); /* no */
enum backend_allocation backend_after_save(const struct backend_run *b,
                                           struct backend_cause *cause);
bool backend_is_ending(const struct backend_run *b, struct backend_cause *cause); /* no */
tp_status backend_hand_over(const struct backend_run *b, const struct backend_cause *cause,
                            bool *plan); /* plan */
/* text may be NULL for these two. */
struct backend_log backend_read_log(const struct backend_run *b, const char *text);
void backend_report_log(const struct backend_run *b, const char *text);
void backend_node_excluded(const struct backend_run *b, const struct node *node,
                           const char *message);
json_t *backend_status(const struct backend_run *b); /* NULL */
void backend_line(const struct backend_run *b, char *line, size_t size);
void backend_home(const struct backend *table, struct home *out, const struct environment *env);

#endif
