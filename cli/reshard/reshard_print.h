/*
 * cli/reshard/reshard_print.h - what tp-reshard says of a job: its plan, its result, as text or
 * JSON.
 */
#ifndef CLI_RESHARD_RESHARD_PRINT_H
#define CLI_RESHARD_RESHARD_PRINT_H

#include <stdio.h>

#include "cli/reshard/reshard_job.h"

/* Of all processes together. */
struct reshard_totals {
    int64_t bytes_read, bytes_written, windows;
    int64_t peak_bytes; /* of the process that needed most; foreseen, before the run */
    double seconds;
    int processes;
};

/* The plan, for people: what happens to which tensors, bytes, files, memory. */
void reshard_print_plan(FILE *f, const struct reshard_job *job,
                        const struct reshard_totals *totals);

/* What was done, for people. */
void reshard_print_result(FILE *f, const struct reshard_job *job,
                          const struct reshard_totals *totals);

/* One JSON object on stdout: the contract's fields and more; with dry_run the plan's figures. */
tp_status reshard_print_json(const struct reshard_job *job, const struct reshard_totals *totals,
                             bool dry_run, struct tp_err *err);

#endif
