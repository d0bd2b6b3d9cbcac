/* orchestrator/watch/log_tail.c - see orchestrator/watch/log_tail.h. */
#include "orchestrator/watch/log_tail.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_MAX_BYTES = 512 };

/* How much a line is believed that names a rank. */
enum weight { NOBODY, SRUN, ENDED, KILLED };

static int number_after(const char *line, const char *word, const char **rest)
{
    const char *at = strstr(line, word);
    char *end;
    long n;

    if (!at || !isdigit((unsigned char)at[strlen(word)]))
        return -1;
    n = strtol(at + strlen(word), &end, 10);
    *rest = end;
    return n >= 0 && n < 1 << 24 ? (int)n : -1;
}

static enum weight weigh(int *rank, const char *line)
{
    static const char *const killed[] = { "kill", "signal" };
    static const char *const ended[] = { "exited", "ended", "terminated" };
    const char *rest;

    *rank = number_after(line, "rank ", &rest);
    for (size_t k = 0; *rank >= 0 && k < sizeof killed / sizeof killed[0]; k++)
        if (strstr(rest, killed[k]))
            return KILLED;
    for (size_t k = 0; *rank >= 0 && k < sizeof ended / sizeof ended[0]; k++)
        if (strstr(rest, ended[k]))
            return ENDED;
    if (strncmp(line, "srun: error: ", 13) != 0)
        return NOBODY;
    *rank = number_after(line, ": task ", &rest);
    if (*rank < 0 || strncmp(rest, ": ", 2) != 0 || strstr(rest, "exit code 143") ||
        strstr(rest, "Terminated"))
        return NOBODY;
    return SRUN;
}

int log_tail_rank(const char *log, char *line, size_t size)
{
    enum weight most = NOBODY;
    int found = -1;

    line[0] = 0;
    for (const char *p = log; p && *p;) {
        int n = (int)strcspn(p, "\r\n"), rank = -1; /* a progress bar ends lines with \r */
        char text[LINE_MAX_BYTES];
        enum weight w;

        snprintf(text, sizeof text, "%.*s", n < LINE_MAX_BYTES ? n : LINE_MAX_BYTES - 1, p);
        w = weigh(&rank, text);
        if (w > most || (most == NOBODY && strspn(text, " \t\r") < strlen(text)))
            snprintf(line, size, "%.*s", (int)size - 1, text);
        if (w > most) {
            most = w;
            found = rank;
        }
        p += n + (p[n] != 0);
    }
    return found;
}
