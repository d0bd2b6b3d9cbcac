/* cli/rss.c - see cli/rss.h. */
#include "cli/rss.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/size.h"

enum { THREAD_BYTES = 512 << 10, BUFFERS_LEAST = 4 << 20 };

/* A field of /proc/self/status in bytes. Not getrusage: its maximum is inherited through exec. */
static int64_t status_bytes(const char *field)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long long kib = 0;

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f)) /* "VmRSS:      1234 kB" */
        if (strncmp(line, field, strlen(field)) == 0) {
            kib = strtoll(line + strlen(field), NULL, 10);
            break;
        }
    fclose(f);
    return kib * 1024;
}

int64_t rss_peak_bytes(void)
{
    return status_bytes("VmHWM:");
}

tp_status rss_budget(int64_t *buffers, int64_t *base, int64_t mem_bytes, int64_t later_bytes,
                     int jobs, struct tp_err *err)
{
    char least[SIZE_TEXT_MAX], program[SIZE_TEXT_MAX], mem[SIZE_TEXT_MAX];

    *base = status_bytes("VmRSS:") + later_bytes + (int64_t)jobs * THREAD_BYTES;
    *buffers = mem_bytes - *base;
    if (*buffers >= BUFFERS_LEAST)
        return TP_OK;
    return tp_fail(err, TP_E_BUDGET,
                   "--mem %s is too little here: at least %s is needed (%s for the program and its "
                   "tables, the rest for buffers)",
                   size_format(mem, mem_bytes), size_format(least, *base + BUFFERS_LEAST),
                   size_format(program, *base));
}
