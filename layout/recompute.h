/*
 * layout/recompute.h - activation recomputation: what a layer does not keep from the forward to the
 * backward pass, and computes again instead (Korthikanti et al. 2022, arXiv 2205.05198, sections 4
 * and 5). Results have the same bits; memory and time differ.
 */
#ifndef LAYOUT_RECOMPUTE_H
#define LAYOUT_RECOMPUTE_H

#include <stdbool.h>

/* Each value keeps less than the one before it, and computes more again. */
enum recompute {
    RECOMPUTE_NONE,      /* keep everything */
    RECOMPUTE_SELECTIVE, /* compute attention again, from query, key and value */
    RECOMPUTE_FULL,      /* compute the whole layer again, from its input */
    RECOMPUTE_COUNT,
};

/* The values of tp-train --recompute: "none", "selective", "full". */
const char *recompute_name(enum recompute r);

/* Read such a value. False: it is unknown, and *out is unchanged. */
bool recompute_parse(enum recompute *out, const char *text);

#endif
