/* orchestrator/run_requests.c - requests from other terminals: status, stop, resize, node. */
#include <stdio.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/text.h"
#include "orchestrator/run_slurm.h"
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

static json_t *stop(struct run *r)
{
    r->book.stop = true;
    run_helper_stop(r);
    if (r->book.open && (r->asked = run_drain_softly(r, "asked to stop")))
        return refuse(r->err.msg, 3);
    if (run_slurm_is_paused(r))
        return accept("Slurm has suspended the job: when it is resumed it saves and ends");
    return accept("the job saves at its next step and ends");
}

static json_t *resize(struct run *r, const json_t *request)
{
    const char *to = json_string_value(json_object_get(request, "to"));
    struct plan_candidate c, *list = NULL;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char spec[SPEC_TEXT_MAX], text[160];
    int n = 0;

    if (!to || strlen(to) >= SPEC_TEXT_MAX)
        return refuse("resize to what?", 2);
    if (strcmp(to, "auto") == 0)
        to = "";
    if (candidates_find(&list, &n, r->job, &r->book, run_free_ranks(r, false), &arena, &err) ||
        candidates_pick(&c, list, n, to, &err)) {
        arena_free(&arena);
        return refuse(err.msg, tp_exit_code(err.status));
    }
    arena_free(&arena);
    snprintf(r->book.resize, sizeof r->book.resize, "%s", to);
    spec_format(spec, &c.way.spec);
    if (r->book.open && run_config_same(&c.way, &r->book.way)) {
        snprintf(text, sizeof text, "it runs at %s already", spec);
        return accept(text);
    }
    r->book.new_layout = true;
    snprintf(text, sizeof text, "asked to run at %s", spec);
    if (r->book.open && (r->asked = run_drain_softly(r, text)))
        return refuse(r->err.msg, 3);
    snprintf(text, sizeof text, "the job saves at its next step and goes on at %s", spec);
    return accept(text);
}

/* A node is gone: so are its ranks. */
static json_t *lose_node(struct run *r, int node)
{
    struct run_fault f = { .kind = FAULT_NODE, .rank = -1, .node = node };
    bool used = false;

    r->book.nodes[node].down = true;
    r->book.nodes[node].back_since = 0;
    run_event(r, "node_lost", json_pack("{s:s}", "node", r->job->nodes[node].name));
    for (int i = 0; r->ranks && i < r->world; i++)
        if (r->ranks[i].node == node) {
            used = true;
            if (r->ranks[i].pidfd >= 0)
                syscall(SYS_pidfd_send_signal, r->ranks[i].pidfd, SIGKILL, NULL, 0);
        }
    snprintf(f.reason, sizeof f.reason, "node %s is lost", r->job->nodes[node].name);
    if (used && r->book.open && r->book.state != RUN_DRAIN)
        r->asked = run_drain_fault(r, &f);
    else
        r->asked = run_transition(r, r->book.state, "node lost");
    return accept(f.reason);
}

static json_t *node(struct run *r, const json_t *request)
{
    const char *name = json_string_value(json_object_get(request, "node"));
    bool up = json_is_true(json_object_get(request, "up"));
    int i = 0;

    if (r->slurm)
        return refuse("Slurm's nodes are taken away by Slurm: scontrol update NodeName=... "
                      "State=DRAIN Reason=...",
                      2);
    while (i < r->job->n_nodes && (!name || strcmp(r->job->nodes[i].name, name) != 0))
        i++;
    if (i == r->job->n_nodes)
        return refuse("the job file has no node of that name", 2);
    if (!up)
        return lose_node(r, i);
    r->book.nodes[i] = (struct run_node){ .back_since = run_now() };
    run_event(r, "node_back", json_pack("{s:s}", "node", name));
    if ((r->asked = run_transition(r, r->book.state, "node back")))
        return refuse(r->err.msg, 3);
    return accept("it counts again once it has stayed for restart.settle");
}

json_t *run_answer(void *ctx, const json_t *request)
{
    struct run *r = ctx;
    const char *verb = json_string_value(json_object_get(request, "verb"));

    if (verb && strcmp(verb, "status") == 0)
        return json_pack("{s:b,s:o}", "ok", 1, "status", run_status(r));
    if (verb && strcmp(verb, "stop") == 0)
        return stop(r);
    if (verb && strcmp(verb, "resize") == 0)
        return resize(r, request);
    if (verb && strcmp(verb, "node") == 0)
        return node(r, request);
    return refuse("no such request", 2);
}
