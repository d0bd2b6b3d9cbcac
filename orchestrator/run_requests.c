/* orchestrator/run_requests.c - see run_state.h: requests from other terminals: status, stop,
 * resize, node. */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/text.h"
#include "orchestrator/plan/candidates.h"
#include "orchestrator/run_state.h"

static json_t *refuse(const char *why, int exit_code)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%s", why);
    return json_pack("{s:b,s:s,s:i}", "ok", 0, "error", text_clean(text), "exit", exit_code);
}

static json_t *accept(const char *what)
{
    return json_pack("{s:b,s:s}", "ok", 1, "text", what);
}

/* attempt: the first one that runs at the layout. */
static json_t *accept_layout(const char *what, const char *layout, int64_t attempt)
{
    return json_pack("{s:b,s:s,s:s,s:I}", "ok", 1, "text", what, "layout", layout, "attempt",
                     (json_int_t)attempt);
}

/* Act on a request to save and stop, which the record has already. The record is written before
 * anybody hears that the request is accepted, so that it outlives this tp-run. */
static tp_status drain(struct run *r, enum event_reason reason, const char *message)
{
    if (r->record.open && r->record.state != RUN_DRAIN)
        return run_drain_softly(r, event_reason_name(reason), message);
    return run_transition(r, r->record.state, event_reason_name(reason));
}

static json_t *stop(struct run *r, tp_status *st)
{
    r->record.stop = true;
    run_helper_stop(r, false);
    *st = drain(r, REASON_ASKED_TO_STOP, "asked to stop");
    if (*st)
        return refuse(r->err.msg, 3);
    if (backend_is_paused(&r->backend))
        return accept("the job is suspended: when it is resumed it saves and ends");
    return accept("the job saves at its next step and ends");
}

/* Select the layout that the job would have now if `to` were requested. */
static tp_status select_layout(struct plan_candidate *out, const struct run *r, const char *to,
                               struct tp_err *err)
{
    struct plan_candidate *list = NULL;
    struct arena arena = { 0 };
    int n = 0;
    tp_status st = candidates_find(&list, &n, r->job, &r->record.findings, run_free_ranks(r, false),
                                   &arena, err);

    if (st == TP_OK)
        st = candidates_pick(out, list, n, to, err);
    arena_free(&arena);
    return st;
}

static json_t *resize(struct run *r, const json_t *request, tp_status *st)
{
    const char *to = json_string_value(json_object_get(request, "to"));
    struct plan_candidate c;
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX], text[160];

    if (!to || strlen(to) >= SPEC_TEXT_MAX)
        return refuse("expected a layout, a number of ranks, or auto", 2);
    if (strcmp(to, "auto") == 0)
        to = "";
    if (select_layout(&c, r, to, &err))
        return refuse(err.msg, tp_exit_code(err.status));
    snprintf(r->record.resize, sizeof r->record.resize, "%s", to);
    spec_format(spec, &c.config.spec);
    if (r->record.open && r->record.state != RUN_DRAIN &&
        run_config_same(&c.config, &r->record.config)) {
        snprintf(text, sizeof text, "it runs at %s already", spec);
        *st = run_transition(r, r->record.state, event_reason_name(REASON_RESIZE));
        if (*st)
            return refuse(r->err.msg, 3);
        return accept_layout(text, spec, r->record.attempt);
    }
    r->record.relaunch = true;
    snprintf(text, sizeof text, "asked to run at %s", spec);
    *st = drain(r, REASON_RESIZE, text);
    if (*st)
        return refuse(r->err.msg, 3);
    snprintf(text, sizeof text, "the job saves at its next step and continues at %s", spec);
    return accept_layout(text, spec, r->record.attempt + 1);
}

static json_t *take_node(struct run *r, struct node *node, tp_status *st)
{
    const struct backend_cause cause = { event_reason_name(REASON_NODE_TAKEN_AWAY),
                                         "taken away by tp-run node" };
    char text[160];

    if (node->down) {
        snprintf(text, sizeof text, "node %s is down already", node->name);
        return accept(text);
    }
    *st = run_node_lost(r, node, &cause, 0);
    snprintf(text, sizeof text, "node %s is lost", node->name);
    return *st ? refuse(r->err.msg, 3) : accept(text);
}

static json_t *give_node(struct run *r, struct node *node, tp_status *st)
{
    char text[160];

    if (!node->down && !node->faults && !node->missing && !node->excluded_to) {
        snprintf(text, sizeof text, "node %s is up already", node->name);
        return accept(text);
    }
    node_bring_back(node, clock_seconds());
    run_event(r, EVENT_NODE_BACK, REASON_NODE_GIVEN_BACK, "given back by tp-run node",
              json_pack("{s:s}", "node", node->name));
    *st = run_transition(r, r->record.state, "node back");
    return *st ? refuse(r->err.msg, 3) : accept("the node is used again after restart.settle");
}

enum { NODES_LISTED = 8 };

/* There is no node of this name: which ones there are. */
static json_t *refuse_node(const struct node_list *l, const char *name)
{
    char text[TP_ERR_MAX];
    size_t n;

    snprintf(text, sizeof text, "the job has no node '%.100s'; its nodes are", name);
    for (int i = 0; i < l->n && i < NODES_LISTED; i++) {
        n = strlen(text);
        snprintf(text + n, sizeof text - n, "%s %.80s", i ? "," : "", l->node[i]->name);
    }
    n = strlen(text);
    if (l->n > NODES_LISTED)
        snprintf(text + n, sizeof text - n, ", and %d more", l->n - NODES_LISTED);
    return refuse(text, 2);
}

static json_t *node(struct run *r, const json_t *request, tp_status *st)
{
    const char *name = json_string_value(json_object_get(request, "node"));
    struct node *node = name ? node_list_find(&r->nodes, name) : NULL;

    if (r->backend.table->node_verb_refusal)
        return refuse(r->backend.table->node_verb_refusal, 2);
    if (!node)
        return refuse_node(&r->nodes, name ? name : "");
    return json_is_true(json_object_get(request, "up")) ? give_node(r, node, st)
                                                        : take_node(r, node, st);
}

json_t *run_answer(struct run *r, const json_t *request, tp_status *st)
{
    const char *verb = json_string_value(json_object_get(request, "verb"));

    if (verb && strcmp(verb, "status") == 0)
        return json_pack("{s:b,s:o}", "ok", 1, "status", run_status(r));
    if (verb && strcmp(verb, "stop") == 0)
        return stop(r, st);
    if (verb && strcmp(verb, "resize") == 0)
        return resize(r, request, st);
    if (verb && strcmp(verb, "node") == 0)
        return node(r, request, st);
    return refuse("there is no such request", 2);
}
