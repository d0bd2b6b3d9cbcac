/* trainer/step_graph.c - see trainer/step_graph.h. */
#include "trainer/step_graph.h"

#include <stddef.h>

void step_graph_init(struct step_graph *g, const struct step_graph_request *r)
{
    *g = (struct step_graph){ 0 };
    if (!device_has_graphs(r->device))
        g->why_not = "the device records no graphs";
    else if (!r->wanted)
        g->why_not = "of --cuda-graphs off";
    else if (r->has_experts)
        g->why_not = "in each layer the host waits for the rows of the experts";
}

void step_graph_close(struct step_graph *g, struct device *d)
{
    device_graph_close(d, g->graph);
    g->graph = NULL;
}

enum step_graph_mode step_graph_next(struct step_graph *g)
{
    if (g->why_not || g->copying || g->n_queued < STEP_GRAPH_FIRST) {
        g->n_queued += g->n_queued < STEP_GRAPH_FIRST;
        return STEP_GRAPH_QUEUE;
    }
    return g->graph ? STEP_GRAPH_REPLAY : STEP_GRAPH_RECORD;
}
