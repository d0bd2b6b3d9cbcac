/* orchestrator/process/memory_dir.c - see orchestrator/process/memory_dir.h. */
#include "orchestrator/process/memory_dir.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/heartbeat.h"
#include "core/private_dir.h"

static const char PREFIX[] = "tp-run-";

/* Room for the heartbeats of some hundred ranks. */
static const uint64_t FREE_BYTES = UINT64_C(8) << 20;

/* A file system without a limit has no number of blocks. */
bool memory_dir_is_possible(void)
{
    struct statvfs fs;

    return access(MEMORY_DIR_PARENT, W_OK) == 0 && statvfs(MEMORY_DIR_PARENT, &fs) == 0 &&
           (fs.f_blocks == 0 || (uint64_t)fs.f_bavail * fs.f_frsize >= FREE_BYTES);
}

tp_status memory_dir_name(char path[PATH_MAX], struct tp_err *err)
{
    return private_dir_name(path, MEMORY_DIR_PARENT, PREFIX, err);
}

bool memory_dir_is(const char *path)
{
    static const char parent[] = MEMORY_DIR_PARENT "/";

    return strncmp(path, parent, sizeof parent - 1) == 0;
}

void memory_dir_hold(int fd)
{
    (void)flock(fd, LOCK_SH); /* waits for one that looks whether it is in use */
}

void memory_dir_hold_path(const char *path)
{
    struct tp_err ignored;
    int fd;

    if (path && memory_dir_is(path) && private_dir_open(&fd, path, &ignored) == TP_OK)
        memory_dir_hold(fd);
}

/* ---- folders of dead processes ---- */

/* The rank whose heartbeat file has this name; -1: it is another file. */
static int rank_of(const char *name)
{
    static const char head[] = "rank-";
    char *end;
    long n;

    if (strncmp(name, head, sizeof head - 1) != 0)
        return -1;
    n = strtol(name + sizeof head - 1, &end, 10);
    return *end == 0 && n >= 0 && n < INT_MAX ? (int)n : -1;
}

/* The seconds since a rank has reported anything; a folder that has no heartbeats: `longest`. */
static double silence_of(int dir, double longest)
{
    int copy = dup(dir);
    DIR *d = copy >= 0 ? fdopendir(copy) : NULL;
    const struct dirent *e;
    double least = longest;

    while (d && (e = readdir(d))) {
        struct heartbeat_status s;
        struct tp_err ignored;
        int rank = rank_of(e->d_name), file;

        if (rank < 0 || heartbeat_find(&file, dir, rank, &ignored) != TP_OK)
            continue;
        if (heartbeat_read(&s, file, rank, &ignored) == TP_OK) {
            const int64_t last = s.step_ns > s.phase_ns ? s.step_ns : s.phase_ns;
            const double silence = 1e-9 * (double)(clock_ns() - last);

            least = silence < least ? silence : least;
        }
        close(file);
    }
    if (d)
        closedir(d);
    else if (copy >= 0)
        close(copy);
    return least;
}

/* Whether no process uses the open folder, and none will. Locks it if so. */
static bool is_abandoned(int dir, double seconds)
{
    struct stat sb;
    double age;

    if (flock(dir, LOCK_EX | LOCK_NB) != 0 || fstat(dir, &sb) != 0)
        return false;
    age = clock_wall_seconds() - (double)sb.st_mtime;
    return age > seconds && silence_of(dir, age) > seconds;
}

void memory_dir_clean(const char *parent, double seconds)
{
    DIR *d = opendir(parent);
    const struct dirent *e;

    while (d && (e = readdir(d))) {
        char path[PATH_MAX];
        struct tp_err ignored;
        int dir;

        if (strncmp(e->d_name, PREFIX, sizeof PREFIX - 1) != 0 ||
            snprintf(path, sizeof path, "%s/%s", parent, e->d_name) >= (int)sizeof path ||
            private_dir_open(&dir, path, &ignored) != TP_OK)
            continue;
        if (is_abandoned(dir, seconds))
            private_dir_remove(dir, path, &ignored);
        else
            close(dir);
    }
    if (d)
        closedir(d);
}
