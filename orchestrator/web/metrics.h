/*
 * orchestrator/web/metrics.h - the job in Prometheus' text format, version 0.0.4, for /metrics
 * and for a file that stays when the job has ended.
 */
#ifndef ORCHESTRATOR_WEB_METRICS_H
#define ORCHESTRATOR_WEB_METRICS_H

#include <jansson.h>
#include <stddef.h>

#include "core/err.h"

/* The metrics of a status object, as in `tp-run status --json`; malloc'ed, *n bytes. job: the value
 * of the label tp_job of each sample; NULL: no such label. NULL: no memory. */
char *metrics_text(size_t *n, const json_t *status, const char *job);

/* Replace a file by the metrics, with the label tp_job, so that a reader sees the old or the new
 * ones: for the textfile collector of Prometheus' node_exporter. TP_E_IO. */
tp_status metrics_write(const char *path, const json_t *status, struct tp_err *err);

#endif
