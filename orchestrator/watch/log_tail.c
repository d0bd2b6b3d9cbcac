/* orchestrator/watch/log_tail.c - see orchestrator/watch/log_tail.h. */
#include "orchestrator/watch/log_tail.h"

#include <ctype.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"

enum { TAIL_BYTES = 16384, LINE_BYTES = 512, RANK_MAX = 1 << 24 };

char *log_tail_read(const char *path)
{
    char *text = calloc(1, TAIL_BYTES + 1);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    struct stat sb;
    off_t from =
        fd >= 0 && fstat(fd, &sb) == 0 && sb.st_size > TAIL_BYTES ? sb.st_size - TAIL_BYTES : 0;

    if (!text || fd < 0 || pread(fd, text, TAIL_BYTES, from) < 0) {
        free(text);
        text = NULL;
    }
    if (fd >= 0)
        close(fd);
    return text;
}

/* The number after "rank ", -1: there is none. *rest is what follows it. */
static int rank_in(const char *line, const char **rest)
{
    static const char word[] = "rank ";
    const char *at = strstr(line, word);
    char *end;
    long n;

    if (!at || !isdigit((unsigned char)at[sizeof word - 1]))
        return -1;
    n = strtol(at + sizeof word - 1, &end, 10);
    *rest = end;
    return n >= 0 && n < RANK_MAX ? (int)n : -1;
}

static enum log_tail_end end_in(int *rank, const char *line, int (*rank_of_line)(const char *line))
{
    static const char *const killed[] = { "kill", "signal" };
    static const char *const exited[] = { "exited", "ended", "terminated" };
    const char *rest;

    *rank = rank_in(line, &rest);
    for (size_t k = 0; *rank >= 0 && k < sizeof killed / sizeof killed[0]; k++)
        if (strstr(rest, killed[k]))
            return LOG_TAIL_KILLED;
    for (size_t k = 0; *rank >= 0 && k < sizeof exited / sizeof exited[0]; k++)
        if (strstr(rest, exited[k]))
            return LOG_TAIL_EXITED;
    *rank = rank_of_line ? rank_of_line(line) : -1;
    return *rank >= 0 ? LOG_TAIL_LAUNCHER : LOG_TAIL_UNKNOWN;
}

void log_tail_parse(struct log_tail *out, const char *text, int (*rank_of_line)(const char *line))
{
    *out = (struct log_tail){ .rank = -1 };
    if (!text)
        return;
    text_last_line(out->line, sizeof out->line, text, "");
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, "\r\n"), rank; /* a progress bar ends lines with \r */
        char line[LINE_BYTES];
        enum log_tail_end end;

        snprintf(line, sizeof line, "%.*s", n < LINE_BYTES ? n : LINE_BYTES - 1, p);
        end = end_in(&rank, line, rank_of_line);
        if (end > out->end) {
            snprintf(out->line, sizeof out->line, "%.*s", (int)sizeof out->line - 1, line);
            out->end = end;
            out->rank = rank;
        }
        p += n + (p[n] != 0);
    }
}
