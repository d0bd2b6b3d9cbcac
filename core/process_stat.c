/* core/process_stat.c - see core/process_stat.h. */
#include "core/process_stat.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { FIELD_STATE = 3, FIELD_FLAGS = 9, FIELD_START = 22, FIELD_ENV = 50, FIELD_STATUS = 52 };

/* The kernel's flags of a task (linux/sched.h). */
enum { TASK_EXITS = 0x4, TASK_OF_KERNEL = 0x200000 };

/* The text of a file of /proc; "" when it cannot be read. */
static void read_text(char *text, size_t size, const char *path)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = -1;

    if (fd >= 0) {
        n = read(fd, text, size - 1);
        close(fd);
    }
    text[n > 0 ? n : 0] = 0;
}

/* The text after n more fields, which blanks separate; NULL: there are fewer. */
static char *skip_fields(char *p, int n)
{
    while (p && n-- > 0) {
        p = strchr(p, ' ');
        p = p ? p + 1 : NULL;
    }
    return p;
}

static bool read_stat(struct process_stat *out, const char *path)
{
    char text[1024], *open, *close, *p;
    unsigned long flags, env;

    *out = (struct process_stat){ 0 };
    read_text(text, sizeof text, path);
    /* "41 (name) S 1 ...": the name may contain parentheses, so the last one ends it */
    open = strchr(text, '(');
    close = strrchr(text, ')');
    if (!open || !close || close < open || close[1] != ' ')
        return false;
    p = close + 2;
    out->state = *p;
    p = skip_fields(p, FIELD_FLAGS - FIELD_STATE);
    flags = p ? strtoul(p, NULL, 10) : 0;
    out->has_program = out->state != 'Z' && out->state != 'X' && !(flags & TASK_OF_KERNEL) &&
                       !(flags & TASK_EXITS);
    p = skip_fields(p, FIELD_START - FIELD_FLAGS);
    out->start = p ? strtoll(p, NULL, 10) : 0;
    p = skip_fields(p, FIELD_ENV - FIELD_START); /* its first address, and the one after it */
    env = p ? strtoul(p, &p, 10) : 0;
    out->env_bytes = env && p ? (int64_t)(strtoul(p, NULL, 10) - env) : -1;
    p = skip_fields(p, FIELD_STATUS - FIELD_ENV);
    out->status = p && out->state == 'Z' ? (int)strtol(p, NULL, 10) : 0;
    snprintf(out->name, sizeof out->name, "%.*s", (int)(close - open - 1), open + 1);
    return true;
}

bool process_stat_read(struct process_stat *out, pid_t pid)
{
    char path[64];

    snprintf(path, sizeof path, "/proc/%ld/stat", (long)pid);
    return read_stat(out, path);
}

int64_t process_stat_delay(void)
{
    DIR *d = opendir("/proc/self/task");
    const struct dirent *e;
    long long sum = 0;

    while (d && (e = readdir(d))) {
        char path[64], text[128], *run;

        if (e->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "/proc/self/task/%.20s/schedstat", e->d_name);
        /* "time on a processor, time waiting for one, slices" */
        read_text(text, sizeof text, path);
        run = strchr(text, ' ');
        sum += run ? strtoll(run, NULL, 10) : 0;
    }
    if (d)
        closedir(d);
    return sum;
}

bool process_stat_self(struct process_stat *out)
{
    return read_stat(out, "/proc/self/stat");
}
