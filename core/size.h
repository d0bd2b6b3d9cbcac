/*
 * core/size.h - numbers of bytes as people write them, in binary units: 64M, 1G, 5GB, 1.5GiB.
 */
#ifndef CORE_SIZE_H
#define CORE_SIZE_H

#include <stdint.h>

#include "core/err.h"

enum { SIZE_TEXT_MAX = 16 };

/* Read a size: a number, perhaps with the suffix K, M, G, T or P in any case, perhaps with "B" or
 * "iB" after it. TP_E_USAGE: it is not a size, it is negative, or it exceeds INT64_MAX. */
tp_status size_parse(int64_t *bytes, const char *text, struct tp_err *err);

/* Write the size with three significant digits: "1.50 GiB", "512 B". Returns buf. */
char *size_format(char buf[SIZE_TEXT_MAX], int64_t bytes);

#endif
