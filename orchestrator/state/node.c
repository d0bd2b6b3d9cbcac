/* orchestrator/state/node.c - see orchestrator/state/node.h. */
#include "orchestrator/state/node.h"

#include <stdlib.h>
#include <string.h>

void node_list_free(struct node_list *l)
{
    free(l->node);
    arena_free(&l->arena);
    *l = (struct node_list){ 0 };
}

struct node *node_list_add(struct node_list *l, const char *name, int slots)
{
    struct node **grown = realloc(l->node, ((size_t)l->n + 1) * sizeof(struct node *));
    struct node *node = arena_alloc(&l->arena, sizeof *node);

    if (grown)
        l->node = grown;
    if (!grown || !node)
        return NULL;
    *node = (struct node){ .name = arena_strdup(&l->arena, name), .slots = slots };
    if (!node->name)
        return NULL;
    l->node[l->n++] = node;
    return node;
}

struct node *node_list_find(const struct node_list *l, const char *name)
{
    for (int i = 0; i < l->n; i++)
        if (strcmp(l->node[i]->name, name) == 0)
            return l->node[i];
    return NULL;
}

void node_list_set(struct node_list *l, struct node **node, int n)
{
    free(l->node);
    l->node = node;
    l->n = n;
}

int node_slots(const struct node *n)
{
    return n->slots > n->missing ? n->slots - n->missing : 0;
}

bool node_is_usable(const struct node *n, double now, double settle)
{
    if (n->down || n->removed || n->excluded_to > now || node_slots(n) == 0)
        return false;
    return settle <= 0 || n->back_since <= 0 || now - n->back_since >= settle;
}

void node_lose(struct node *n)
{
    n->down = true;
    n->back_since = 0;
}

void node_bring_back(struct node *n, double now)
{
    n->down = n->removed = n->suspect = false;
    n->unknown_since = 0;
    n->faults = 0;
    n->missing = 0;
    n->excluded_to = 0;
    n->back_since = now;
}

void node_list_forgive(struct node_list *l)
{
    for (int i = 0; i < l->n; i++) {
        l->node[i]->faults = 0;
        l->node[i]->excluded_to = l->node[i]->back_since = 0;
    }
}

void node_list_expect_gpus(struct node_list *l)
{
    for (int i = 0; i < l->n; i++)
        l->node[i]->missing = 0;
}

int node_list_ranks(const struct node_list *l, int64_t spares, double now, double settle)
{
    int64_t most = l->n - spares, used = 0;
    int ranks = 0;

    for (int i = 0; i < l->n && used < most; i++)
        if (node_is_usable(l->node[i], now, settle)) {
            ranks += node_slots(l->node[i]);
            used++;
        }
    return ranks;
}

json_t *node_list_json(const struct node_list *l, bool all)
{
    json_t *o = json_object();

    for (int i = 0; i < l->n; i++) {
        const struct node *n = l->node[i];

        if (all || n->down || n->faults || n->missing || n->excluded_to > 0 || n->back_since > 0)
            json_object_set_new(o, n->name,
                                json_pack("{s:b,s:I,s:i,s:f,s:f}", "down", n->down, "faults",
                                          (json_int_t)n->faults, "missing", n->missing,
                                          "excluded_to", n->excluded_to, "back_since",
                                          n->back_since));
    }
    return o;
}

void node_list_read(struct node_list *l, const json_t *json, double now, double exclude_for)
{
    for (int i = 0; i < l->n; i++) {
        struct node *n = l->node[i];
        const json_t *o = json_object_get(json, n->name);
        const json_t *faults = json_object_get(o, "faults");

        n->down = json_is_true(json_object_get(o, "down"));
        n->faults = json_integer_value(faults ? faults : json_object_get(o, "blame"));
        n->missing = (int)json_integer_value(json_object_get(o, "missing"));
        n->excluded_to = json_number_value(json_object_get(o, "excluded_to"));
        n->back_since = json_number_value(json_object_get(o, "back_since"));
        if (n->excluded_to > now + exclude_for)
            n->excluded_to = 0;
        if (n->back_since > now)
            n->back_since = 0;
    }
}
