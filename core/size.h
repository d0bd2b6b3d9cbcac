/*
 * core/size.h - byte counts as people write them: binary units, `64M`, `1G`, `5GB`, `1.5GiB`.
 */
#ifndef CORE_SIZE_H
#define CORE_SIZE_H

#include <stdint.h>

#include "core/err.h"

enum { SIZE_TEXT_MAX = 16 };

/* Read a size; suffix k, M, G, T (binary), with an optional `B` or `iB`, any case.
 * TP_E_USAGE: not a size, negative, or more than INT64_MAX; *bytes unchanged. */
tp_status size_parse(int64_t *bytes, const char *text, struct tp_err *err);

/* "1.50 GiB", "512 B": three significant digits, for people. Returns buf. */
char *size_format(char buf[SIZE_TEXT_MAX], int64_t bytes);

#endif
