/* orchestrator/run_relays.c - see run_state.h and process/relay.h: messages of the relays on
 * other hosts. For a backend without relays, all functions do nothing. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/process/relay_message.h"
#include "orchestrator/run_state.h"

struct run_relays {
    struct relay_listener from;
    double looked_at; /* time of the last check */
    double *heard_at; /* time of each rank's last message; 0: none is expected; malloc'ed */
};

tp_status run_relays_open(struct run *r)
{
    struct run_relays *v = r->relays = calloc(1, sizeof *v);

    if (!v)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory");
    v->from.fd = -1;
    if (r->backend.table->has_relays)
        relay_listen(&v->from);
    return TP_OK;
}

void run_relays_close(struct run *r)
{
    struct run_relays *v = r->relays;

    if (v && v->from.fd >= 0)
        close(v->from.fd);
    if (v)
        free(v->heard_at);
    free(v);
    r->relays = NULL;
}

tp_status run_relays_begin(struct run *r)
{
    struct run_relays *v = r->relays;

    free(v->heard_at);
    v->heard_at = calloc((size_t)r->attempt.world, sizeof *v->heard_at);
    if (!v->heard_at)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for %d ranks", r->attempt.world);
    if (v->from.fd < 0 || r->attempt.heartbeats_fd < 0)
        return TP_OK;
    return relay_write_port(r->attempt.heartbeats_fd, &v->from, &r->err);
}

void run_relays_stop(struct run *r)
{
    if (r->backend.table->has_relays)
        relay_stop_all(r->attempt.heartbeats_fd);
}

/* A relay reports this earlier than the launcher, which first waits for the other ranks. */
static tp_status rank_failed(struct run *r, int rank)
{
    struct attempt_fault f = attempt_fault(FAULT_RANK, REASON_RANK_GONE, "rank %d has ended", rank);

    attempt_rank_ended(&r->attempt, rank);
    f.rank = rank;
    f.node = r->attempt.rank[rank].node;
    f.step = monitor_best_step(run_monitor(r));
    return run_drain_fault(r, &f);
}

/* If nodes have more slots than ranks, the launcher decides which rank is on which node. */
static void see_node(struct run *r, const struct relay_message *m)
{
    struct node *node = m->node[0] ? node_list_find(&r->nodes, m->node) : NULL;

    if (node)
        attempt_move(&r->attempt, m->rank, node);
}

/* If any rank sent a message recently, the job as a whole is not suspended. */
static bool all_are_silent(const struct run *r, double now, double timeout)
{
    const struct run_relays *v = r->relays;

    for (int i = 0; i < r->attempt.world; i++)
        if (v->heard_at[i] > 0 && now - v->heard_at[i] < timeout / 2)
            return false;
    return true;
}

/* Read the messages that have arrived. *failed: a rank that has failed, or -1. */
static void receive(struct run *r, double now, int *failed)
{
    struct run_relays *v = r->relays;
    struct relay_message m;

    *failed = -1;
    while (*failed < 0 && relay_receive(&m, &v->from, r->attempt.id)) {
        if (m.rank < 0 || m.rank >= r->attempt.world)
            continue;
        v->heard_at[m.rank] = m.news == RELAY_ALIVE ? now : 0;
        see_node(r, &m);
        if (m.news == RELAY_FAILED)
            *failed = m.rank;
    }
}

/* The first rank whose messages have stopped for longer than the timeout, -1: none. Time in which
 * tp-run itself did not run does not count. */
static int silent_rank(struct run *r, double now, double timeout)
{
    struct run_relays *v = r->relays;
    double stopped = v->looked_at > 0 && now - v->looked_at > timeout / 2 ? now - v->looked_at : 0;
    int silent = -1;

    for (int i = 0; i < r->attempt.world; i++) {
        if (v->heard_at[i] <= 0)
            continue;
        v->heard_at[i] = v->heard_at[i] + stopped < now ? v->heard_at[i] + stopped : now;
        if (silent < 0 && now - v->heard_at[i] > timeout)
            silent = i;
    }
    v->looked_at = now;
    return silent;
}

double run_relays_silence(const struct run *r, int rank)
{
    const struct run_relays *v = r->relays;

    return v->heard_at && v->heard_at[rank] > 0 ? clock_seconds() - v->heard_at[rank] : -1;
}

tp_status run_relays_tick(struct run *r)
{
    struct run_relays *v = r->relays;
    double now = clock_seconds(), timeout = backend_node_timeout(&r->backend), waited;
    struct backend_cause cause;
    char text[80];
    int rank;

    if (v->from.fd < 0)
        return TP_OK;
    receive(r, now, &rank);
    if (rank >= 0)
        return rank_failed(r, rank);
    rank = silent_rank(r, now, timeout);
    if (rank < 0 || (all_are_silent(r, now, timeout) && backend_explains_silence(&r->backend)))
        return TP_OK;
    waited = now - v->heard_at[rank];
    snprintf(text, sizeof text, "no message for %.1f s", waited);
    cause = (struct backend_cause){ event_reason_name(REASON_NO_HEARTBEAT), text };
    return run_node_lost(r, r->attempt.rank[rank].node, &cause, waited);
}

void run_relays_hold(struct run *r)
{
    struct run_relays *v = r->relays;
    struct relay_message m;
    bool any = false;

    while (v->from.fd >= 0 && relay_receive(&m, &v->from, r->attempt.id))
        any = true;
    for (int i = 0; i < r->attempt.world; i++)
        v->heard_at[i] =
            0; /* nodes resume one by one, so messages of each are expected only after its first */
    v->looked_at = clock_seconds();
    if (any) /* the job was probably resumed */
        backend_look(&r->backend, false);
}
