/*
 * orchestrator/state/node.h - the nodes of a run, and what is known about them.
 *
 * The address of a struct node does not change while its list exists, even if the node leaves the
 * list, because ranks and faults point to it. Times are clock_seconds.
 */
#ifndef ORCHESTRATOR_STATE_NODE_H
#define ORCHESTRATOR_STATE_NODE_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

struct node {
    const char *name;
    int slots;          /* ranks that it can hold */
    int missing;        /* of them, those whose GPU is missing */
    bool down;          /* lost, or taken away */
    int64_t faults;     /* of its ranks, since it was last excluded */
    double excluded_to; /* end of its exclusion, 0: it is not excluded */
    double back_since;  /* when it came back, 0: it was never away */
    /* What the backend knows; it is not saved when tp-run ends. */
    bool removed;         /* taken out of the allocation */
    bool suspect;         /* down, without an answer, or drained */
    double unknown_since; /* since when the scheduler does not know its state, 0: it does */
};

struct node_list {
    struct node **node; /* in the order in which ranks are placed; malloc'ed */
    int n;
    struct arena arena; /* holds the nodes and their names */
};

void node_list_free(struct node_list *l);

/* Append a new node. NULL: no memory. */
struct node *node_list_add(struct node_list *l, const char *name, int slots);

/* The node of this name, NULL: it is not in the list. */
struct node *node_list_find(const struct node_list *l, const char *name);

/* Replace the list by these n nodes of node_list_add. Takes over the malloc'ed array. */
void node_list_set(struct node_list *l, struct node **node, int n);

/* The ranks that it can hold now. */
int node_slots(const struct node *n);

/* Whether ranks can be placed on it now: it is not down, removed or excluded. settle: seconds that
 * must have passed since it came back; 0: none. */
bool node_is_usable(const struct node *n, double now, double settle);

/* Note that a node is lost, or that it has come back with all of its slots and no faults. */
void node_lose(struct node *n);
void node_bring_back(struct node *n, double now);

/* Forget all faults and exclusions. */
void node_list_forgive(struct node_list *l);

/* Forget which slots have no GPU. */
void node_list_expect_gpus(struct node_list *l);

/* The slots of the usable nodes. At most n - spares nodes count, because spares only replace lost
 * nodes. */
int node_list_ranks(const struct node_list *l, int64_t spares, double now, double settle);

/* An object from name to state; all: also of nodes about which there is nothing to say. */
json_t *node_list_json(const struct node_list *l, bool all);

/* Set the state of the listed nodes from such an object. Times after `now` are of an earlier boot,
 * so they are forgotten. Exclusions end at most `exclude_for` seconds from now. */
void node_list_read(struct node_list *l, const json_t *json, double now, double exclude_for);

#endif
