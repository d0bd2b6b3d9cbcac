/* orchestrator/run_nodes.c - see run_state.h: nodes that are usable, lost, excluded. */
#include <math.h>
#include <stdio.h>

#include "core/clock.h"
#include "orchestrator/run_state.h"

int run_free_ranks(const struct run *r, bool settled)
{
    return node_list_ranks(&r->nodes, r->job->restart.spares, clock_seconds(),
                           settled ? r->job->restart.settle : 0);
}

int run_usable_nodes(const struct run *r)
{
    double now = clock_seconds();
    int n = 0;

    for (int i = 0; i < r->nodes.n; i++)
        n += node_is_usable(r->nodes.node[i], now, 0);
    return n;
}

tp_status run_node_lost(struct run *r, struct node *node, const struct backend_cause *cause,
                        double waited)
{
    enum run_state s = r->record.state;
    struct attempt_fault f = attempt_fault(FAULT_NODE, REASON_NODE_LOST, "node %s is lost: %s",
                                           node->name, cause->message);
    const struct monitor *m = run_monitor(r);

    node_lose(node);
    run_event_of_backend(r, event_name(EVENT_NODE_LOST), cause->reason, cause->message,
                         json_pack("{s:s,s:f}", "node", node->name, "seconds", waited));
    attempt_kill_on(&r->attempt, node);
    if ((s != RUN_INIT && s != RUN_TRAIN && s != RUN_SAVE) || !attempt_uses(&r->attempt, node))
        return run_transition(r, s, "node lost");
    f.waited = waited;
    f.step = m ? monitor_best_step(m) : -1;
    return run_drain_fault(r, &f);
}

static bool rank_reports(const struct run *r, int rank)
{
    const struct monitor *m = run_monitor(r);
    struct heartbeat_status status;
    double silence = run_relays_silence(r, rank);

    if (silence >= 0)
        return silence <= backend_node_timeout(&r->backend);
    return m && monitor_present(m, rank, &status) &&
           monitor_silence(m, rank, clock_ns()) <= monitor_deadline(m);
}

bool run_node_reports(const struct run *r, const struct node *node)
{
    const struct attempt *a = &r->attempt;

    for (int i = 0; i < a->world; i++)
        if (a->rank[i].node == node && !a->rank[i].gone &&
            (r->record.state == RUN_DRAIN || rank_reports(r, i)))
            return true;
    return false;
}

void run_exclude_node(struct run *r, struct node *n, enum event_reason reason, const char *what,
                      const char *fault)
{
    double seconds = r->job->restart.exclude_for;
    char text[ATTEMPT_TEXT_MAX];

    n->faults = 0;
    n->excluded_to = clock_seconds() + seconds;
    n->back_since = n->excluded_to;
    backend_node_excluded(&r->backend, n, fault);
    snprintf(text, sizeof text, "%s for %.0f s", what, seconds);
    run_event(r, EVENT_NODE_LOST, reason, text,
              json_pack("{s:s,s:f}", "node", n->name, "seconds", seconds));
}

/* Whether a layout fits the nodes that can be used, without this one. A scheduler may have others.
 */
static bool can_do_without(const struct run *r, struct node *n)
{
    const double excluded_to = n->excluded_to;
    struct plan_candidate c;
    struct tp_err ignored;
    bool can;

    if (r->backend.table->wants_nodes)
        return true;
    n->excluded_to = INFINITY;
    can = run_select(r, &c, run_free_ranks(r, false), &ignored) == TP_OK;
    n->excluded_to = excluded_to;
    return can;
}

bool run_count_fault(struct run *r, const struct attempt_fault *f)
{
    struct node *n = f->node;

    if (!n || n->down || f->reason == REASON_ROOT_FULL ||
        (f->kind != FAULT_RANK && f->kind != FAULT_HANG && f->kind != FAULT_EXIT))
        return false;
    if (++n->faults < r->job->restart.blame || !can_do_without(r, n))
        return false;
    run_exclude_node(r, n, REASON_REPEATED_FAULTS, "excluded after repeated faults", f->message);
    return true;
}

bool run_readmit_nodes(struct run *r)
{
    struct plan_candidate c;
    struct tp_err ignored;
    const double now = clock_seconds();
    const int ranks = node_list_ranks(&r->nodes, r->job->restart.spares, INFINITY, 0);

    if (r->backend.table->wants_nodes || ranks <= run_free_ranks(r, false) ||
        run_select(r, &c, ranks, &ignored))
        return false;
    for (int i = 0; i < r->nodes.n; i++) {
        struct node *n = r->nodes.node[i];

        if (n->excluded_to <= now || n->down)
            continue;
        n->excluded_to = 0;
        n->back_since = now;
        run_event(r, EVENT_NODE_BACK, REASON_NODE_NEEDED,
                  "no layout fits the other nodes, so it is used before its exclusion ends",
                  json_pack("{s:s}", "node", n->name));
    }
    return true;
}

json_t *run_nodes_json(const struct run *r)
{
    json_t *all = json_array();
    double now = clock_seconds();

    for (int i = 0; i < r->nodes.n; i++) {
        const struct node *n = r->nodes.node[i];
        const char *state = n->down || node_slots(n) == 0 ? "down"
                            : n->excluded_to > now        ? "excluded"
                                                          : "up";
        int ranks = 0;

        for (int k = 0; k < r->attempt.world; k++)
            ranks += r->attempt.rank[k].node == n;
        json_array_append_new(all, json_pack("{s:s,s:i,s:s,s:i,s:I}", "node", n->name, "slots",
                                             node_slots(n), "state", state, "ranks", ranks,
                                             "faults", (json_int_t)n->faults));
    }
    return all;
}
