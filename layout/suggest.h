/*
 * layout/suggest.h - layouts near one that does not work, that do: for messages.
 *
 * Near is what changes little: degrees by their ratio, sp, zero and vpp by a step each; a change of
 * the number of ranks counts on top. What works is what the model's tensors and layers allow, and
 * whatever else the caller asks for (a batch that deals evenly, memory).
 */
#ifndef LAYOUT_SUGGEST_H
#define LAYOUT_SUGGEST_H

#include <stdbool.h>
#include <stddef.h>

#include "layout/layout.h"

enum { SUGGEST_MAX = 3, SUGGEST_TEXT_MAX = 256 };

struct suggest {
    const struct spec *asked;
    int n_layers;
    const struct tensor *tensors;
    int n_tensors;
    bool (*fits)(void *ctx, const struct spec *s); /* besides legality; NULL: nothing */
    void *ctx;
};

/* The nearest that work, never `asked` itself. When none of them has as many ranks as were asked
 * for, the last is the nearest that has, if there is one not too far. Returns how many, at most
 * SUGGEST_MAX. */
int suggest_specs(struct spec out[SUGGEST_MAX], const struct suggest *q);

/* "tp4pp2, tp2"; "none". Returns buf. */
char *suggest_text(char buf[SUGGEST_TEXT_MAX], const struct spec *specs, int n);

#endif
