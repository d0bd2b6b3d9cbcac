/*
 * device/cpu/pages.h - memory that comes in pages from the system: zeroed, and resident only where
 * it has been touched. The pages of a list are given back one by one or all together.
 */
#ifndef DEVICE_CPU_PAGES_H
#define DEVICE_CPU_PAGES_H

#include <stdint.h>

#include "core/err.h"

struct pages; /* an empty list is NULL */

/* n_bytes, in huge pages where the system gives them. TP_E_NOMEM. */
tp_status pages_map(struct pages **list, void **out, int64_t n_bytes, struct tp_err *err);

/* Give back what pages_map gave at p. */
void pages_unmap(struct pages **list, void *p);
void pages_unmap_all(struct pages **list);

#endif
