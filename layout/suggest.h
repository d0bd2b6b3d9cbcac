/*
 * layout/suggest.h - layouts that would work, near one that does not: for messages.
 *
 * The distance of two layouts grows with the ratio of their degrees and with the difference in
 * number of ranks; a change of sp, zero or vpp counts a little. What works is what the model's
 * tensors and layers allow, and what the caller requires besides (the batch, memory).
 */
#ifndef LAYOUT_SUGGEST_H
#define LAYOUT_SUGGEST_H

#include <stdbool.h>

#include "layout/spec.h"
#include "layout/tensor_kinds.h"

enum { SUGGEST_MAX = 3, SUGGEST_TEXT_MAX = 256 };

struct suggest {
    const struct spec *asked;
    int n_layers;
    struct tensor_kinds kinds;
    bool (*fits)(void *ctx, const struct spec *s); /* the caller's requirement; NULL: none */
    void *ctx;
};

/* Find the nearest specs that work, without `asked` itself, nearest first. When none of them has
 * the number of ranks that was asked for, the last one is replaced by the nearest that has it, if
 * there is one not too far away. Returns their number, at most SUGGEST_MAX. `fits` is called for at
 * most 2^14 specs, and only for those that the tensors and layers allow. */
int suggest_specs(struct spec out[SUGGEST_MAX], const struct suggest *q);

/* "tp4pp2, tp2", or "none", into buf, with the axes of `named` as spec_format_with. Returns buf. */
char *suggest_text(char buf[SUGGEST_TEXT_MAX], const struct spec *specs, int n, unsigned named);

#endif
