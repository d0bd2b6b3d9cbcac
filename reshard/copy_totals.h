/*
 * reshard/copy_totals.h - what an import, an export or a conversion between formats did.
 */
#ifndef RESHARD_COPY_TOTALS_H
#define RESHARD_COPY_TOTALS_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/control.h"
#include "layout/spec.h"
#include "reshard/copy_job.h"

struct copy_totals {
    struct spec spec; /* of what was written */
    int64_t step;     /* -1: weights alone, which are of no step */
    int n_tensors, boxes;
    int64_t bytes_read, bytes_written, peak_bytes;
    bool checksums;    /* of the source, and all that cover what was read agree */
    int digests_equal; /* tensors whose digest is the same at both ends */
    int casts;     /* tensors that were cast, and have the digest of the cast of what was read */
    int64_t tiles; /* that the tensors were cut into */
    int64_t resumed_tiles;  /* completed by interrupted runs */
    int64_t damaged_chunks; /* of those; they were written again */
    int processes;          /* that shared the work */
};

/* Of a plan that is not executed: what it would read and write, and the most memory. */
void copy_totals_plan(struct copy_totals *t, const struct copy_job *copy);

/* Add up what the processes did (NULL: this one alone): bytes and tiles are of all, peak_bytes of
 * the process that needed most. Collective. */
tp_status copy_totals_add_up(struct copy_totals *t, struct comm_control *control,
                             struct tp_err *err);

#endif
