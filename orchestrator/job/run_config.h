/*
 * orchestrator/job/run_config.h - how a step is run: the layout, and the settings that do not
 * change the result (microbatch size, recomputation).
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
    int64_t micro;            /* sequences in a microbatch; 0: as in the command */
    enum recompute recompute; /* RECOMPUTE_NONE: as in the command */
};

/* Write "tp2pp2", "tp2pp2 micro1" or "tp2pp2 micro1 recompute-full", which is also a key in the
 * run record. Returns buf. */
char *run_config_format(char buf[RUN_CONFIG_TEXT_MAX], const struct run_config *c);

/* Read what run_config_format wrote. TP_E_USAGE: the text is not that. */
tp_status run_config_parse(struct run_config *out, const char *text, struct tp_err *err);

/* The workload of the command, with the config's microbatch and recomputation if they are set. */
struct workload run_config_work(const struct workload *asked, const struct run_config *c);

bool run_config_same(const struct run_config *a, const struct run_config *b);

#endif
