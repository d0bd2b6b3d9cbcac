/*
 * cli/reshard/reshard_print.h - prints what tp-reshard did, or what a dry run found.
 */
#ifndef CLI_RESHARD_RESHARD_PRINT_H
#define CLI_RESHARD_RESHARD_PRINT_H

#include "cli/reshard/reshard_device.h"
#include "reshard/reshard.h"

/* For people. device: what was used, and why. TP_E_IO: standard output cannot be written. */
tp_status reshard_print(const struct reshard_report *r, const struct reshard_device *device,
                        bool dry_run, struct tp_err *err);

/* One JSON object: the contract's fields and more; with dry_run also the plan's kinds of
 * tensors. */
tp_status reshard_print_json(const struct reshard_report *r, const struct reshard_device *device,
                             bool dry_run, struct tp_err *err);

#endif
