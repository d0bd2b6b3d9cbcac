/* orchestrator/run_relays.c - what the relays on Slurm's nodes send. See run_inside.h and relay.h.
 */
#include <string.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/relay.h"
#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"

/* Its relay says so before srun does, which waits for the others first. */
static tp_status rank_failed(struct run *r, int rank)
{
    struct run_fault f = { .kind = FAULT_RANK, .rank = rank, .node = r->ranks[rank].node };

    r->ranks[rank].gone = true;
    f.step = monitor_best_step(r->monitor);
    snprintf(f.reason, sizeof f.reason, "rank %d has ended", rank);
    return run_drain_fault(r, &f);
}

/* Where somebody beats the job as a whole is not suspended. */
static bool all_are_silent(const struct run *r, double now)
{
    for (int i = 0; i < r->world; i++)
        if (r->ranks[i].beat_at > 0 && now - r->ranks[i].beat_at < slurm_options(r->job)->lost / 2)
            return false;
    return true;
}

/* Which rank is on which node is srun's to decide where a node has room for more. */
static void see_node(struct run *r, const struct relay_beat *beat)
{
    struct run_rank *k = &r->ranks[beat->rank];

    if (!beat->node[0] || (k->node >= 0 && strcmp(r->job->nodes[k->node].name, beat->node) == 0))
        return;
    for (int i = 0; i < r->job->n_nodes; i++)
        if (strcmp(r->job->nodes[i].name, beat->node) == 0)
            k->node = i;
}

tp_status run_beats_check(struct run *r)
{
    double now = run_now(), stood;
    char id[RELAY_ID_TEXT];
    struct relay_beat beat;

    if (r->beats < 0)
        return TP_OK;
    run_attempt_id(r, id);
    while (relay_next(&beat, r->beats, id)) {
        if (beat.rank < 0 || beat.rank >= r->world)
            continue;
        r->ranks[beat.rank].beat_at = beat.news == RELAY_BEATS ? now : 0;
        see_node(r, &beat);
        if (beat.news == RELAY_FAILED)
            return rank_failed(r, beat.rank);
    }
    stood = r->looked_at > 0 && now - r->looked_at > slurm_options(r->job)->lost / 2
                ? now - r->looked_at
                : 0;
    for (int i = 0; i < r->world; i++) {
        struct run_rank *k = &r->ranks[i];
        char text[80];

        if (k->beat_at > 0) /* time in which tp-run itself stood still is nobody's fault */
            k->beat_at = k->beat_at + stood < now ? k->beat_at + stood : now;
        if (k->beat_at <= 0 || now - k->beat_at <= slurm_options(r->job)->lost)
            continue;
        if (all_are_silent(r, now) && run_slurm_excuses(r))
            break;
        snprintf(text, sizeof text, "no sign of life for %.1f s", now - k->beat_at);
        return run_node_lost(r, k->node, text, now - k->beat_at);
    }
    r->looked_at = now;
    return TP_OK;
}

void run_beats_stand_by(struct run *r)
{
    double now = run_now();
    char id[RELAY_ID_TEXT];
    struct relay_beat beat;
    bool beats = false;

    run_attempt_id(r, id);
    while (r->beats >= 0 && relay_next(&beat, r->beats, id))
        beats = true;
    for (int i = 0; i < r->world; i++)
        r->ranks[i].beat_at = 0; /* nodes are resumed one by one: until it beats again */
    r->looked_at = now;
    monitor_hold(r->monitor, clock_ns());
    if (beats)
        run_slurm_look_now(r); /* it seems to go on */
}
