/*
 * tests/fault/journal_kill.c - kill tp-run right after a record of its journal is durable.
 *
 * Preloaded (LD_PRELOAD) into tp-run, which has no hook of its own for this. TP_JOURNAL_KILL says
 * after which record: a number N, the N-th record of the journal; or STATE:K, the K-th record of a
 * transition to STATE that this process writes. Then the process gets SIGKILL. The programs that it
 * starts are not affected, because this library takes itself out of the environment.
 */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { RECORD_MAX = 1 << 20 };

static char state[64]; /* "": a number counts */
static long wanted, seen;

__attribute__((constructor)) static void start(void)
{
    const char *at = getenv("TP_JOURNAL_KILL"), *colon = at ? strchr(at, ':') : NULL;

    if (colon)
        snprintf(state, sizeof state, "\"transition\":\"%.*s\"", (int)(colon - at), at);
    wanted = at ? strtol(colon ? colon + 1 : at, NULL, 10) : 0;
    unsetenv("TP_JOURNAL_KILL");
    unsetenv("LD_PRELOAD");
}

static bool is_journal(int fd)
{
    char link[64], path[PATH_MAX];
    ssize_t n;

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = 0;
    return n > 8 && strcmp(path + n - 8, "/journal") == 0;
}

/* The last line of the file, which is at least one record long; malloc'ed. */
static char *last_record(int fd)
{
    char *text = calloc(1, RECORD_MAX + 1), *newline, *record = NULL;
    struct stat sb;
    off_t from;
    ssize_t n;

    if (!text || fstat(fd, &sb) != 0)
        return text;
    from = sb.st_size > RECORD_MAX ? sb.st_size - RECORD_MAX : 0;
    n = pread(fd, text, RECORD_MAX, from);
    text[n > 0 ? n - 1 : 0] = 0; /* without its newline */
    newline = strrchr(text, '\n');
    record = strdup(newline ? newline + 1 : text);
    free(text);
    return record;
}

static void look(int fd)
{
    char *record = wanted && is_journal(fd) ? last_record(fd) : NULL;
    char number[32];

    if (!record)
        return;
    snprintf(number, sizeof number, "\"n\":%ld}", wanted);
    seen += state[0] && strstr(record, state);
    if (state[0] ? seen == wanted : strstr(record, number) != NULL)
        raise(SIGKILL);
    free(record);
}

int fsync(int fd)
{
    int rc = (int)syscall(SYS_fsync, fd);

    look(fd);
    return rc;
}

int fdatasync(int fd)
{
    int rc = (int)syscall(SYS_fdatasync, fd);

    look(fd);
    return rc;
}
