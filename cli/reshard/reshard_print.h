/*
 * cli/reshard/reshard_print.h - prints what tp-reshard did, or what a dry run found.
 */
#ifndef CLI_RESHARD_RESHARD_PRINT_H
#define CLI_RESHARD_RESHARD_PRINT_H

#include "reshard/reshard.h"

/* For people. TP_E_IO: standard output cannot be written. */
tp_status reshard_print(const struct reshard_report *r, bool dry_run, struct tp_err *err);

/* One JSON object: the contract's fields and more; with dry_run also the plan's kinds of tensors.
 */
tp_status reshard_print_json(const struct reshard_report *r, bool dry_run, struct tp_err *err);

#endif
