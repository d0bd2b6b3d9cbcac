/* orchestrator/run_slurm_nodes.c - see orchestrator/run_slurm.h: the allocation's nodes. */
#include <stdlib.h>
#include <string.h>

#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/run_slurm.h"

static const double PROBE_PATIENCE_S = 10, GUARD_AGAIN_S = 10;

/* ---- which there are ---- */

/* The nodes in their new order, and where the old ones went. */
struct order {
    struct job_node *job;  /* malloc'ed, as job->nodes */
    struct run_node *book; /* malloc'ed, as book.nodes */
    int *to;               /* of each old node its new number, -1: none */
    int n;
};

static void order_free(struct order *o)
{
    free(o->job);
    free(o->book);
    free(o->to);
}

static int find(const struct job *job, const char *name, size_t n)
{
    for (int i = 0; i < job->n_nodes; i++)
        if (strncmp(job->nodes[i].name, name, n) == 0 && job->nodes[i].name[n] == 0)
            return i;
    return -1;
}

/* The next node of the allocation. It is new or back when it was not in it before. */
static tp_status add(struct run *r, struct order *o, const char *name, size_t len, bool fresh)
{
    const struct job *job = r->job;
    int old = find(job, name, len), n = o->n++;

    o->job[n] =
        (struct job_node){ .name = old >= 0 ? job->nodes[old].name
                                            : arena_printf(&r->kept, "%.*s", (int)len, name),
                           .slots = (int)slurm_options(job)->tasks_per_node };
    if (!o->job[n].name)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for a node's name");
    if (old >= 0)
        o->to[old] = n;
    if (fresh)
        return TP_OK;
    if (old >= 0 && !r->book.nodes[old].left) {
        o->book[n] = r->book.nodes[old];
        return TP_OK;
    }
    o->book[n].back_since = run_now();
    run_event(r, "node_back",
              json_pack("{s:s,s:s}", "node", o->job[n].name, "reason",
                        "Slurm has put it into the allocation"));
    return TP_OK;
}

/* Nodes that are not in the allocation any more: ranks may still be said to be on them. */
static void add_lost(const struct run *r, struct order *o)
{
    for (int i = 0; i < r->job->n_nodes; i++)
        if (o->to[i] < 0) {
            o->to[i] = o->n;
            o->job[o->n] = r->job->nodes[i];
            o->book[o->n++] = r->book.nodes[i];
        }
}

/* The new order is the run's. */
static void take(struct run *r, struct order *o)
{
    free(r->slurm->job->nodes);
    free(r->book.nodes);
    r->slurm->job->nodes = o->job;
    r->book.nodes = o->book;
    r->slurm->job->n_nodes = r->book.n_nodes = o->n;
    o->job = NULL;
    o->book = NULL;
    for (int i = 0; r->ranks && i < r->world; i++)
        if (r->ranks[i].node >= 0)
            r->ranks[i].node = o->to[r->ranks[i].node];
    if (r->fault.kind != FAULT_NONE && r->fault.node >= 0)
        r->fault.node = o->to[r->fault.node];
    if (r->slurm->probed >= 0)
        r->slurm->probed = o->to[r->slurm->probed];
}

static tp_status order_new(struct order *o, const struct run *r, const char *names,
                           struct tp_err *err)
{
    size_t most = (size_t)r->job->n_nodes + 1;

    for (const char *p = names; *p; p++)
        most += *p == '\n';
    o->n = 0;
    o->job = calloc(most, sizeof *o->job);
    o->book = calloc(most, sizeof *o->book);
    o->to = malloc(most * sizeof *o->to);
    if (!o->job || !o->book || !o->to || most > 2 * JOB_NODES_MAX)
        return tp_fail(err, TP_E_NOMEM, "no room for %zu nodes", most);
    memset(o->to, -1, most * sizeof *o->to);
    return TP_OK;
}

tp_status run_slurm_set_nodes(struct run *r, const char *names, bool fresh)
{
    struct order o = { 0 };
    int n;
    tp_status st = order_new(&o, r, names, &r->err);

    for (const char *p = names; st == TP_OK && *p; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n");

        if (len > 0 && strcspn(p, " \t:") >= len) /* not a warning of scontrol's */
            st = add(r, &o, p, len, fresh);
        p += len;
    }
    if (st == TP_OK && o.n == 0)
        st = tp_fail(&r->err, TP_E_IO, "scontrol show hostnames: no names in \"%.200s\"", names);
    n = o.n;
    if (st == TP_OK && (!fresh || r->ranks))
        add_lost(r, &o);
    if (st == TP_OK)
        take(r, &o);
    order_free(&o);
    for (int i = n; st == TP_OK && i < r->job->n_nodes; i++)
        if (!r->book.nodes[i].left) {
            r->book.nodes[i].left = true;
            if (!r->book.nodes[i].down)
                st = run_node_lost(r, i, "Slurm has taken it out of the allocation", 0);
        }
    return st;
}

/* Before the book is read: the nodes that it speaks of. */
tp_status run_slurm_restore_nodes(struct run *r, const json_t *last)
{
    json_t *nodes = json_object_get(json_object_get(last, "book"), "nodes"), *v;
    struct job *job = r->slurm->job;
    const char *name;

    job->nodes = calloc(json_object_size(nodes) + 1, sizeof *job->nodes);
    job->n_nodes = 0;
    if (!job->nodes)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for the nodes");
    json_object_foreach(nodes, name, v)
    {
        struct job_node *n = &job->nodes[job->n_nodes++];

        *n = (struct job_node){ .name = arena_strdup(&r->kept, name),
                                .slots = (int)slurm_options(job)->tasks_per_node };
        if (!n->name)
            return tp_fail(&r->err, TP_E_NOMEM, "no memory for a node's name");
    }
    return TP_OK;
}

void run_slurm_free_nodes(struct run *r)
{
    free(r->slurm->job->nodes);
    r->slurm->job->nodes = NULL;
    r->slurm->job->n_nodes = 0;
}

const char *run_slurm_excluded(const struct run *r, struct arena *arena)
{
    const char *list = "";

    for (int i = 0; list && i < r->job->n_nodes; i++)
        if (r->book.nodes[i].excluded_to > run_now())
            list = arena_printf(arena, "%s%s%s", list, list[0] ? "," : "", r->job->nodes[i].name);
    return list ? list : "";
}

/* ---- lost ---- */

static bool is_used(const struct run *r, int node)
{
    for (int i = 0; r->ranks && i < r->world; i++)
        if (r->ranks[i].node == node)
            return true;
    return false;
}

tp_status run_node_lost(struct run *r, int node, const char *reason, double waited)
{
    struct run_fault f = { .kind = FAULT_NODE, .rank = -1, .node = node, .waited = waited };
    bool runs =
        r->book.state == RUN_INIT || r->book.state == RUN_TRAIN || r->book.state == RUN_SAVE;

    r->book.nodes[node].down = true;
    r->book.nodes[node].back_since = 0;
    run_event(r, "node_lost",
              json_pack("{s:s,s:s,s:f}", "node", r->job->nodes[node].name, "reason", reason,
                        "seconds", waited));
    if (!runs || !is_used(r, node))
        return run_transition(r, r->book.state, "node lost");
    f.step = monitor_best_step(r->monitor);
    snprintf(f.reason, sizeof f.reason, "node %s is lost: %s", r->job->nodes[node].name, reason);
    return run_drain_fault(r, &f);
}

static bool begins_with_any(const char *text, const char *const *words)
{
    for (; *words; words++)
        if (strncasecmp(text, *words, strlen(*words)) == 0)
            return true;
    return false;
}

/* What Slurm thinks of a node that is in the allocation. */
static tp_status see_state(struct run *r, int node, const char *state)
{
    static const char *const dead[] = { "down",  "fail",    "error",  "unknown",
                                        "power", "no_resp", "reboot", NULL };
    static const char *const draining[] = { "drain", NULL };
    struct run_node *n = &r->book.nodes[node];
    char text[80];

    if (n->left)
        return TP_OK;
    snprintf(text, sizeof text, "Slurm says it is %.40s", state);
    n->suspect = begins_with_any(state, dead) || begins_with_any(state, draining) ||
                 strchr(state, '*') != NULL;
    if (!n->down &&
        (begins_with_any(state, dead) || (begins_with_any(state, draining) && !is_used(r, node))))
        return run_node_lost(r, node, text, 0);
    return TP_OK;
}

tp_status run_slurm_see_states(struct run *r, const char *text)
{
    tp_status st = TP_OK;

    for (const char *p = text; *p && st == TP_OK; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n"), name = strcspn(p, "|");
        int node = name < len ? find(r->job, p, name) : -1;
        char state[64];

        snprintf(state, sizeof state, "%.*s", node < 0 ? 0 : (int)(len - name - 1), p + name + 1);
        if (node >= 0)
            st = see_state(r, node, state);
        p += len;
    }
    return st;
}

/* ---- back ---- */

/* A node whose sign of life stopped, but which Slurm still has in the allocation and thinks well
 * of: it is back when it starts a process. */
tp_status run_slurm_probe(struct run *r)
{
    struct run_slurm *s = r->slurm;
    struct arena arena = { 0 };
    struct job_words words;
    double now = run_now();
    int node = 0;
    tp_status st;

    if (now < s->next_probe || run_slurm_busy(r, CHORE_PROBE))
        return TP_OK;
    while (node < r->job->n_nodes &&
           (!r->book.nodes[node].down || r->book.nodes[node].left || r->book.nodes[node].suspect))
        node++;
    if (node == r->job->n_nodes)
        return TP_OK;
    s->next_probe = now + slurm_options(r->job)->poll;
    s->probed = node;
    slurm_on_node(&words, (long)r->book.slurm_job, r->job->nodes[node].name, &arena, "true", NULL);
    st = run_slurm_start(r, CHORE_PROBE, &words, PROBE_PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status run_slurm_probed(struct run *r, int exit_code)
{
    int node = r->slurm->probed;
    struct run_node *n = node >= 0 ? &r->book.nodes[node] : NULL;

    r->slurm->probed = -1;
    r->slurm->next_probe = run_now() + slurm_options(r->job)->poll;
    if (!n || exit_code || !n->down || n->left || n->suspect)
        return TP_OK;
    n->down = false;
    n->back_since = run_now();
    run_event(r, "node_back",
              json_pack("{s:s,s:s}", "node", r->job->nodes[node].name, "reason",
                        "it starts processes again"));
    return run_transition(r, r->book.state, "node back");
}

/* In a batch job: somebody on another node to go on if this one dies. See
 * orchestrator/backend/slurm/slurm_standby.h. */
tp_status run_slurm_post_guard(struct run *r)
{
    struct run_slurm *s = r->slurm;
    const char *here = getenv("SLURMD_NODENAME"), *slash;
    struct arena arena = { 0 };
    struct job_words words;
    int node = r->job->n_nodes - 1;
    tp_status st;

    if (!here || s->inside != r->book.slurm_job || r->book.slurm_own || run_now() < s->next_guard ||
        run_slurm_busy(r, CHORE_GUARD))
        return TP_OK;
    while (node >= 0 && (r->book.nodes[node].down || r->book.nodes[node].left ||
                         strcmp(r->job->nodes[node].name, here) == 0))
        node--;
    s->next_guard = run_now() + GUARD_AGAIN_S;
    if (node < 0)
        return TP_OK;
    slash = strrchr(r->job->path, '/');
    slurm_on_node(&words, s->inside, r->job->nodes[node].name, &arena, r->self, "guard",
                  arena_printf(&arena, "%s/%s", r->job->dir, slash ? slash + 1 : r->job->path),
                  NULL);
    st = run_slurm_start(r, CHORE_GUARD, &words, 0);
    arena_free(&arena);
    return st;
}

/* ---- drained ---- */

void run_slurm_drain(struct run *r, int node, const char *reason)
{
    struct arena arena = { 0 };
    struct job_words words;
    char why[160];

    snprintf(why, sizeof why, "Reason=tp-run %.40s: %.80s", r->job->name, reason);
    snprintf(r->slurm->drained, sizeof r->slurm->drained, "%.63s", r->job->nodes[node].name);
    slurm_words(&words, &arena, "scontrol", "update",
                arena_printf(&arena, "NodeName=%s", r->job->nodes[node].name), "State=DRAIN", why,
                NULL);
    if (run_slurm_busy(r, CHORE_DRAIN))
        slurm_ask(NULL, &words, r->job->state, PROBE_PATIENCE_S, &arena,
                  &r->err); /* two at once: seldom */
    else
        run_slurm_start(r, CHORE_DRAIN, &words, PROBE_PATIENCE_S);
    arena_free(&arena);
}
