/*
 * device/cpu/pages.h - memory from the system, in pages: zeroed, and resident only after the first
 * access. A list's allocations are freed one by one or all together.
 */
#ifndef DEVICE_CPU_PAGES_H
#define DEVICE_CPU_PAGES_H

#include <stdint.h>

#include "core/err.h"

struct pages; /* an empty list is NULL */

/* Allocate n_bytes, in huge pages if the system has them. TP_E_NOMEM. */
tp_status pages_map(struct pages **list, void **out, int64_t n_bytes, struct tp_err *err);

/* Free the memory at p, which pages_map allocated. */
void pages_unmap(struct pages **list, void *p);
void pages_unmap_all(struct pages **list);

#endif
