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
#include <time.h>
#include <unistd.h>

enum { FILE_BYTES = HEARTBEAT_BYTES + HEARTBEAT_HISTORY * sizeof(struct heartbeat_loss) };

static const char MAGIC[8] = { 'T', 'P', 'S', 'L', 'O', 'T', 0, HEARTBEAT_VERSION };

struct heartbeat {
    struct heartbeat_slot *image; /* mapped */
    int64_t entered_ns;           /* when the collective that is open began */
    bool loss_known;              /* a finite one was told */
};

int64_t heartbeat_clock_ns(void)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* One aligned store that no compiler splits; release, so that what was stored before is seen. */
static void put(int64_t *word, int64_t value)
{
    __atomic_store_n(word, value, __ATOMIC_RELEASE);
}

/* Field 22 of /proc/self/stat; 0 where there is none. The name in field 2 may hold anything. */
static int64_t own_start(void)
{
    char text[1024], *p;
    int64_t start = 0;
    int fd = open("/proc/self/stat", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof text - 1);

    if (fd >= 0)
        close(fd);
    if (n <= 0)
        return 0;
    text[n] = 0;
    p = strrchr(text, ')');
    for (int field = 2; p && field < 22; field++)
        p = strchr(p + 1, ' ');
    if (p)
        start = strtoll(p + 1, NULL, 10);
    return start;
}

char *heartbeat_path(char *buf, int buf_size, const char *dir, int rank)
{
    snprintf(buf, (size_t)buf_size, "%s/rank-%05d", dir, rank);
    return buf;
}

static void image_init(struct heartbeat_slot *m, int rank, int world)
{
    int64_t now = heartbeat_clock_ns();

    memcpy(m->magic, MAGIC, sizeof MAGIC);
    m->rank = rank;
    m->world = world;
    m->pid = getpid();
    m->pid_start = own_start();
    m->opened_ns = m->phase_ns = m->step_ns = now;
    m->phase = HEARTBEAT_INIT;
    m->step = -1;
    m->saved = -1;
    m->loss = NAN;
    m->history = HEARTBEAT_HISTORY;
}

tp_status heartbeat_open(struct heartbeat **out, const char *dir, int rank, int world,
                         struct tp_err *err)
{
    char path[PATH_MAX], tmp[PATH_MAX + 8];
    struct heartbeat *s = NULL;
    void *map = MAP_FAILED;
    int fd = -1;

    dir = dir ? dir : getenv(HEARTBEAT_DIR_ENV);
    if (!dir || !dir[0]) {
        *out = NULL;
        return TP_OK;
    }
    heartbeat_path(path, sizeof path, dir, rank);
    snprintf(tmp, sizeof tmp, "%s.tmp", path);
    fd = open(tmp, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 || ftruncate(fd, FILE_BYTES) != 0) {
        tp_fail_errno(err, "%s: rank %d cannot make its progress slot", tmp, rank);
        goto fail;
    }
    map = mmap(NULL, FILE_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map == MAP_FAILED) {
        tp_fail_errno(err, "%s: rank %d cannot map its progress slot", tmp, rank);
        goto fail;
    }
    image_init(map, rank, world);
    s = calloc(1, sizeof *s);
    if (!s) {
        tp_fail(err, TP_E_NOMEM, "no memory for the progress slot");
        goto fail;
    }
    if (rename(tmp, path) != 0) {
        tp_fail_errno(err, "%s: rank %d cannot publish its progress slot", path, rank);
        goto fail;
    }
    close(fd);
    s->image = map;
    *out = s;
    return TP_OK;
fail:
    if (map != MAP_FAILED)
        munmap(map, FILE_BYTES);
    if (fd >= 0)
        close(fd);
    free(s);
    return err->status;
}

/* The entry says that it is not whole while it is written. */
static void remember(struct heartbeat_slot *m, int64_t step, double loss)
{
    struct heartbeat_loss *e = (struct heartbeat_loss *)(m + 1) + step % HEARTBEAT_HISTORY;

    put(&e->step, -1);
    __atomic_store(&e->loss, &loss, __ATOMIC_RELEASE);
    put(&e->step, step);
}

void heartbeat_step(struct heartbeat *s, int64_t step, double loss)
{
    int64_t now;

    if (!s)
        return;
    now = heartbeat_clock_ns();
    if (s->image->step >= 0)
        put(&s->image->step_len_ns, now - s->image->step_ns);
    if (isfinite(loss))
        s->loss_known = true;
    else if (s->loss_known && !s->image->bad_step)
        put(&s->image->bad_step, step);
    if (step > 0)
        remember(s->image, step, loss);
    __atomic_store(&s->image->loss, &loss, __ATOMIC_RELEASE);
    put(&s->image->step_ns, now);
    put(&s->image->step, step);
}

void heartbeat_phase(struct heartbeat *s, enum heartbeat_phase phase)
{
    if (!s)
        return;
    put(&s->image->phase_ns, heartbeat_clock_ns());
    put(&s->image->phase, phase);
}

void heartbeat_saved(struct heartbeat *s, int64_t step)
{
    if (s)
        put(&s->image->saved, step);
}

void heartbeat_collective(struct heartbeat *s, bool enter)
{
    int64_t now;

    if (!s)
        return;
    now = heartbeat_clock_ns();
    if (enter) {
        s->entered_ns = now;
        put(&s->image->entered, s->image->entered + 1);
    } else {
        put(&s->image->wait_ns, s->image->wait_ns + now - s->entered_ns);
        put(&s->image->left, s->image->entered);
    }
}

void heartbeat_close(struct heartbeat *s, bool in_order)
{
    if (!s)
        return;
    if (in_order)
        heartbeat_phase(s, HEARTBEAT_DONE);
    munmap(s->image, FILE_BYTES);
    free(s);
}

/* Whether the bytes are a slot of this version for `rank`. */
static bool is_valid(const struct heartbeat_slot *m, int rank)
{
    return memcmp(m->magic, MAGIC, sizeof MAGIC) == 0 && m->rank == rank && m->world > rank &&
           m->pid > 0 && m->phase >= 0 && m->phase < HEARTBEAT_PHASES && m->step >= -1 &&
           m->entered >= m->left && m->left >= 0;
}

tp_status heartbeat_read(struct heartbeat_slot *out, const char *path, int rank, struct tp_err *err)
{
    struct heartbeat_slot a, b;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    ssize_t n = 0;

    if (fd < 0)
        return errno == ENOENT ? tp_fail(err, TP_E_NOTFOUND, "%s: no slot yet", path)
                               : tp_fail_errno(err, "%s: cannot open", path);
    for (int attempt = 0; attempt < 8; attempt++) {
        n = pread(fd, &a, sizeof a, 0);
        n = n == sizeof a ? pread(fd, &b, sizeof b, 0) : n;
        if (n != sizeof b || a.step == b.step)
            break; /* no step ended while a was copied: its loss belongs to its step */
    }
    close(fd);
    if (n != sizeof b)
        return tp_fail(err, TP_E_CORRUPT, "%s: %zd bytes, a progress slot has %d", path, n,
                       HEARTBEAT_BYTES);
    /* a collective may end between the loads of its two counters */
    if (a.left > a.entered)
        a.left = a.entered;
    if (!is_valid(&a, rank))
        return tp_fail(err, TP_E_CORRUPT, "%s: not a progress slot of version %d for rank %d", path,
                       HEARTBEAT_VERSION, rank);
    *out = a;
    return TP_OK;
}

int heartbeat_losses(struct heartbeat_loss *out, int max, const char *path,
                     const struct heartbeat_slot *slot, int64_t after)
{
    int64_t entries = slot->history, first = after + 1;
    int fd, n = 0;

    if (entries < 1 || entries > 1 << 20 || slot->step <= after)
        return 0;
    if (first <= slot->step - entries)
        first = slot->step - entries + 1;
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    for (int64_t s = first < 1 ? 1 : first; fd >= 0 && s <= slot->step && n < max; s++) {
        struct heartbeat_loss e;
        off_t at = HEARTBEAT_BYTES + (off_t)(s % entries) * (off_t)sizeof e;

        if (pread(fd, &e, sizeof e, at) == sizeof e && e.step == s)
            out[n++] = e;
    }
    if (fd >= 0)
        close(fd);
    return n;
}

const char *heartbeat_phase_name(int64_t phase)
{
    static const char *const names[HEARTBEAT_PHASES] = { "init", "load",  "train",
                                                         "save", "drain", "done" };

    return phase >= 0 && phase < HEARTBEAT_PHASES ? names[phase] : "?";
}
