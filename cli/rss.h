/*
 * cli/rss.h - this process's resident memory, as the kernel counts it (page cache that is not
 * mapped is not in it).
 */
#ifndef CLI_RSS_H
#define CLI_RSS_H

#include <stdint.h>

#include "core/err.h"

/* The most that was ever resident since the program started; 0 where /proc is missing. */
int64_t rss_peak_bytes(void);

/* What of --mem is left for buffers: *buffers = mem_bytes - *base, where *base is what is resident
 * now and what will be without buffers: later_bytes more, and the stacks and allocators of `jobs`
 * threads. TP_E_BUDGET says how much is needed at least. */
tp_status rss_budget(int64_t *buffers, int64_t *base, int64_t mem_bytes, int64_t later_bytes,
                     int jobs, struct tp_err *err);

#endif
