/* cli/run/output_queue.c - see cli/run/output_queue.h. */
#include "cli/run/output_queue.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

enum { PAUSE_MS = 50 };

struct output_queue {
    int fd;         /* of the stream */
    int own;        /* the same, opened again so that writes do not wait; -1: it cannot be */
    bool is_socket; /* for which send has a flag */
    char *text;     /* what the reader has not taken yet */
    size_t n, most;
    bool lost;
    int error; /* of the last write that failed */
};

/* Open a terminal or pipe again. O_NONBLOCK on the descriptor itself would change it for the shell
 * and for all others that have it, too. */
static int open_again(int fd, const struct stat *sb)
{
    char path[32];

    if (!S_ISFIFO(sb->st_mode) && !S_ISCHR(sb->st_mode))
        return -1;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    return open(path, O_WRONLY | O_NONBLOCK | O_NOCTTY | O_CLOEXEC);
}

struct output_queue *output_queue_open(int fd, size_t most)
{
    struct output_queue *q = calloc(1, sizeof *q);
    struct stat sb = { 0 };

    if (!q || !(q->text = malloc(most))) {
        free(q);
        return NULL;
    }
    (void)!fstat(fd, &sb);
    q->fd = fd;
    q->own = open_again(fd, &sb);
    q->is_socket = S_ISSOCK(sb.st_mode);
    q->most = most;
    return q;
}

/* Write what the reader takes now, as write does. */
static ssize_t put(const struct output_queue *q)
{
    struct pollfd ready = { .fd = q->fd, .events = POLLOUT };

    if (q->is_socket)
        return send(q->fd, q->text, q->n, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (q->own >= 0)
        return write(q->own, q->text, q->n);
    if (poll(&ready, 1, 0) == 0) {
        errno = EAGAIN;
        return -1;
    }
    return write(q->fd, q->text, q->n < PIPE_BUF ? q->n : PIPE_BUF); /* for which there is room */
}

bool output_queue_send(struct output_queue *q)
{
    while (q->n > 0) {
        ssize_t done = put(q);

        if (done < 0 && errno == EINTR)
            continue;
        if (done < 0 && errno == EAGAIN)
            return false;
        if (done < 0) {
            q->error = errno;
            q->lost = true;
            done = (ssize_t)q->n;
        }
        q->n -= (size_t)done;
        memmove(q->text, q->text + done, q->n);
    }
    return true;
}

void output_queue_add(struct output_queue *q, const char *text, size_t n)
{
    if (n > q->most - q->n)
        output_queue_send(q);
    if (n > q->most - q->n) {
        q->lost = true;
        return;
    }
    memcpy(q->text + q->n, text, n);
    q->n += n;
    output_queue_send(q);
}

bool output_queue_close(struct output_queue *q, double seconds, int *error)
{
    const double until = clock_seconds() + seconds;
    bool lost;

    *error = 0;
    if (!q)
        return true;
    while (!output_queue_send(q) && clock_seconds() < until)
        poll(NULL, 0, PAUSE_MS);
    lost = q->lost || q->n > 0;
    *error = q->n > 0 ? EAGAIN : q->error;
    if (q->own >= 0)
        close(q->own);
    free(q->text);
    free(q);
    return !lost;
}
