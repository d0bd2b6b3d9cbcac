/* cli/rss.c - see cli/rss.h. */
#include "cli/rss.h"

#include <stdio.h>
#include <string.h>

/* A field of /proc/self/status in bytes. Not getrusage: its maximum is inherited through exec. */
static int64_t status_bytes(const char *field)
{
    FILE *f = fopen("/proc/self/status", "re");
    char line[256];
    long long kib = 0;

    if (!f)
        return 0;
    while (fgets(line, sizeof line, f))
        if (strncmp(line, field, strlen(field)) == 0 &&
            sscanf(line + strlen(field), ": %lld kB", &kib) == 1)
            break;
    fclose(f);
    return kib * 1024;
}

int64_t rss_now_bytes(void)
{
    return status_bytes("VmRSS");
}

int64_t rss_peak_bytes(void)
{
    return status_bytes("VmHWM");
}
