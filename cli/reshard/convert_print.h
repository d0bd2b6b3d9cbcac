/*
 * cli/reshard/convert_print.h - what tp-reshard prints of a conversion between formats.
 */
#ifndef CLI_RESHARD_CONVERT_PRINT_H
#define CLI_RESHARD_CONVERT_PRINT_H

#include "reshard/convert.h"

/* Print it for people, or as one JSON object. `source` is as on the command line. */
tp_status convert_print(const struct convert_report *r, const char *source, struct tp_err *err);
tp_status convert_print_json(const struct convert_report *r, struct tp_err *err);

#endif
