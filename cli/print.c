/* cli/print.c - see cli/print.h. */
#include "cli/print.h"

#include <stdio.h>

void print_safe(const char *text)
{
    for (const unsigned char *p = (const unsigned char *)text; *p; p++)
        putchar(*p < 0x20 || *p == 0x7f ? '?' : *p);
}

void print_json(const json_t *value)
{
    json_dumpf(value, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER | JSON_ENCODE_ANY);
    putchar('\n');
}

char *print_shape(char *buf, size_t size, int ndim, const int64_t *shape)
{
    size_t used = (size_t)snprintf(buf, size, "[");

    for (int d = 0; d < ndim && used < size; d++)
        used +=
            (size_t)snprintf(buf + used, size - used, d ? ", %lld" : "%lld", (long long)shape[d]);
    if (used < size)
        snprintf(buf + used, size - used, "]");
    return buf;
}

tp_status print_done(struct tp_err *err)
{
    if (fflush(stdout) != 0 || ferror(stdout))
        return tp_fail_errno(err, "standard output");
    return TP_OK;
}
