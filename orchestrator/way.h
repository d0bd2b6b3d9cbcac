/*
 * orchestrator/way.h - how a job's step is run: the layout, and what may be chosen besides without
 * changing the result (size of a microbatch, recomputation).
 */
#ifndef ORCHESTRATOR_WAY_H
#define ORCHESTRATOR_WAY_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/recompute.h"
#include "layout/spec.h"
#include "layout/workload.h"

enum { WAY_TEXT_MAX = SPEC_TEXT_MAX + 48 };

struct way {
    struct spec spec;
    int64_t micro; /* sequences in a microbatch that tp-run asks for; 0: as the command has it */
    enum recompute recompute; /* what tp-run asks for; RECOMPUTE_NONE: as the command has it */
};

/* "tp2pp2", "tp2pp2 micro1", "tp2pp2 micro1 recompute-full": also a key in the journal. Returns
 * buf. */
char *way_format(char buf[WAY_TEXT_MAX], const struct way *w);

/* What way_format wrote. TP_E_USAGE: something else. */
tp_status way_parse(struct way *out, const char *text, struct tp_err *err);

/* What the command asks for, with the way's microbatch and recomputation where it has its own. */
struct workload way_work(const struct workload *asked, const struct way *w);

bool way_same(const struct way *a, const struct way *b);

#endif
