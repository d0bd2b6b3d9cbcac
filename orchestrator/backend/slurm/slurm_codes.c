/* orchestrator/backend/slurm/slurm_codes.c - see orchestrator/backend/slurm/slurm_codes.h. */
#include "orchestrator/backend/slurm/slurm_codes.h"

/* clang-format off */
const struct event_code SLURM_EVENT_CODES[] = {
    { "allocation", "The allocation was requested, is held, or something happened to it.", false },
    { "chain", "The next batch job was submitted, or could not be.", false },
    { "node_drained", "tp-run asked Slurm to drain a node at fault.", false },
    { 0 },
};

const struct event_code SLURM_REASON_CODES[SLURM_REASONS] = {
    [SLURM_ALLOCATION_OVER - 1]  = { "slurm_allocation_over", "Slurm has ended the allocation.", false },
    [SLURM_IDLE_NODES - 1]       = { "slurm_idle_nodes", "Enough nodes are idle for a whole allocation (`slurm.grow: new`).", false },
    [SLURM_JOB_CONTINUES - 1]    = { "slurm_job_continues", "Another Slurm job continues.", false },
    [SLURM_JOB_ENDS - 1]         = { "slurm_job_ends", "Slurm ends the job.", false },
    [SLURM_NODE_ADDED - 1]       = { "slurm_node_added", "Slurm has put the node into the allocation.", false },
    [SLURM_NODE_ANSWERS - 1]     = { "slurm_node_answers", "The node starts processes again.", false },
    [SLURM_NODE_REMOVED - 1]     = { "slurm_node_removed", "Slurm has taken the node out of the allocation.", false },
    [SLURM_NODE_STATE - 1]       = { "slurm_node_state", "Slurm says that the node is down or drained.", false },
    [SLURM_NODE_UNREACHABLE - 1] = { "slurm_node_unreachable", "srun cannot start ranks on the node.", false },
    [SLURM_NO_NEXT_JOB - 1]      = { "slurm_no_next_job", "The allocation ends, and no other Slurm job continues.", false },
    [SLURM_NO_PROGRESS - 1]      = { "slurm_no_progress", "Too many allocations in a row without a new checkpoint.", false },
    [SLURM_PREEMPTED - 1]        = { "slurm_preempted", "Slurm preempts the job.", false },
    [SLURM_REFUSED - 1]          = { "slurm_refused", "Slurm refused the request for nodes.", false },
    [SLURM_REQUEUED - 1]         = { "slurm_requeued", "Slurm requeues the job.", false },
    [SLURM_TOO_FEW_NODES - 1]    = { "slurm_too_few_nodes", "Too few nodes of the allocation remain.", false },
    [SLURM_UNREACHABLE - 1]      = { "slurm_unreachable", "Slurm does not answer.", false },
    [SLURM_WALL_TIME - 1]        = { "slurm_wall_time", "The wall time ends.", false },
    { 0 },
};

const struct event_code SLURM_RESULT_CODES[SLURM_RESULTS + 1] = {
    [SLURM_ASKED]          = { "asked", "Nodes were requested.", false },
    [SLURM_CANNOT_GROW]    = { "cannot_grow", "Slurm did not give more nodes.", false },
    [SLURM_CANNOT_REQUEUE] = { "cannot_requeue", "Slurm refused to requeue the batch job; the next one is submitted.", false },
    [SLURM_ENDS]           = { "ends", "The wall time ends soon.", false },
    [SLURM_FOUND]          = { "found", "An allocation of an earlier tp-run is used again.", false },
    [SLURM_GIVEN_BACK]     = { "given_back", "The allocation was cancelled to request another one.", false },
    [SLURM_GROWN]          = { "grown", "More nodes have joined the allocation.", false },
    [SLURM_HELD]           = { "held", "The allocation has its nodes.", false },
    [SLURM_NODE_KEPT]      = { "node_kept", "Slurm says that a node is down, but its ranks report, so they continue.", false },
    [SLURM_NOT_GIVEN_BACK] = { "not_given_back", "A Slurm job could not be cancelled at the end.", false },
    [SLURM_OVER]           = { "over", "Slurm has ended the allocation.", false },
    [SLURM_ANSWERS]        = { "slurm_reachable", "Slurm answers again.", false },
    [SLURM_RESUMED]        = { "resumed", "Slurm has resumed the job.", false },
    [SLURM_STOOD_STILL]    = { "stood_still", "tp-run itself was stopped for a while.", false },
    [SLURM_SUSPENDED]      = { "suspended", "Slurm has suspended the job.", false },
    [SLURM_TAKEN]          = { "taken", "Slurm takes the nodes away.", false },
    [SLURM_NO_ANSWER]      = { "slurm_unreachable", "Slurm does not answer.", false },
    [SLURM_WAITS]          = { "waits", "A preempted batch job waits for Slurm to requeue it.", false },
};
/* clang-format on */

const char *slurm_reason_name(enum slurm_reason reason)
{
    return reason == SLURM_REASON_NONE ? "" : SLURM_REASON_CODES[reason - 1].name;
}

const char *slurm_result_name(enum slurm_result result)
{
    return SLURM_RESULT_CODES[result].name;
}
