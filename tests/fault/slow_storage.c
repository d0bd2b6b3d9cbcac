/*
 * tests/fault/slow_storage.c - a file system that hosts share over a network, for benchmarks.
 *
 * Preloaded (LD_PRELOAD), it delays pread and pwrite of files below TP_SLOW_DIR. TP_SLOW_RATES is
 * "HOST TOTAL" in MB/s: what one process, which stands for a host, and all of them together may
 * move, in each direction. TP_SLOW_CLOCK is a file of 16 zero bytes that all processes map: until
 * when the storage is busy with reads and with writes, in ns.
 */
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { READ, WRITE, DIRECTIONS };

static const char *dir;
static double ns_per_byte_of_host, ns_per_byte_of_all;
static _Atomic(int64_t) host[DIRECTIONS];
static _Atomic(int64_t) *all;

__attribute__((constructor)) static void begin(void)
{
    const char *rates = getenv("TP_SLOW_RATES"), *path = getenv("TP_SLOW_CLOCK");
    double of_host = 0, of_all = 0;
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    void *map = MAP_FAILED;

    if (fd >= 0) {
        map = mmap(NULL, DIRECTIONS * sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        close(fd);
    }
    if (map == MAP_FAILED || !rates || sscanf(rates, "%lf %lf", &of_host, &of_all) != 2)
        return;
    ns_per_byte_of_host = 1e3 / of_host;
    ns_per_byte_of_all = 1e3 / of_all;
    all = map;
    dir = getenv("TP_SLOW_DIR");
}

/* Whether a descriptor is of a file below the folder. */
static int is_slow(int fd)
{
    char link[32], path[PATH_MAX];
    ssize_t n;

    if (!dir)
        return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    n = readlink(link, path, sizeof path - 1);
    return n > (ssize_t)strlen(dir) && memcmp(path, dir, strlen(dir)) == 0;
}

/* Queue behind what is being moved. Returns when these bytes have been moved, too. */
static int64_t reserve(_Atomic(int64_t) *busy, int64_t now, int64_t ns)
{
    int64_t until = atomic_load(busy), end;

    do
        end = (until > now ? until : now) + ns;
    while (!atomic_compare_exchange_weak(busy, &until, end));
    return end;
}

static void wait_for(int direction, size_t n)
{
    struct timespec t;
    int64_t now, end, end_of_all;

    clock_gettime(CLOCK_MONOTONIC, &t);
    now = t.tv_sec * INT64_C(1000000000) + t.tv_nsec;
    end = reserve(&host[direction], now, (int64_t)((double)n * ns_per_byte_of_host));
    end_of_all = reserve(&all[direction], now, (int64_t)((double)n * ns_per_byte_of_all));
    end = end > end_of_all ? end : end_of_all;
    t = (struct timespec){ end / 1000000000, end % 1000000000 };
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &t, NULL) != 0)
        ;
}

ssize_t pread(int fd, void *buf, size_t n, off_t at)
{
    if (is_slow(fd))
        wait_for(READ, n);
    return syscall(SYS_pread64, fd, buf, n, at);
}

ssize_t pwrite(int fd, const void *buf, size_t n, off_t at)
{
    if (is_slow(fd))
        wait_for(WRITE, n);
    return syscall(SYS_pwrite64, fd, buf, n, at);
}

ssize_t pread64(int fd, void *buf, size_t n, off_t at)
{
    return pread(fd, buf, n, at);
}

ssize_t pwrite64(int fd, const void *buf, size_t n, off_t at)
{
    return pwrite(fd, buf, n, at);
}
