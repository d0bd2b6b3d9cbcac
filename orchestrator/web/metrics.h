/*
 * orchestrator/web/metrics.h - the job in Prometheus' text format, version 0.0.4, for /metrics.
 */
#ifndef ORCHESTRATOR_WEB_METRICS_H
#define ORCHESTRATOR_WEB_METRICS_H

#include <jansson.h>
#include <stddef.h>

/* The metrics of a status object, as in `tp-run status --json`; malloc'ed, *n bytes. NULL: no
 * memory. */
char *metrics_text(size_t *n, const json_t *status);

#endif
