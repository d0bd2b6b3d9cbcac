/*
 * layout/recompute.h - what is not kept from the forward to the backward pass of a layer, and is
 * run forward again instead (Korthikanti et al. 2022, arXiv 2205.05198, sections 4 and 5). The
 * result is the same bits; memory and time differ: layout/memory.h, orchestrator/cost.h.
 */
#ifndef LAYOUT_RECOMPUTE_H
#define LAYOUT_RECOMPUTE_H

#include <stdbool.h>

/* In the order of what is run again; each keeps less than those before it. */
enum recompute {
    RECOMPUTE_NONE,      /* all is kept */
    RECOMPUTE_SELECTIVE, /* all but what attention leaves, from the q, k and v that are kept */
    RECOMPUTE_FULL,      /* a layer's input alone is kept, and all of the layer run again */
    RECOMPUTE_COUNT,
};

/* "none", "selective", "full": what tp-train --recompute takes. */
const char *recompute_name(enum recompute r);

/* Read one of these. False: none of them; *out unchanged. */
bool recompute_parse(enum recompute *out, const char *text);

#endif
