/* core/size.c - see core/size.h. */
#include "core/size.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const char units[] = "BKMGTP";

tp_status size_parse(int64_t *bytes, const char *text, struct tp_err *err)
{
    const char *unit = NULL;
    double value;
    char *end;

    value = strtod(text, &end);
    if (end == text || !isfinite(value) || value < 0 || !isdigit((unsigned char)text[0]))
        goto bad;
    if (*end) {
        unit = strchr(units, toupper((unsigned char)*end));
        if (!unit)
            goto bad;
        end++;
        if (unit != units && *end && strcasecmp(end, "b") != 0 && strcasecmp(end, "ib") != 0)
            goto bad;
        if (unit == units && *end)
            goto bad;
        value = ldexp(value, 10 * (int)(unit - units));
    }
    if (value >= 0x1p63)
        goto bad;
    *bytes = (int64_t)value;
    return TP_OK;
bad:
    return tp_fail(err, TP_E_USAGE,
                   "'%s' is not a size; write a number with K, M, G or T, for example 64M", text);
}

char *size_format(char buf[SIZE_TEXT_MAX], int64_t bytes)
{
    double value = (double)bytes;
    int unit = 0;

    while (fabs(value) >= 1023.5 && unit < 5) {
        value /= 1024;
        unit++;
    }
    if (unit == 0)
        snprintf(buf, SIZE_TEXT_MAX, "%lld B", (long long)bytes);
    else
        snprintf(buf, SIZE_TEXT_MAX, "%.*f %ciB",
                 value < 9.995   ? 2
                 : value < 99.95 ? 1
                                 : 0,
                 value, units[unit]);
    return buf;
}
