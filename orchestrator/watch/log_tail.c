/* orchestrator/watch/log_tail.c - see orchestrator/watch/log_tail.h. */
#include "orchestrator/watch/log_tail.h"

#include <ctype.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/text.h"

enum { TAIL_BYTES = 16384, LINE_BYTES = 512, RANK_MAX = 1 << 24, SIGNAL_MAX = 128 };

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

static bool has_any(const char *line, const char *const *words)
{
    for (; *words; words++)
        if (strstr(line, *words))
            return true;
    return false;
}

static bool begins_with_any(const char *line, const char *const *words)
{
    for (; *words; words++)
        if (strncmp(line, *words, strlen(*words)) == 0)
            return true;
    return false;
}

/* The signal that a line names, by number or as SIGKILL; 0: none. */
static int signal_in(const char *line)
{
    static const char word[] = "signal ";
    const char *at = strstr(line, word);
    long n = at ? strtol(at + sizeof word - 1, NULL, 10) : 0;

    if (n > 0 && n < SIGNAL_MAX)
        return (int)n;
    return strstr(line, "SIGKILL") ? SIGKILL : 0;
}

/* ---- lines that name a rank ---- */

/* mpirun: "  Process name: [[34,1],0]" of the first process that failed. -1: it is not such a
 * line. */
static int rank_of_process_name(const char *line)
{
    const char *at = strstr(line, "Process name: [["), *comma = at ? strstr(at, "],") : NULL;

    return comma && isdigit((unsigned char)comma[2]) ? (int)strtol(comma + 2, NULL, 10) : -1;
}

static enum log_tail_end end_in(int *rank, const char *line, int (*rank_of_line)(const char *line))
{
    static const char *const killed[] = { "kill", "signal", NULL };
    static const char *const exited[] = { "exited", "ended", "terminated", NULL };
    const char *rest;

    *rank = rank_in(line, &rest);
    if (*rank >= 0 && has_any(rest, killed))
        return LOG_TAIL_KILLED;
    if (*rank >= 0 && has_any(rest, exited))
        return LOG_TAIL_EXITED;
    *rank = rank_of_process_name(line);
    if (*rank >= 0)
        return LOG_TAIL_EXITED;
    *rank = rank_of_line ? rank_of_line(line) : -1;
    return *rank >= 0 ? LOG_TAIL_LAUNCHER : LOG_TAIL_UNKNOWN;
}

/* ---- reading line by line ---- */

/* What was read so far. */
struct log_scan {
    bool in_traceback; /* in the frames of a Python traceback */
    bool in_table;     /* in torchrun's table, which is at the end */
    bool in_root;      /* in its part about the first failure */
    int table_rank;    /* the rank there, -1: none */
    int own_rank;      /* the first rank of tp-train that says that it has failed, -1: none */
    char own[300];     /* its line */
    char error[300];   /* the exception of a Python traceback, "" */
    char plain[300];   /* the last line before a rank is named that no launcher has written, "" */
};

static void copy_line(char line[300], const char *text)
{
    snprintf(line, 300, "%.299s", text);
}

/* Without the prefix that torchrun can put before each line of a rank: "[rank3]: ". */
static const char *without_prefix(const char *line)
{
    static const char *const prefixes[] = { "[rank", "[default", NULL };
    const char *end = begins_with_any(line, prefixes) ? strstr(line, "]:") : NULL;

    return end ? end + 2 + (end[2] == ' ') : line;
}

/* A line of a launcher, or one that only decorates: it says nothing about the reason. */
static bool is_of_launcher(const char *line)
{
    static const char *const begins[] = { "srun: ",
                                          "slurmstepd",
                                          "tp-run relay: ",
                                          "mpirun ",
                                          "mpiexec ",
                                          "Primary job  terminated",
                                          "a non-zero exit code.",
                                          "the job to be terminated.",
                                          "  Process name:",
                                          "  Exit code:",
                                          "MPI_ABORT was invoked",
                                          "with errorcode",
                                          "NOTE: invoking MPI_ABORT",
                                          "You may or may not see output",
                                          "exactly when Open MPI kills",
                                          "=   ",
                                          "YOUR APPLICATION TERMINATED",
                                          NULL };
    static const char *const within[] = { "torch/distributed/elastic", "torch.distributed.elastic",
                                          "torch.distributed.run", NULL };

    return line[strspn(line, "-=*_+ \t")] == 0 || begins_with_any(line, begins) ||
           has_any(line, within);
}

/* The exception at the end of a traceback. When a rank fails, those that wait for it fail too. */
static void see_exception(struct log_scan *s, const char *line)
{
    static const char *const follows[] = { "Connection reset by peer",
                                           "Connection closed by peer",
                                           "Broken pipe",
                                           "Connection refused",
                                           "DistBackendError",
                                           "KeyboardInterrupt",
                                           "SignalException",
                                           NULL };
    bool sure = !has_any(line, follows);

    if (has_any(line, (const char *const[]){ "torch.distributed.elastic", NULL })) {
        s->in_table = true;
    } else if (sure || !s->error[0]) {
        copy_line(s->error, line);
    }
}

/* The number of a line of torchrun's table: "  exitcode  : -9 (pid: 17)". False: the line has
 * another name. */
static bool read_field(long *out, const char *line, const char *name)
{
    const char *p = line + strspn(line, " ");
    size_t n = strlen(name);
    char *end;

    if (strncmp(p, name, n) != 0)
        return false;
    p += n + strspn(p + n, " ");
    if (*p != ':')
        return false;
    *out = strtol(p + 1, &end, 10);
    return end > p + 1;
}

/* The table's part about the first failure names the rank, and then its exit code, which is
 * negative if a signal killed it. */
static void see_table(struct log_tail *out, struct log_scan *s, const char *line)
{
    long value;

    s->in_root = s->in_root || strstr(line, "Root Cause");
    if (!s->in_root)
        return;
    if (read_field(&value, line, "rank") && value >= 0 && value < RANK_MAX) {
        s->table_rank = (int)value;
    } else if (s->table_rank >= 0 && read_field(&value, line, "exitcode")) {
        out->rank = s->table_rank;
        out->end = value < 0 && value > -SIGNAL_MAX ? LOG_TAIL_KILLED : LOG_TAIL_EXITED;
        out->signal = out->end == LOG_TAIL_KILLED ? (int)-value : 0;
        if (out->signal)
            snprintf(out->line, sizeof out->line, "rank %d was killed by signal %d", out->rank,
                     out->signal);
    }
}

/* Whether a rank of tp-train says that it has failed: "tp-train: rank 2: ...". If several do, the
 * first one is at fault. */
static bool see_own(struct log_scan *s, const char *words)
{
    const char *rest;
    int rank = strncmp(words, "tp-train: ", 10) == 0 ? rank_in(words, &rest) : -1;

    if (rank < 0 || strncmp(words + 10, "rank ", 5) != 0 || *rest != ':')
        return false;
    if (s->own_rank < 0) {
        s->own_rank = rank;
        copy_line(s->own, words);
    }
    return true;
}

static void see_line(struct log_tail *out, struct log_scan *s, const char *line,
                     int (*rank_of_line)(const char *line))
{
    const char *words = without_prefix(line);
    enum log_tail_end end = LOG_TAIL_UNKNOWN;
    int rank = -1;

    if (!see_own(s, words)) /* its reason may be that another process has exited */
        end = end_in(&rank, line, rank_of_line);
    if (s->in_table) {
        see_table(out, s, line);
    } else if (strncmp(words, "Traceback (most recent", 22) == 0) {
        s->in_traceback = true;
    } else if (s->in_traceback) {
        s->in_traceback = words[0] == ' ' || !words[0];
        if (!s->in_traceback)
            see_exception(s, words);
    } else if (end > out->end) {
        copy_line(out->line, line);
        out->end = end;
        out->rank = rank;
        out->signal = end == LOG_TAIL_KILLED ? signal_in(line) : 0;
    } else if (out->end == LOG_TAIL_UNKNOWN && end == LOG_TAIL_UNKNOWN && !is_of_launcher(words)) {
        copy_line(s->plain, line);
    }
}

void log_tail_parse(struct log_tail *out, const char *text, int (*rank_of_line)(const char *line))
{
    struct log_scan s = { .table_rank = -1, .own_rank = -1 };

    *out = (struct log_tail){ .rank = -1 };
    if (!text)
        return;
    for (const char *p = text; *p;) {
        int n = (int)strcspn(p, "\r\n"); /* a progress bar ends lines with \r */
        char line[LINE_BYTES];

        snprintf(line, sizeof line, "%.*s", n < LINE_BYTES ? n : LINE_BYTES - 1, p);
        see_line(out, &s, line, rank_of_line);
        p += n + (p[n] != 0);
    }
    if (out->end == LOG_TAIL_KILLED)
        return;
    if (out->end == LOG_TAIL_UNKNOWN && s.own_rank >= 0) {
        out->end = LOG_TAIL_EXITED;
        out->rank = s.own_rank;
        copy_line(out->line, s.own);
    } else if (s.error[0])
        copy_line(out->line, s.error);
    else if (s.plain[0])
        copy_line(out->line, s.plain);
    else if (!out->line[0])
        text_last_line(out->line, sizeof out->line, text, "");
}
