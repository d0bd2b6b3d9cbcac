/* orchestrator/backend/slurm/slurm_nodes.c - see orchestrator/backend/slurm/slurm_run.h: the
 * allocation's nodes: which exist, are lost, come back, or are drained. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static const double PROBE_PATIENCE_S = 10;
static const double UNKNOWN_S =
    60; /* a node registers within this time of the controller's start */

/* ---- the list ---- */

/* A list of nodes that is being built. */
struct slurm_node_order {
    struct node **node; /* malloc'ed */
    int n, room;
};

static bool contains(const struct slurm_node_order *o, const struct node *node)
{
    for (int i = 0; i < o->n; i++)
        if (o->node[i] == node)
            return true;
    return false;
}

/* Append the node of this name. It is new, or it has come back, if it was not in the allocation. */
static tp_status append(struct slurm *s, struct slurm_node_order *o, const char *name, bool fresh)
{
    const struct backend_host *h = s->host;
    struct node *node = node_list_find(h->nodes, name);
    bool was_there = node && !node->removed;

    if (o->n == o->room)
        return tp_fail(h->err, TP_E_NOMEM, "no room for %d nodes", o->n + 1);
    if (!node && !(node = node_list_add(h->nodes, name, slurm_tasks_per_node(s->host->job))))
        return tp_fail(h->err, TP_E_NOMEM, "no memory for a node");
    o->node[o->n++] = node;
    if (fresh)
        *node = (struct node){ .name = node->name, .slots = slurm_tasks_per_node(s->host->job) };
    if (fresh || was_there)
        return TP_OK;
    node_bring_back(node, clock_seconds());
    h->event(h->run, "node_back", slurm_reason_name(SLURM_NODE_ADDED),
             "Slurm has put it into the allocation", json_pack("{s:s}", "node", node->name));
    return TP_OK;
}

/* Append the nodes that have left the allocation, because ranks may have been on them. */
static void append_lost(const struct slurm *s, struct slurm_node_order *o, int n_before)
{
    const struct node_list *l = s->host->nodes;

    for (int i = 0; i < n_before && o->n < o->room; i++)
        if (!contains(o, l->node[i]))
            o->node[o->n++] = l->node[i];
}

static tp_status append_all(struct slurm *s, struct slurm_node_order *o, const char *names,
                            bool fresh)
{
    tp_status st = TP_OK;

    for (const char *p = names; st == TP_OK && *p; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n");
        char name[256];

        snprintf(name, sizeof name, "%.*s", (int)len, p);
        if (len > 0 && strcspn(name, " \t:") == strlen(name)) /* not a warning of scontrol */
            st = append(s, o, name, fresh);
        p += len;
    }
    if (st == TP_OK && o->n == 0)
        st = tp_fail(s->host->err, TP_E_IO, "scontrol show hostnames: no names in \"%.200s\"",
                     names);
    return st;
}

tp_status slurm_nodes_set(struct slurm *s, const char *names, bool fresh)
{
    const struct backend_host *h = s->host;
    const struct backend_cause cause =
        slurm_cause(SLURM_NODE_REMOVED, "Slurm has taken it out of the allocation");
    struct slurm_node_order o = { .room = h->nodes->n + 1 };
    int n, before = h->nodes->n;
    tp_status st;

    for (const char *p = names; *p; p++)
        o.room += *p == '\n';
    o.node = calloc((size_t)o.room, sizeof(struct node *));
    if (!o.node || o.room > 2 * JOB_NODES_MAX) {
        free(o.node);
        return tp_fail(h->err, TP_E_NOMEM, "no room for %d nodes", o.room);
    }
    if ((st = append_all(s, &o, names, fresh))) {
        free(o.node);
        return st;
    }
    n = o.n;
    if (!fresh || h->record->open)
        append_lost(s, &o, before);
    node_list_set(h->nodes, o.node, o.n);
    for (int i = n; st == TP_OK && i < h->nodes->n; i++) {
        struct node *node = h->nodes->node[i];

        if (!node->removed && !node->down && !h->node_reports(h->run, node))
            st = h->node_lost(h->run, node, &cause);
        node->removed = true; /* if its ranks report, they run on, but no new ones start there */
    }
    return st;
}

tp_status slurm_nodes_restore(struct slurm *s, const json_t *run_record)
{
    json_t *nodes = json_object_get(run_record, "nodes"), *v;
    const char *name;

    json_object_foreach(nodes, name, v)
    {
        if (!node_list_add(s->host->nodes, name, slurm_tasks_per_node(s->host->job)))
            return tp_fail(s->host->err, TP_E_NOMEM, "no memory for a node");
    }
    return TP_OK;
}

const char *slurm_nodes_excluded(const struct slurm *s, struct arena *arena)
{
    const struct node_list *l = s->host->nodes;
    const char *list = "";

    for (int i = 0; list && i < l->n; i++)
        if (l->node[i]->excluded_to > clock_seconds())
            list = arena_printf(arena, "%s%s%s", list, list[0] ? "," : "", l->node[i]->name);
    return list ? list : "";
}

int64_t slurm_nodes_missing(const struct slurm *s)
{
    const struct node_list *l = s->host->nodes;
    int64_t n = s->allocation.wanted;

    for (int i = 0; i < l->n; i++)
        n -= !l->node[i]->removed;
    return n > 0 ? n : 0;
}

/* ---- lost ---- */

/* Slurm alone says that the node is down, because its ranks report. Report that once. */
static void keep(const struct slurm *s, const struct node *node, const char *message)
{
    s->host->event(
        s->host->run, "allocation", slurm_reason_name(SLURM_NODE_STATE), message,
        json_pack("{s:s,s:s}", "result", slurm_result_name(SLURM_NODE_KEPT), "node", node->name));
}

/* Note that Slurm does not know the node's state, or does. Its controller does not when it was
 * started, until the node registers. True: it has not known the state for too long. */
static bool note_unknown(struct node *node, bool unknown)
{
    double now = clock_seconds();

    if (!unknown)
        node->unknown_since = 0;
    else if (node->unknown_since <= 0)
        node->unknown_since = now;
    return unknown && now - node->unknown_since >= UNKNOWN_S;
}

bool slurm_nodes_unknown(const struct slurm *s)
{
    const struct node_list *l = s->host->nodes;

    for (int i = 0; i < l->n; i++)
        if (l->node[i]->unknown_since > 0 && node_is_usable(l->node[i], clock_seconds(), 0))
            return true;
    return false;
}

static tp_status see_state(struct slurm *s, struct node *node, const char *text)
{
    const struct backend_host *h = s->host;
    struct backend_cause cause;
    char message[80];
    bool answers, was_suspect = node->suspect;
    enum slurm_node_state state = slurm_node_state(text, &answers);
    bool too_long = note_unknown(node, state == SLURM_NODE_UNKNOWN);

    if (node->removed)
        return TP_OK;
    node->suspect = state != SLURM_NODE_UP || !answers;
    if (node->down || state == SLURM_NODE_UP || (state == SLURM_NODE_UNKNOWN && !too_long) ||
        (state == SLURM_NODE_DRAINING && h->node_has_ranks(h->run, node)))
        return TP_OK;
    snprintf(message, sizeof message, "Slurm says it is %.40s", text);
    if (h->node_reports(h->run, node)) {
        if (!was_suspect)
            keep(s, node, message);
        return TP_OK;
    }
    cause = slurm_cause(SLURM_NODE_STATE, message);
    return h->node_lost(h->run, node, &cause);
}

tp_status slurm_nodes_see(struct slurm *s, const char *text)
{
    tp_status st = TP_OK;

    for (const char *p = text; *p && st == TP_OK; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n");
        char line[320], *bar;
        struct node *node;

        snprintf(line, sizeof line, "%.*s", (int)len, p);
        if ((bar = strchr(line, '|'))) {
            *bar = 0;
            node = node_list_find(s->host->nodes, line);
            st = node ? see_state(s, node, bar + 1) : TP_OK;
        }
        p += len;
    }
    return st;
}

/* ---- back ---- */

/* Whether the node is lost only because it sent no messages: Slurm still has it in the allocation
 * and reports no problem. Such a node has come back when it starts a process. */
static bool may_be_back(const struct node *node)
{
    return node->down && !node->removed && !node->suspect;
}

tp_status slurm_nodes_tick(struct slurm *s)
{
    const struct node_list *l = s->host->nodes;
    char *command[] = { "true", NULL };
    struct arena arena = { 0 };
    struct job_words words;
    double now = clock_seconds();
    int i = 0;
    tp_status st;

    if (now < s->nodes.next_probe || slurm_is_running(s, SLURM_COMMAND_PROBE))
        return TP_OK;
    while (i < l->n && !may_be_back(l->node[i]))
        i++;
    if (i == l->n)
        return TP_OK;
    s->nodes.next_probe = now + s->options->poll;
    s->nodes.probed = l->node[i];
    slurm_on_node(&words, s->allocation.job, l->node[i]->name, command, &arena);
    st = slurm_start(s, SLURM_COMMAND_PROBE, &words, PROBE_PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status slurm_probed(struct slurm *s, int exit_code)
{
    const struct backend_host *h = s->host;
    struct node *node = s->nodes.probed;

    s->nodes.probed = NULL;
    s->nodes.next_probe = clock_seconds() + s->options->poll;
    if (!node || exit_code || !may_be_back(node))
        return TP_OK;
    node->down = false; /* its faults stay */
    node->back_since = clock_seconds();
    h->event(h->run, "node_back", slurm_reason_name(SLURM_NODE_ANSWERS),
             "it starts processes again", json_pack("{s:s}", "node", node->name));
    return h->commit(h->run, "node back");
}

/* ---- drained ---- */

void slurm_node_excluded(void *state, const struct node *node, const char *message)
{
    struct slurm *s = state;
    struct arena arena = { 0 };
    struct job_words words;
    char why[160];

    if (!s->options->drain)
        return;
    snprintf(why, sizeof why, "Reason=tp-run %.40s: %.80s", s->host->job->name, message);
    snprintf(s->nodes.drained, sizeof s->nodes.drained, "%.63s", node->name);
    slurm_words(&words, &arena, "scontrol", "update",
                arena_printf(&arena, "NodeName=%s", node->name), "State=DRAIN", why, NULL);
    if (slurm_is_running(s, SLURM_COMMAND_DRAIN)) /* another drain runs: wait for this one */
        slurm_ask(NULL, &words, &s->client, PROBE_PATIENCE_S, &arena, s->host->err);
    else
        slurm_start(s, SLURM_COMMAND_DRAIN, &words, PROBE_PATIENCE_S);
    arena_free(&arena);
}

void slurm_node_drained(struct slurm *s, int exit_code)
{
    s->host->event(s->host->run, "node_drained", "", s->command[SLURM_COMMAND_DRAIN].last,
                   json_pack("{s:s,s:b}", "node", s->nodes.drained, "ok", exit_code == 0));
}
