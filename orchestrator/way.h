/*
 * orchestrator/way.h - how a job's step is run: the layout, and what may be chosen besides without
 * changing the result (size of a microbatch, recomputation).
 */
#ifndef ORCHESTRATOR_WAY_H
#define ORCHESTRATOR_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/spec.h"

enum { WAY_TEXT_MAX = SPEC_TEXT_MAX + 48 };

/* What is not kept from the forward to the backward pass, in the order of what it costs. */
enum way_recompute { WAY_KEEP, WAY_SELECTIVE, WAY_FULL };

struct way {
    struct spec spec;
    int64_t micro; /* sequences in a microbatch that tp-run asks for; 0: as the command has it */
    int64_t
        recompute; /* enum way_recompute: what tp-run asks for; WAY_KEEP: as the command has it */
};

/* "full", "selective"; "" for WAY_KEEP. */
const char *way_recompute_name(int64_t recompute);

/* "tp2pp2", "tp2pp2 micro1", "tp2pp2 micro1 recompute-full": also a key in the journal. Returns
 * buf. */
char *way_format(char buf[WAY_TEXT_MAX], const struct way *w);

/* What way_format wrote. TP_E_USAGE: something else. */
tp_status way_parse(struct way *out, const char *text, struct tp_err *err);

bool way_same(const struct way *a, const struct way *b);

#endif
