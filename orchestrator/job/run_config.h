/*
 * orchestrator/job/run_config.h - how a job's step is run: the layout, and what may be chosen
 * besides without changing the result (size of a microbatch, recomputation).
 */
#ifndef ORCHESTRATOR_JOB_RUN_CONFIG_H
#define ORCHESTRATOR_JOB_RUN_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/recompute.h"
#include "layout/spec.h"
#include "layout/workload.h"

enum { RUN_CONFIG_TEXT_MAX = SPEC_TEXT_MAX + 48 };

struct run_config {
    struct spec spec;
    int64_t micro; /* sequences in a microbatch that tp-run asks for; 0: as the command has it */
    enum recompute recompute; /* what tp-run asks for; RECOMPUTE_NONE: as the command has it */
};

/* "tp2pp2", "tp2pp2 micro1", "tp2pp2 micro1 recompute-full": also a key in the journal. Returns
 * buf. */
char *run_config_format(char buf[RUN_CONFIG_TEXT_MAX], const struct run_config *w);

/* What run_config_format wrote. TP_E_USAGE: something else. */
tp_status run_config_parse(struct run_config *out, const char *text, struct tp_err *err);

/* What the command asks for, with the way's microbatch and recomputation where it has its own. */
struct workload run_config_work(const struct workload *asked, const struct run_config *w);

bool run_config_same(const struct run_config *a, const struct run_config *b);

#endif
