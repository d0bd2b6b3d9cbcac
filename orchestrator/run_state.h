/*
 * orchestrator/run_state.h - what the files of the state machine share. Only they use it.
 *
 *     run_loop.c        the event loop, beginning and end
 *     run_transition.c  from state to state: record, event, the end
 *     run_services.c    events, time account, control socket, status page, webhook
 *     run_nodes.c       nodes that are lost, back, excluded
 *     run_gpus.c        which GPU a rank has, GPUs that have failed or are missing
 *     run_host.c        what the run offers to its backend
 *     run_root.c        the claim to the checkpoint root
 *     run_plan.c        PLAN: nodes, layout, checkpoint
 *     run_convert.c     RESHARD: a conversion, the prepare command
 *     run_helper.c      programs that run for PLAN and RESHARD
 *     run_launch.c      LAUNCH, and taking over
 *     run_watch.c       INIT, TRAIN, SAVE: heartbeats and verdicts
 *     run_ranks.c       ranks that end
 *     run_relays.c      messages of relays
 *     run_rescale.c     scaling up
 *     run_drain.c       DRAIN: ending an attempt
 *     run_diagnose.c    DIAGNOSE: what ended it, and what follows
 *     run_restart.c     after a fault: another attempt, or the end
 *     run_requests.c    requests from other terminals
 *     run_status.c      what `status` and the page show
 *
 * A struct that is only declared here is private to the file of its name.
 */
#ifndef ORCHESTRATOR_RUN_STATE_H
#define ORCHESTRATOR_RUN_STATE_H

#include "orchestrator/attempt.h"
#include "orchestrator/plan/checkpoint_selection.h"
#include "orchestrator/plan/fit.h"
#include "orchestrator/run.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/watch/monitor.h"

struct run_services;
struct run_root;
struct run_plan;
struct run_convert;
struct run_helper;
struct run_watch;
struct run_relays;
struct run_rescale;
struct run_drain;

/* How the run ends; set by run_finish. */
struct run_end {
    bool over;
    tp_status result;
    char text[TP_ERR_MAX];
};

/* The event loop, of run_loop.c. */
struct run_loop {
    int epoll, timer, signals;
    int stopped_by; /* the signal that asked tp-run to stop, 0: none */
};

struct run {
    const struct job *job;
    const struct run_setup *setup;
    struct backend_run backend;
    struct backend_host host;
    struct journal *journal;
    struct run_record record; /* what the journal remembers */
    struct node_list nodes;
    struct attempt attempt;
    struct run_loop loop;
    struct run_end end;
    struct run_services *services;
    struct run_root *root;
    struct run_plan *plan;
    struct run_convert *convert;
    struct run_helper *helper;
    struct run_watch *watch;
    struct run_relays *relays;
    struct run_rescale *rescale;
    struct run_drain *drain;
    struct tp_err err; /* of the current action */
};

/* Make or free each file's part, when the run begins or ends. TP_E_NOMEM, and other failures. */
tp_status run_services_open(struct run *r);
tp_status run_root_open(struct run *r);
tp_status run_plan_open(struct run *r);
tp_status run_convert_open(struct run *r);
tp_status run_helper_open(struct run *r);
tp_status run_watch_open(struct run *r);
tp_status run_relays_open(struct run *r);
tp_status run_rescale_open(struct run *r);
tp_status run_drain_open(struct run *r);
void run_services_close(struct run *r);
void run_root_close(struct run *r);
void run_plan_close(struct run *r);
void run_watch_close(struct run *r);
void run_relays_close(struct run *r);

/* ---- run_loop.c ---- */

/* Wake the loop when fd is readable. False: it cannot be watched. */
bool run_watch_fd(struct run *r, int fd);

/* ---- run_transition.c ---- */

/* Change the state and write the journal record; `what` is a text for people. The caller acts after
 * TP_OK. Writing a record that only notes progress may fail (EVENT_JOURNAL_FAILED). */
tp_status run_transition(struct run *r, enum run_state to, const char *what);
/* Report an event. message: the reason's sentence, "" or NULL for none. Takes over `more`. */
void run_event(struct run *r, enum event_kind kind, enum event_reason reason, const char *message,
               json_t *more);
/* The same with the codes of a backend as texts; run is a struct run. */
void run_event_of_backend(void *run, const char *event, const char *reason, const char *message,
                          json_t *more);
/* End the run. reason: a code of state/event.h or of the backend. */
void run_finish(struct run *r, enum run_state final, tp_status result, const char *reason,
                const char *message);

/* ---- run_services.c ---- */

/* Send an event to the event log, the reporter and the webhook. Takes over the reference. */
void run_report(struct run *r, json_t *event);
void run_note(struct run *r, const char *text);
/* From now on, or from `at` (clock_seconds), time counts for this cause. */
void run_time(struct run *r, enum time_account_cause cause);
void run_time_from(struct run *r, enum time_account_cause cause, double at);
/* From now on, time counts for the cause that follows from the state. */
void run_time_by_state(struct run *r);
/* A fault was found: see time_account_fault. */
void run_time_fault(struct run *r, double saved, double alive);
void run_time_flush(struct run *r);
void run_loss_point(struct run *r, int64_t step, double loss);
json_t *run_timeline(const struct run *r);
const char *run_page_url(const struct run *r); /* "": none */
bool run_has_control(const struct run *r);
void run_services_tick(struct run *r);
/* The run has ended, and its parts are still open: write the metrics a last time. */
void run_services_last(struct run *r);
/* Watch the fds of the services; serve one of them. False: fd is not one of them. */
void run_services_watch(struct run *r);
bool run_services_serve(struct run *r, int fd, tp_status *st);

/* ---- run_nodes.c ---- */

/* The ranks that can be placed now on all nodes except the spares. settled: only on nodes that came
 * back at least restart.settle ago. */
int run_free_ranks(const struct run *r, bool settled);
int run_usable_nodes(const struct run *r);
/* A node is lost. If ranks run there, the attempt is lost too. waited: seconds without a
 * message. */
tp_status run_node_lost(struct run *r, struct node *node, const struct backend_cause *cause,
                        double waited);
/* Whether a rank on the node is alive: its relay's messages arrive, or, where none do, it has made
 * progress within the deadline. While the attempt ends, ranks may be alive until it has ended. */
bool run_node_reports(const struct run *r, const struct node *node);
/* Exclude a node for restart.exclude_for. `what` begins the event's sentence; fault: the reason for
 * the scheduler. */
void run_exclude_node(struct run *r, struct node *n, enum event_reason reason, const char *what,
                      const char *fault);
/* Count a fault of a node's rank. After restart.blame faults the node is excluded (true), unless no
 * layout fits the others. */
bool run_count_fault(struct run *r, const struct attempt_fault *f);
/* No layout fits the usable nodes. If one fits them and those that are excluded, end the exclusions
 * (true). A scheduler looks for other nodes instead. */
bool run_readmit_nodes(struct run *r);
json_t *run_nodes_json(const struct run *r);

/* ---- run_gpus.c ---- */

/* For tp-train with --device cuda or auto, and a backend whose nodes are one machine: slot i,
 * counted over all nodes, has GPU i (of CUDA_VISIBLE_DEVICES, if tp-run has it). Let the ranks of
 * the attempt see only the GPUs of their slots. */
void run_gpus_select(const struct run *r, struct environment *env);
/* Add the memory of the smallest GPU; with --device auto also the device that tp-train has chosen,
 * and why. */
void run_gpus_describe(const struct run *r, json_t *event);
/* Whether the rank of the fault has reported that it ends because a GPU failed. */
bool run_gpus_is_fault(const struct run *r, const struct attempt_fault *f);
/* Remember the memory of the smallest GPU that the ranks report. trains: every rank trains, so
 * those that report none have none, and the layout fits. */
void run_gpus_learn(struct run *r, bool trains);
/* Whether a rank has reported that it ends because the memory of a GPU does not suffice. */
bool run_gpus_are_full(const struct run *r);
/* If that was the fault, and the attempt's layout has never trained, do not select it again, nor
 * layouts that need no less. False: not so. */
bool run_gpus_refuse_layout(struct run *r);
/* A job that has trained before was refused because there are fewer GPUs than ranks: take the slots
 * of the ranks without a GPU away, or exclude their nodes if these are other machines, and set the
 * reason of the fault. False: there was another reason, or no slots are left. */
bool run_gpus_are_missing(struct run *r, struct attempt_fault *f);

/* ---- run_host.c ---- */

void run_host_open(struct run *r);

/* ---- run_root.c ---- */

/* Whether the checkpoint root is in a store (s3://), and its checkpoints are ours. */
bool run_root_is_in_store(const struct run *r);
/* Whether it is a folder that this job owns, and locks. */
bool run_root_is_folder(const struct run *r);
/* The store, or the server of the model, has failed before the launch: plan again, within the
 * budgets of any failure. */
tp_status run_root_failed(struct run *r, const char *what);
/* TP_E_EXISTS: another live job owns the checkpoint root. TP_E_IO, TP_E_USAGE: it is in a store
 * that cannot be used. */
tp_status run_root_check(struct run *r);
/* Claim the root, if this was not done. make: create it; otherwise a root that does not exist is
 * not claimed. TP_E_EXISTS. */
tp_status run_root_claim(struct run *r, bool make);
/* The attempt has a supervisor, which may outlive tp-run. */
void run_root_set_child(struct run *r);
void run_root_tick(struct run *r);

/* ---- run_plan.c ---- */

tp_status run_plan_begin(struct run *r);
tp_status run_plan_tick(struct run *r);
/* The job was asked to stop before the launch: end it. */
tp_status run_plan_stop(struct run *r);
/* Whether another process holds the lock of the root, for which a launch would wait without
 * answering anybody. Reports the holder when that lasts. */
bool run_plan_waits_for_root(struct run *r);
/* The verification has ended. exit_code: of tp-run check, 0: the checkpoint is valid. */
tp_status run_plan_verified(struct run *r, int exit_code, double seconds);
/* A checkpoint did not verify or load. The second time it is moved to quarantine. */
tp_status run_bad_checkpoint(struct run *r, enum event_reason reason, const char *message);
/* Select a layout for at most `ranks` ranks. The planner keeps its answers (plan/planner.h). */
tp_status run_select(const struct run *r, struct plan_candidate *out, int ranks,
                     struct tp_err *err);
/* Whether the selected layout is still the one to run: nodes may have come or gone, or a person may
 * have asked for another one, while a program ran before the launch. */
bool run_plan_holds(struct run *r);
int64_t run_plans_computed(const struct run *r);
/* The selection for the next launch, or that of the current attempt. */
const struct plan_candidate *run_selected_layout(const struct run *r);
const struct checkpoint_selection *run_selected_checkpoint(const struct run *r);
/* At a takeover: restore the selection of the current attempt. */
void run_plan_restore(struct run *r);
/* The checkpoint was converted to the selected layout. */
void run_plan_converted(struct run *r);
/* Wait this number of seconds before the next plan. */
void run_plan_back_off(struct run *r, double seconds);

/* ---- run_convert.c ---- */

/* Layout and checkpoint are selected: convert if necessary, prepare, launch. */
tp_status run_convert_begin(struct run *r);
tp_status run_convert_tick(struct run *r);
/* A new plan begins. */
void run_convert_reset(struct run *r);
tp_status run_converted(struct run *r, int exit_code, double seconds);
tp_status run_prepared(struct run *r, int exit_code);
/* Whether the attempt reads a checkpoint of another layout without a conversion. */
bool run_reads_other_layout(const struct run *r);

/* ---- run_helper.c ---- */

enum run_helper_kind {
    HELPER_VERIFY,  /* tp-run check: verifies a checkpoint */
    HELPER_CONVERT, /* tp-reshard */
    HELPER_PREPARE, /* the job's own command */
};

/* Start a program that dies with tp-run; its output is appended to `log`. TP_E_IO. */
tp_status run_helper_start(struct run *r, enum run_helper_kind kind, char *const *argv,
                           const char *log);
bool run_helper_runs(const struct run *r);
/* The mark of a helper and of the processes that it starts (process.h). */
const char *run_helper_id(const struct run *r, char id[RUN_ID_TEXT + 1]);
/* Kill the processes that a helper has left in the background. Returns their number. */
int run_helper_end_rest(const struct run *r);
/* A child was reaped. *mine: it was the helper. */
tp_status run_helper_reaped(struct run *r, pid_t pid, int status, bool *mine);
/* Call this at each tick. A helper that makes no progress is reported and killed. */
void run_helper_tick(struct run *r);
/* tp-run was asked to stop: end the helper, by SIGKILL after `grace`, or at once at a second
 * request with `hurry`. An unfinished conversion stays for the next run. */
void run_helper_stop(struct run *r, bool hurry);

/* ---- run_launch.c ---- */

tp_status run_launch(struct run *r);
/* placement: of the ranks (attempt.h); NULL: not known. */
tp_status run_take_over(struct run *r, const json_t *placement);
/* Remove what a tp-run that was killed has left of an attempt that was over. */
void run_forget_last_attempt(struct run *r);
/* Start a program and append its output to `log`. supervisor: in its own session, with the
 * environment of the ranks; otherwise it dies with tp-run, and has a process group and the mark of
 * a helper. -1: see errno. */
pid_t run_spawn(struct run *r, char *const *argv, const char *log, bool supervisor);

/* ---- run_watch.c ---- */

tp_status run_watch_begin(struct run *r);
tp_status run_watch_tick(struct run *r);
/* The same while the ranks save and stop: a rank that hangs ends the attempt. */
tp_status run_watch_drain(struct run *r);
/* Pass the newest heartbeats of all ranks to the monitor, also those of ranks that have ended. */
void run_watch_read(struct run *r);
/* Read the heartbeats a last time after the end. */
void run_watch_last(struct run *r);
void run_watch_forget(struct run *r);
/* NULL: no ranks. */
const struct monitor *run_monitor(const struct run *r);
/* Call this at each tick while the job is suspended. */
void run_watch_hold(struct run *r);
/* The time at which the newest checkpoint was begun, as far as is known. */
double run_saved_at(const struct run *r);
/* Whether the attempt has run longer than watch.init without any report. */
bool run_outlived_init(const struct run *r);

/* ---- run_ranks.c ---- */

/* The process of a rank of this host has ended. In INIT, TRAIN and SAVE that ends the attempt,
 * unless the rank had reported that it is done, or is not tp-train's and ended as planned. */
tp_status run_rank_ended(struct run *r, int rank);

/* ---- run_relays.c ---- */

/* Write the port for the attempt's relays. */
tp_status run_relays_begin(struct run *r);
/* A node whose messages stop is lost. A last message may report that its rank has failed. */
tp_status run_relays_tick(struct run *r);
/* Seconds since the rank's last message, -1: none is expected. */
double run_relays_silence(const struct run *r, int rank);
/* The job is suspended, so no messages are expected. */
void run_relays_hold(struct run *r);
/* Tell the relays to kill their ranks. */
void run_relays_stop(struct run *r);

/* ---- run_rescale.c ---- */

/* After nodes have come back or an exclusion is over: rescale if a larger layout is worth a
 * restart. With a list of layouts, an earlier layout in the list is. Otherwise the rest of the run
 * must become shorter by `restart.worth` times the cost of a restart. */
tp_status run_rescale_consider(struct run *r);
bool run_rescale_pays(struct run *r, int ranks);
void run_rescale_reset(struct run *r);

/* ---- run_drain.c ---- */

/* Ask the attempt to save and end. */
tp_status run_drain_softly(struct run *r, const char *reason, const char *message);
/* End the attempt at once because of a fault. */
tp_status run_drain_fault(struct run *r, const struct attempt_fault *f);
tp_status run_drain_tick(struct run *r);
void run_drain_reset(struct run *r);
/* Whether the attempt was asked to save and stop, and has not been killed. */
bool run_drain_obeyed(const struct run *r);
/* The signal that asks the supervisor's command to save and stop. */
int run_drain_signal(const struct run *r);
/* The second request to stop: kill now. False: the attempt is not being ended. */
bool run_drain_hurry(struct run *r);
/* Give the attempt more time; repeat the request to save. */
void run_drain_extend(struct run *r, double seconds);
void run_drain_ask_again(struct run *r);
/* At a takeover: continue to end the attempt, or, when it has ended meanwhile, remember whether it
 * was asked to. */
tp_status run_drain_resume(struct run *r);
void run_drain_recall(struct run *r);
/* Processes remain although the supervisor has ended: kill them again soon, for a limited time.
 * False: they wait in the kernel, and the job continues without them. */
bool run_drain_waits_for_rest(struct run *r);

/* ---- run_diagnose.c ---- */

/* The supervisor has ended: kill the remaining processes, find out why, decide what follows. */
tp_status run_supervisor_ended(struct run *r);

/* ---- run_restart.c ---- */

/* After the fault of the attempt: move checkpoints that it has made useless, count it, and launch
 * again, if it made progress or the budgets allow it; otherwise give up. */
tp_status run_restart_after_fault(struct run *r);
/* Launch again for the fault of the attempt, if the budgets allow it. */
tp_status run_start_again(struct run *r);
/* This fault prevented an attempt from training: launch again, if the budgets allow it. */
tp_status run_retry(struct run *r, const struct attempt_fault *f, const char *log);
/* The job has failed; the message has `why` and the last fault. result decides the exit code. */
tp_status run_give_up(struct run *r, tp_status result, enum event_reason reason, const char *why);
/* The highest step that a rank has completed in this attempt, -1: none has. */
int64_t run_attempt_step(const struct run *r);
/* Whether the attempt has completed no step that was not done before it. */
bool run_did_no_step(const struct run *r);

/* ---- run_requests.c, run_status.c ---- */

/* Answer a request; *st: a failure of tp-run itself. */
json_t *run_answer(struct run *r, const json_t *request, tp_status *st);
json_t *run_status(const struct run *r);
/* The live line. */
void run_line(const struct run *r, char *line, size_t size);

#endif
