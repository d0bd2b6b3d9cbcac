/* core/heartbeat.c - see core/heartbeat.h. */
#include "core/heartbeat.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/private_dir.h"
#include "core/process_stat.h"

enum { FILE_BYTES = HEARTBEAT_BYTES + HEARTBEAT_HISTORY * sizeof(struct heartbeat_loss) };

static const int64_t DELAY_EVERY_NS = 100000000;

static const char MAGIC[8] = { 'T', 'P', 'S', 'L', 'O', 'T', 0, HEARTBEAT_VERSION };

struct heartbeat {
    struct heartbeat_status *status; /* mapped; the history follows it */
    int64_t entered_ns;              /* when the current collective began */
    int64_t delay_at_ns;             /* when delay_ns was read */
    bool loss_known;                 /* a finite loss was reported */
};

/* One aligned store, which no compiler splits; release, so that a reader who sees it also sees what
 * was stored before. */
static void put(int64_t *word, int64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

char *heartbeat_name(char name[HEARTBEAT_NAME_MAX], int rank)
{
    snprintf(name, HEARTBEAT_NAME_MAX, "rank-%05d", rank);
    return name;
}

static void status_init(struct heartbeat_status *status, int rank, int world)
{
    int64_t now = clock_ns();
    struct process_stat self;

    process_stat_self(&self);
    memcpy(status->magic, MAGIC, sizeof MAGIC);
    status->rank = rank;
    status->world = world;
    status->pid = getpid();
    status->pid_start = self.start;
    status->opened_ns = status->phase_ns = status->step_ns = now;
    status->phase = HEARTBEAT_INIT;
    status->step = -1;
    status->saved = -1;
    status->loss = NAN;
    status->history = HEARTBEAT_HISTORY;
}

/* Make the file under a temporary name in the open directory. The caller closes *fd, if it is not
 * -1. All of it is written: where a file system is full, as /dev/shm of a container may be, the
 * first store to a hole that is mapped would kill the process (SIGBUS). */
static tp_status make_file(int *fd, char tmp[HEARTBEAT_NAME_MAX + 8], int dir, const char *path,
                           int rank, struct tp_err *err)
{
    static const char zeros[FILE_BYTES];
    char name[HEARTBEAT_NAME_MAX];

    snprintf(tmp, HEARTBEAT_NAME_MAX + 8, "%s.tmp", heartbeat_name(name, rank));
    *fd = openat(dir, tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (*fd < 0)
        return tp_fail_errno(err, "%s/%s: rank %d cannot create its heartbeat file", path, tmp,
                             rank);
    if (!file_write_at(*fd, tmp, 0, zeros, sizeof zeros, err))
        return TP_OK;
    unlinkat(dir, tmp, 0);
    return tp_fail_in(err, "%s: rank %d has no room for its heartbeat file", path, rank);
}

/* Map a new file and give it its name. */
static tp_status publish(struct heartbeat **out, int dir, const char *path, int rank, int world,
                         struct tp_err *err)
{
    char name[HEARTBEAT_NAME_MAX], tmp[HEARTBEAT_NAME_MAX + 8];
    struct heartbeat *h = calloc(1, sizeof *h);
    void *map = MAP_FAILED;
    int fd = -1;
    tp_status st;

    if (!h)
        return tp_fail(err, TP_E_NOMEM, "no memory for the heartbeat of rank %d", rank);
    TP_TRY(make_file(&fd, tmp, dir, path, rank, err));
    map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED)
        TP_TRY(tp_fail_errno(err, "%s: rank %d cannot map its heartbeat file", path, rank));
    status_init(map, rank, world);
    if (renameat(dir, tmp, dir, heartbeat_name(name, rank)) != 0)
        TP_TRY(tp_fail_errno(err, "%s: rank %d cannot publish its heartbeat file", path, rank));
    h->status = map;
    *out = h;
    h = NULL;
done:
    if (st && map != MAP_FAILED)
        munmap(map, FILE_BYTES);
    if (fd >= 0)
        close(fd);
    free(h);
    return st;
}

tp_status heartbeat_open(struct heartbeat **out, const char *dir, int rank, int world,
                         struct tp_err *err)
{
    int fd;
    tp_status st;

    *out = NULL;
    if (!dir || !dir[0])
        return TP_OK;
    if ((st = private_dir_open(&fd, dir, err)))
        return st;
    st = publish(out, fd, dir, rank, world, err);
    close(fd);
    return st;
}

/* Add an entry to the history; its step is -1 while it is incomplete. */
static void add_loss(struct heartbeat_status *status, int64_t step, double loss)
{
    struct heartbeat_loss *e = (struct heartbeat_loss *)(status + 1) + step % HEARTBEAT_HISTORY;

    put(&e->step, -1);
    __atomic_store(&e->loss, &loss, __ATOMIC_RELEASE);
    put(&e->step, step);
}

static void put_delay(struct heartbeat *h, int64_t now)
{
    int64_t delay;

    if (now - h->delay_at_ns < DELAY_EVERY_NS)
        return;
    h->delay_at_ns = now;
    delay = process_stat_delay();
    if (delay > h->status->delay_ns) /* a thread that has ended takes its part with it */
        put(&h->status->delay_ns, delay);
}

void heartbeat_step(struct heartbeat *h, int64_t step, double loss)
{
    struct heartbeat_status *status;
    int64_t now;

    if (!h)
        return;
    status = h->status;
    now = clock_ns();
    if (status->step >= 0)
        put(&status->step_len_ns, now - status->step_ns);
    if (isfinite(loss))
        h->loss_known = true;
    else if (h->loss_known && !status->bad_step)
        put(&status->bad_step, step);
    if (step > 0)
        add_loss(status, step, loss);
    __atomic_store(&status->loss, &loss, __ATOMIC_RELEASE);
    put_delay(h, now);
    put(&status->step_ns, now);
    put(&status->step, step);
}

void heartbeat_phase(struct heartbeat *h, enum heartbeat_phase phase)
{
    if (!h)
        return;
    put(&h->status->phase_ns, clock_ns());
    put(&h->status->phase, phase);
}

void heartbeat_saved(struct heartbeat *h, int64_t step)
{
    if (h)
        put(&h->status->saved, step);
}

void heartbeat_gpus_missing(struct heartbeat *h, int ranks)
{
    if (h)
        put(&h->status->gpus_missing, ranks);
}

void heartbeat_gpu_failed(struct heartbeat *h)
{
    if (h)
        put(&h->status->gpu_failed, 1);
}

void heartbeat_gpu_memory(struct heartbeat *h, int64_t bytes)
{
    if (h)
        put(&h->status->gpu_bytes, bytes);
}

void heartbeat_gpu_full(struct heartbeat *h)
{
    if (h)
        put(&h->status->gpu_full, 1);
}

void heartbeat_collective(struct heartbeat *h, bool enter)
{
    struct heartbeat_status *status;
    int64_t now;

    if (!h)
        return;
    status = h->status;
    now = clock_ns();
    if (enter) {
        h->entered_ns = now;
        put(&status->entered, status->entered + 1);
    } else {
        put(&status->wait_ns, status->wait_ns + now - h->entered_ns);
        put(&status->left, status->entered);
    }
}

void heartbeat_close(struct heartbeat *h, bool finished)
{
    if (!h)
        return;
    if (finished)
        heartbeat_phase(h, HEARTBEAT_DONE);
    munmap(h->status, FILE_BYTES);
    free(h);
}

/* Whether s is a status of this version that `rank` wrote. The file may be another program's. */
static bool is_valid(const struct heartbeat_status *s, int rank)
{
    const int64_t counts[] = { s->pid_start,   s->opened_ns, s->phase_ns, s->step_ns,
                               s->step_len_ns, s->entered,   s->left,     s->wait_ns,
                               s->bad_step,    s->history,   s->delay_ns, s->gpus_missing,
                               s->gpu_failed,  s->gpu_bytes, s->gpu_full };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (counts[i] < 0 || counts[i] > HEARTBEAT_NUMBER_MAX)
            return false;
    return memcmp(s->magic, MAGIC, sizeof MAGIC) == 0 && s->rank == rank && s->world > rank &&
           s->world <= INT_MAX && s->pid > 0 && s->pid <= INT_MAX && s->phase >= 0 &&
           s->phase < HEARTBEAT_PHASES && s->step >= -1 && s->step <= HEARTBEAT_NUMBER_MAX &&
           s->saved >= -1 && s->saved <= HEARTBEAT_NUMBER_MAX && s->entered >= s->left;
}

static bool is_same_loss(double a, double b)
{
    return a == b || (isnan(a) && isnan(b));
}

tp_status heartbeat_find(int *fd, int dir, int rank, struct tp_err *err)
{
    char name[HEARTBEAT_NAME_MAX];
    int f = openat(dir, heartbeat_name(name, rank), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);

    if (f < 0)
        return errno == ENOENT
                   ? tp_fail(err, TP_E_NOTFOUND, "%s: this rank has no heartbeat file yet", name)
                   : tp_fail_errno(err, "%s: cannot open", name);
    *fd = f;
    return TP_OK;
}

bool heartbeat_is_replaced(int fd)
{
    struct stat sb;

    return fstat(fd, &sb) == 0 && sb.st_nlink == 0;
}

tp_status heartbeat_read(struct heartbeat_status *out, int fd, int rank, struct tp_err *err)
{
    struct heartbeat_status a, b;
    ssize_t n = 0;

    for (int attempt = 0; attempt < 8; attempt++) {
        n = pread(fd, &a, sizeof a, 0);
        n = n == sizeof a ? pread(fd, &b, sizeof b, 0) : n;
        /* the same twice: no step ended while a was read, so its loss belongs to its step */
        if (n != sizeof b || (a.step == b.step && is_same_loss(a.loss, b.loss)))
            break;
    }
    if (n != sizeof b)
        return tp_fail(err, TP_E_CORRUPT,
                       "the heartbeat file of rank %d has %zd bytes, expected at least %d", rank, n,
                       HEARTBEAT_BYTES);
    /* a collective may end while its two counters are read */
    if (a.left > a.entered)
        a.left = a.entered;
    if (!is_valid(&a, rank))
        return tp_fail(err, TP_E_CORRUPT, "is not a heartbeat file of version %d for rank %d",
                       HEARTBEAT_VERSION, rank);
    *out = a;
    return TP_OK;
}

int heartbeat_losses(struct heartbeat_loss *out, int max, int fd,
                     const struct heartbeat_status *status, int64_t after)
{
    int64_t entries = status->history, first = after + 1;
    struct stat sb;
    int n = 0;

    if (entries < 1 || status->step <= after || fstat(fd, &sb) != 0 ||
        entries > (sb.st_size - HEARTBEAT_BYTES) / (int64_t)sizeof *out)
        return 0;
    if (first <= status->step - entries)
        first = status->step - entries + 1;
    for (int64_t s = first < 1 ? 1 : first; s <= status->step && n < max; s++) {
        struct heartbeat_loss e;
        off_t at = HEARTBEAT_BYTES + (off_t)(s % entries) * (off_t)sizeof e;

        if (pread(fd, &e, sizeof e, at) == sizeof e && e.step == s)
            out[n++] = e;
    }
    return n;
}

const char *heartbeat_phase_name(int64_t phase)
{
    static const char *const names[HEARTBEAT_PHASES] = { "init", "load",  "train",
                                                         "save", "drain", "done" };

    return phase >= 0 && phase < HEARTBEAT_PHASES ? names[phase] : "?";
}
