/* orchestrator/state/event.c - see orchestrator/state/event.h. */
#include "orchestrator/state/event.h"

#include <string.h>

/* clang-format off */
static const struct event_code KINDS[EVENT_KINDS + 1] = {
    [EVENT_DONE]              = { "done", "All steps are done.", true },
    [EVENT_DRAIN]             = { "drain", "The ranks are asked to save and stop.", false },
    [EVENT_EVENTS_LOST]       = { "events_lost", "Too many events could not be written to events.jsonl; the oldest ones are lost.", false },
    [EVENT_FAILED]            = { "failed", "tp-run has given up.", true },
    [EVENT_GPUS_LOST]         = { "gpus_lost", "GPUs of a node cannot be used any more.", true },
    [EVENT_HANG]              = { "hang", "Ranks make no progress; the attempt is killed.", true },
    [EVENT_JOURNAL_FAILED]    = { "journal_failed", "A record could not be written; tp-run still watches a job that trains.", true },
    [EVENT_JOURNAL_RECOVERED] = { "journal_recovered", "Records can be written again.", false },
    [EVENT_KILLED]            = { "killed", "The ranks did not stop within their grace and were killed.", false },
    [EVENT_LAUNCH]            = { "launch", "An attempt was launched.", false },
    [EVENT_LOSS_JUMP]         = { "loss_jump", "The loss is far above those before it.", true },
    [EVENT_NAN]               = { "nan", "The loss is NaN or infinite.", true },
    [EVENT_NODE_BACK]         = { "node_back", "A node can be used again.", false },
    [EVENT_NODE_LOST]         = { "node_lost", "A node can no longer be used.", true },
    [EVENT_PAGE_FAILED]       = { "page_failed", "The status page or the metrics file cannot be provided; the job continues without it.", false },
    [EVENT_PLAN]              = { "plan", "What tp-run plans: to launch, to wait, or to stay at a smaller layout.", false },
    [EVENT_QUARANTINE]        = { "quarantine", "A bad checkpoint was moved to ROOT/quarantine/.", true },
    [EVENT_RANK_EXIT]         = { "rank_exit", "The command or a rank ended too early.", true },
    [EVENT_RESCALE]           = { "rescale", "The next launch has another number of ranks.", false },
    [EVENT_RESHARD]           = { "reshard", "The checkpoint has another layout: it is converted, or read directly.", false },
    [EVENT_RESHARDED]         = { "resharded", "tp-reshard has converted the checkpoint.", false },
    [EVENT_RESHARD_FAILED]    = { "reshard_failed", "tp-reshard could not convert the checkpoint.", false },
    [EVENT_RESTART]           = { "restart", "The job is started again after a fault.", false },
    [EVENT_SAVE]              = { "save", "A checkpoint was committed.", false },
    [EVENT_SLOW]              = { "slow", "A rank takes much longer to compute than the others.", false },
    [EVENT_SLOWDOWN]          = { "slowdown", "Steps have taken more than twice as long as before for 50 steps; the reason is the part of a step that grew.", false },
    [EVENT_STOPPED]           = { "stopped", "The job was stopped before its end; it can be continued.", true },
    [EVENT_TAKEOVER]          = { "takeover", "A new tp-run took the job over from one that was killed.", false },
    [EVENT_TRAINING]          = { "training", "Every rank has done a step.", false },
    [EVENT_WEBHOOK_FAILED]    = { "webhook_failed", "Events could not be sent to the webhook.", false },
};

static const struct event_code REASONS[EVENT_REASONS + 1] = {
    [REASON_NONE]                   = { "", "", false },
    [REASON_ALL_STEPS_DONE]         = { "all_steps_done", "All steps are done.", false },
    [REASON_ASKED_TO_STOP]          = { "asked_to_stop", "`tp-run stop` asked for it.", false },
    [REASON_CHECKPOINT_DAMAGED]     = { "checkpoint_damaged", "The checkpoint does not verify.", false },
    [REASON_CHECKPOINT_UNREADABLE]  = { "checkpoint_unreadable", "An attempt could not load the checkpoint.", false },
    [REASON_CHECK_FAILED]           = { "check_failed", "`tp-run check`, which verifies the checkpoint, was killed or could not be executed.", false },
    [REASON_COLLECTIVES_SLOWER]     = { "collectives_slower", "Ranks wait longer in collectives.", false },
    [REASON_COMMAND_FAILED]         = { "command_failed", "The command ended with an exit code, and no rank is named.", false },
    [REASON_COMMAND_KILLED]         = { "command_killed", "A signal ended the command, and no rank is named.", false },
    [REASON_COMMAND_NOT_EXECUTABLE] = { "command_not_executable", "The command's program cannot be executed.", false },
    [REASON_COMMAND_REFUSED]        = { "command_refused", "The program refused its command line (exit 2 before the first step).", false },
    [REASON_COMPUTE_SLOWER]         = { "compute_slower", "All ranks take longer to compute.", false },
    [REASON_CONVERSION_FAILED]      = { "conversion_failed", "tp-reshard failed before, so tp-train reads the checkpoint directly.", false },
    [REASON_CONVERSION_FASTER]      = { "conversion_faster", "Converting is predicted to be faster than reading the other layout.", false },
    [REASON_GPU_MEMORY]             = { "gpu_memory", "The memory of a GPU does not suffice. A layout that has never trained and needs as much is not tried again.", false },
    [REASON_GPUS_MISSING]           = { "gpus_missing", "There are fewer GPUs than before; the job continues on those that are left.", false },
    [REASON_GRACE_OVER]             = { "grace_over", "The ranks did not save and stop within `grace`.", false },
    [REASON_HELPER_STUCK]           = { "helper_stuck", "A program that tp-run started before the launch made no progress, so it was killed.", false },
    [REASON_JOURNAL_UNWRITABLE]     = { "journal_unwritable", "The journal cannot be written.", false },
    [REASON_LAYOUT_BETTER]          = { "layout_better", "A larger layout fits again and is worth a restart.", false },
    [REASON_LOSS_JUMPED]            = { "loss_jumped", "The loss jumped (`watch.jump`).", false },
    [REASON_LOSS_NOT_FINITE]        = { "loss_not_finite", "The loss is NaN or infinite.", false },
    [REASON_LOSS_NOT_FINITE_AGAIN]  = { "loss_not_finite_again", "The loss was NaN or infinite twice at the same step.", false },
    [REASON_NEWER_JOB]              = { "newer_job", "Another job has claimed the checkpoint root.", false },
    [REASON_NODE_GIVEN_BACK]        = { "node_given_back", "`tp-run node up` gave the node back.", false },
    [REASON_NODE_LOST]              = { "node_lost", "A node with ranks was lost.", false },
    [REASON_NODE_NEEDED]            = { "node_needed", "No layout fits the other nodes, so the exclusion of the node ends.", false },
    [REASON_NODE_TAKEN_AWAY]        = { "node_taken_away", "`tp-run node down` took the node away.", false },
    [REASON_NOT_SAVED]              = { "not_saved", "The job was stopped and had not saved.", false },
    [REASON_NOT_STARTED]            = { "not_started", "The job was stopped before it was launched.", false },
    [REASON_NO_GOOD_CHECKPOINT]     = { "no_good_checkpoint", "The root has checkpoints, but none of them is intact.", false },
    [REASON_NO_HEARTBEAT]           = { "no_heartbeat", "No message came from the node for too long.", false },
    [REASON_NO_LAYOUT]              = { "no_layout", "No layout fits the remaining ranks.", false },
    [REASON_NO_PROGRESS]            = { "no_progress", "Too many starts in a row without progress (`restart.no_progress`).", false },
    [REASON_OWN_LAYOUT_ONLY]        = { "own_layout_only", "The command is not tp-train and reads checkpoints of its own layout only.", false },
    [REASON_PAGE_UNAVAILABLE]       = { "page_unavailable", "Its address or file cannot be used.", false },
    [REASON_PREPARE_FAILED]         = { "prepare_failed", "The `prepare` command failed.", false },
    [REASON_PROCESSORS_BUSY]        = { "processors_busy", "Ranks wait longer for a processor, because other programs use them.", false },
    [REASON_RANKS_STUCK]            = { "ranks_stuck", "No rank makes progress, and all are at the same point.", false },
    [REASON_RANK_FAILED]            = { "rank_failed", "A rank ended with an exit code.", false },
    [REASON_RANK_GONE]              = { "rank_gone", "A rank's process has ended, and its exit code is not known.", false },
    [REASON_RANK_KILLED]            = { "rank_killed", "A signal ended a rank.", false },
    [REASON_RANK_NOT_STARTED]       = { "rank_not_started", "A rank has not reported within `watch.init`.", false },
    [REASON_RANK_SLOW]              = { "rank_slow", "A rank takes much longer to compute than the median (`watch.slow`).", false },
    [REASON_RANK_STUCK]             = { "rank_stuck", "A rank makes no progress.", false },
    [REASON_RANK_UNKILLABLE]        = { "rank_unkillable", "SIGKILL does not end a rank on the node.", false },
    [REASON_REPEATED_FAULTS]        = { "repeated_faults", "The node is excluded after repeated faults of its ranks (`restart.blame`).", false },
    [REASON_RESHARD_ALWAYS]         = { "reshard_always", "The job file says `reshard: always`.", false },
    [REASON_RESHARD_NEVER]          = { "reshard_never", "The job file says `reshard: never`.", false },
    [REASON_RESIZE]                 = { "resize", "`tp-run resize` asked for another layout.", false },
    [REASON_RESTART_NOT_WORTH]      = { "restart_not_worth", "A larger layout fits, but is not worth a restart (`restart.worth`).", false },
    [REASON_RESUME_FASTER]          = { "resume_faster", "Reading the other layout is predicted to be as fast as converting, or faster.", false },
    [REASON_ROOT_FULL]              = { "root_full", "The checkpoint root has no space left, or a quota is used up. No node is blamed for it.", false },
    [REASON_ROOT_LOCKED]            = { "root_locked", "Another process holds the lock of the checkpoint root.", false },
    [REASON_SAVED]                  = { "saved", "The job was stopped and has saved.", false },
    [REASON_SAVED_AFTER_BAD_LOSS]   = { "saved_after_bad_loss", "The checkpoint was saved after the loss was NaN or infinite.", false },
    [REASON_SIGNAL]                 = { "signal", "tp-run got a signal.", false },
    [REASON_STORE_FAILED]           = { "store_failed", "The store with the checkpoints, or the server of the model, does not answer or refuses the request.", false },
    [REASON_STORE_NOT_CONVERTED]    = { "store_not_converted", "The checkpoint is in a store, where a step is not converted in place.", false },
    [REASON_SUPERVISOR_LOST]        = { "supervisor_lost", "The attempt's supervisor was killed.", false },
    [REASON_TOO_MANY_RESTARTS]      = { "too_many_restarts", "Too many restarts within a time (`restart.max`).", false },
    [REASON_TP_RUN_ENDED]           = { "tp_run_ended", "tp-run itself cannot continue; ranks that train continue, and the same command takes them over.", false },
    [REASON_TP_RESHARD_FAILED]      = { "tp_reshard_failed", "tp-reshard could not convert the checkpoint.", false },
    [REASON_UNREPORTED]             = { "unreported", "No rank reports its progress: the command is watched by its exit only.", false },
    [REASON_WEBHOOK_UNREACHABLE]    = { "webhook_unreachable", "The webhook does not answer, or refuses the event.", false },
};

static const struct event_code RESULTS[EVENT_RESULTS + 1] = {
    [RESULT_LAUNCH]            = { "launch", "Layout and checkpoint are chosen; the job is launched.", false },
    [RESULT_STAYS]             = { "stays", "The job stays at its layout although a larger one fits.", false },
    [RESULT_WAITING_FOR_NODES] = { "waiting_for_nodes", "The job waits until nodes come back.", false },
    [RESULT_WAITING_FOR_ROOT]  = { "waiting_for_root", "The job waits until the checkpoint root is unlocked.", false },
};
/* clang-format on */

const char *event_name(enum event_kind kind)
{
    return KINDS[kind].name;
}

const char *event_reason_name(enum event_reason reason)
{
    return REASONS[reason].name;
}

const char *event_result_name(enum event_result result)
{
    return RESULTS[result].name;
}

bool event_is_urgent(const char *name)
{
    for (int i = 0; i < EVENT_KINDS; i++)
        if (strcmp(KINDS[i].name, name) == 0)
            return KINDS[i].urgent;
    return false;
}

const struct event_code *event_codes(void)
{
    return KINDS;
}

const struct event_code *event_reason_codes(void)
{
    return REASONS + 1;
}

const struct event_code *event_result_codes(void)
{
    return RESULTS;
}
