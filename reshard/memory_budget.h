/*
 * reshard/memory_budget.h - how much of a memory limit is left for buffers.
 *
 * The limit is on resident memory as the kernel counts it; page cache that is not mapped does not
 * count.
 */
#ifndef RESHARD_MEMORY_BUDGET_H
#define RESHARD_MEMORY_BUDGET_H

#include <stdint.h>

#include "core/err.h"

struct memory_budget {
    int64_t base_bytes;   /* resident without buffers: now, and what will be added */
    int64_t buffer_bytes; /* left for buffers */
};

/* Divide limit_bytes. later_bytes is what will become resident later, without buffers and the
 * stacks of `threads`. TP_E_BUDGET says how much is needed at least. */
tp_status memory_budget_make(struct memory_budget *out, int64_t limit_bytes, int64_t later_bytes,
                             int threads, struct tp_err *err);

/* Memory for something that works with least_bytes, which are in later_bytes, and is faster with up
 * to most_bytes: an eighth of limit_bytes. It takes no more than half of what is left, so the least
 * limit is the same whatever the limit is. */
int64_t memory_budget_part(int64_t limit_bytes, int64_t later_bytes, int threads,
                           int64_t least_bytes, int64_t most_bytes);

/* When `source` is not local, limit what is fetched from it to a part of limit_bytes. Call it
 * before the source is opened. Returns the least that becomes resident later because of that; 0 for
 * local sources. */
int64_t memory_budget_remote(const char *source, int64_t limit_bytes);

/* When its tables have been read, and later_bytes, with that least, is known: limit what is fetched
 * to what is left for it. Returns what becomes resident in addition to the least. */
int64_t memory_budget_remote_more(const char *source, int64_t limit_bytes, int64_t later_bytes,
                                  int threads);

/* What is left of limit_bytes for the tables of a source, at least 1; this process has the rest
 * already. */
int64_t memory_budget_tables(int64_t limit_bytes);

/* What to return for st, the result of reading the tables of a source within memory_budget_tables:
 * when they did not fit, TP_E_BUDGET, and the sentence says that it was limit_bytes. */
tp_status memory_budget_explain(tp_status st, int64_t limit_bytes, struct tp_err *err);

/* What connections to a store need. */
int64_t memory_budget_connections(void);

/* The most that was resident since the program started; 0 where /proc is missing. */
int64_t memory_peak_bytes(void);

#endif
