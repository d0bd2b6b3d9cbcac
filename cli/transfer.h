/*
 * cli/transfer.h - what tp-ckpt export and import do alike: tensors from one port to another within
 * --mem, with a line of progress, proved by their digests.
 */
#ifndef CLI_TRANSFER_H
#define CLI_TRANSFER_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "layout/dtype.h"
#include "reshard/engine.h"

struct transfer {
    struct move move; /* its tensors, ports and jobs are the caller's to fill in; memory is not */
    struct move_plan *plan;
    struct move_stats stats;
    int digests_equal; /* tensors that were compared: those that were not cast */
};

/* Read --dtype: text is NULL when it was not given, and then *given is false. */
tp_status transfer_dtype(enum dtype *dtype, bool *given, const char *text, struct tp_err *err);

/* Plan within mem_bytes of resident memory; later_bytes as in rss_budget. t->stats is what will be
 * done. */
tp_status transfer_plan(struct transfer *t, int64_t mem_bytes, int64_t later_bytes,
                        struct tp_err *err);

/* Move, with progress as `doing`. */
tp_status transfer_run(struct transfer *t, const char *doing, struct tp_err *err);

/* Have `compare` hold what was written of every tensor that was not cast against what was read. */
tp_status transfer_compare(struct transfer *t,
                           tp_status (*compare)(void *ctx, int tensor, struct tp_err *err),
                           void *ctx, struct tp_err *err);

/* Print "checked  WHAT, 3 tensors, ..." for people. what may be "". */
void transfer_print_checked(const struct transfer *t, const char *what);

void transfer_free(struct transfer *t);

#endif
