/*
 * cli/transfer.h - what tp-ckpt export and import do alike: tensors from one endpoint to another
 * within
 * --mem, with a line of progress, proved by their digests.
 */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/dtype.h"
#include "reshard/engine/transfer.h"

struct cli_transfer {
    struct transfer
        move; /* its tensors, endpoints and jobs are the caller's to fill in; memory is not */
    struct transfer_plan *plan;
    struct transfer_stats stats;
    int digests_equal; /* tensors that were compared: those that were not cast */
};

/* Read --dtype: text is NULL when it was not given, and then *given is false. */
tp_status transfer_dtype(enum dtype *dtype, bool *given, const char *text, struct tp_err *err);

/* Plan within mem_bytes of resident memory; later_bytes as in rss_budget. t->stats is what will be
 * done. */
tp_status transfer_plan(struct cli_transfer *t, int64_t mem_bytes, int64_t later_bytes,
                        struct tp_err *err);

/* Move, with progress as `doing`. */
tp_status transfer_run(struct cli_transfer *t, const char *doing, struct tp_err *err);

/* Have `compare` hold what was written of every tensor that was not cast against what was read. */
tp_status transfer_compare(struct cli_transfer *t,
                           tp_status (*compare)(void *ctx, int tensor, struct tp_err *err),
                           void *ctx, struct tp_err *err);

/* Print "checked  WHAT, 3 tensors, ..." for people. what may be "". */
void transfer_print_checked(const struct cli_transfer *t, const char *what);

void transfer_free(struct cli_transfer *t);

#endif
