/*
 * orchestrator/state/event.h - the codes in events: what happened, why, and with which result.
 *
 * Scripts match codes, and each code has a sentence for people. docs/tp-run/reference.md lists all
 * codes; a test compares it with these tables. Backends have additional codes.
 */
#ifndef ORCHESTRATOR_STATE_EVENT_H
#define ORCHESTRATOR_STATE_EVENT_H

#include <stdbool.h>

enum event_kind {
    EVENT_DONE,
    EVENT_DRAIN,
    EVENT_EVENTS_LOST,
    EVENT_FAILED,
    EVENT_GPUS_LOST,
    EVENT_HANG,
    EVENT_JOURNAL_FAILED,
    EVENT_JOURNAL_RECOVERED,
    EVENT_KILLED,
    EVENT_LAUNCH,
    EVENT_LOSS_JUMP,
    EVENT_NAN,
    EVENT_NODE_BACK,
    EVENT_NODE_LOST,
    EVENT_PAGE_FAILED,
    EVENT_PLAN,
    EVENT_QUARANTINE,
    EVENT_RANK_EXIT,
    EVENT_RESCALE,
    EVENT_RESHARD,
    EVENT_RESHARDED,
    EVENT_RESHARD_FAILED,
    EVENT_RESTART,
    EVENT_SAVE,
    EVENT_SLOW,
    EVENT_SLOWDOWN,
    EVENT_STOPPED,
    EVENT_TAKEOVER,
    EVENT_TRAINING,
    EVENT_WEBHOOK_FAILED,
    EVENT_KINDS,
};

enum event_reason {
    REASON_NONE,
    REASON_ALL_STEPS_DONE,
    REASON_ASKED_TO_STOP,
    REASON_CHECKPOINT_DAMAGED,
    REASON_CHECKPOINT_UNREADABLE,
    REASON_CHECK_FAILED,
    REASON_COLLECTIVES_SLOWER,
    REASON_COMMAND_FAILED,
    REASON_COMMAND_KILLED,
    REASON_COMMAND_NOT_EXECUTABLE,
    REASON_COMMAND_REFUSED,
    REASON_COMPUTE_SLOWER,
    REASON_CONVERSION_FAILED,
    REASON_CONVERSION_FASTER,
    REASON_GPU_MEMORY,
    REASON_GPUS_MISSING,
    REASON_GRACE_OVER,
    REASON_HELPER_STUCK,
    REASON_JOURNAL_UNWRITABLE,
    REASON_LAYOUT_BETTER,
    REASON_LOSS_JUMPED,
    REASON_LOSS_NOT_FINITE,
    REASON_LOSS_NOT_FINITE_AGAIN,
    REASON_NEWER_JOB,
    REASON_NODE_GIVEN_BACK,
    REASON_NODE_LOST,
    REASON_NODE_NEEDED,
    REASON_NODE_TAKEN_AWAY,
    REASON_NOT_SAVED,
    REASON_NOT_STARTED,
    REASON_NO_GOOD_CHECKPOINT,
    REASON_NO_HEARTBEAT,
    REASON_NO_LAYOUT,
    REASON_NO_PROGRESS,
    REASON_OWN_LAYOUT_ONLY,
    REASON_PAGE_UNAVAILABLE,
    REASON_PREPARE_FAILED,
    REASON_PROCESSORS_BUSY,
    REASON_RANKS_STUCK,
    REASON_RANK_FAILED,
    REASON_RANK_GONE,
    REASON_RANK_KILLED,
    REASON_RANK_NOT_STARTED,
    REASON_RANK_SLOW,
    REASON_RANK_STUCK,
    REASON_RANK_UNKILLABLE,
    REASON_REPEATED_FAULTS,
    REASON_RESHARD_ALWAYS,
    REASON_RESHARD_NEVER,
    REASON_RESIZE,
    REASON_RESTART_NOT_WORTH,
    REASON_RESUME_FASTER,
    REASON_ROOT_FULL,
    REASON_ROOT_LOCKED,
    REASON_SAVED,
    REASON_SAVED_AFTER_BAD_LOSS,
    REASON_SIGNAL,
    REASON_STORE_FAILED,
    REASON_STORE_NOT_CONVERTED,
    REASON_SUPERVISOR_LOST,
    REASON_TOO_MANY_RESTARTS,
    REASON_TP_RUN_ENDED,
    REASON_TP_RESHARD_FAILED,
    REASON_UNREPORTED,
    REASON_WEBHOOK_UNREACHABLE,
    EVENT_REASONS,
};

/* The result of a plan. */
enum event_result {
    RESULT_LAUNCH,
    RESULT_STAYS,
    RESULT_WAITING_FOR_NODES,
    RESULT_WAITING_FOR_ROOT,
    EVENT_RESULTS,
};

struct event_code {
    const char *name;    /* NULL ends a table */
    const char *meaning; /* one sentence */
    bool urgent;         /* of an event: the webhook gets it */
};

const char *event_name(enum event_kind kind);
const char *event_reason_name(enum event_reason reason); /* "" for REASON_NONE */
const char *event_result_name(enum event_result result);

/* Whether the webhook gets events of this name. */
bool event_is_urgent(const char *name);

/* All codes, in the order of their enums, without REASON_NONE. */
const struct event_code *event_codes(void);
const struct event_code *event_reason_codes(void);
const struct event_code *event_result_codes(void);

#endif
