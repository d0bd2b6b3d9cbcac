/* core/progress.c - see core/progress.h. */
#include "core/progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/size.h"

struct progress {
    const char *title;
    int64_t total, done;
    double start, last; /* seconds on the monotonic clock */
    bool quiet, tty, drawn;
    pthread_mutex_t lock;
};

struct progress *progress_new(const char *title, int64_t total_bytes, bool quiet)
{
    struct progress *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->title = title;
    p->total = total_bytes;
    p->quiet = quiet;
    p->tty = isatty(STDERR_FILENO) != 0;
    p->start = p->last = clock_seconds();
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void progress_total(struct progress *p, int64_t total_bytes)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->total = total_bytes;
    p->done = 0;
    p->start = p->last = clock_seconds();
    pthread_mutex_unlock(&p->lock);
}

static void draw(struct progress *p, double t)
{
    char done[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
    double elapsed = t - p->start, speed = elapsed > 0 ? (double)p->done / elapsed : 0;
    double left = speed > 0 ? (double)(p->total - p->done) / speed : 0;

    fprintf(stderr, "%s%s: %s of %s (%.0f %%), %s/s, %.0f s left%s", p->tty ? "\r" : "", p->title,
            size_format(done, p->done), size_format(total, p->total),
            p->total > 0 ? 100.0 * (double)p->done / (double)p->total : 0.0,
            size_format(rate, (int64_t)speed), left < 0 ? 0 : left, p->tty ? "\033[K" : "\n");
    p->drawn = true;
}

void progress_add(struct progress *p, int64_t n_bytes)
{
    double t;

    if (!p || p->quiet)
        return;
    pthread_mutex_lock(&p->lock);
    p->done += n_bytes;
    t = clock_seconds();
    if (t - p->last >= (p->tty ? 0.1 : 10.0)) {
        p->last = t;
        draw(p, t);
    }
    pthread_mutex_unlock(&p->lock);
}

void progress_note(struct progress *p, const char *fmt, ...)
{
    char text[TP_ERR_MAX];
    va_list ap;

    if (!p)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < 0x20 || *c == 0x7f)
            *c = '?';
    pthread_mutex_lock(&p->lock);
    fprintf(stderr, "%s%s: %s%s\n", p->tty && p->drawn ? "\r" : "", p->title, text,
            p->tty && p->drawn ? "\033[K" : "");
    pthread_mutex_unlock(&p->lock);
}

void progress_say(void *ctx, const char *sentence)
{
    progress_note(ctx, "%s", sentence);
}

void progress_erase(struct progress *p)
{
    if (!p)
        return;
    if (!p->quiet && p->drawn && p->tty)
        fputs("\r\033[K", stderr);
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void progress_end(struct progress *p, bool ok)
{
    if (!p)
        return;
    if (!p->quiet && ok) {
        char done[SIZE_TEXT_MAX], rate[SIZE_TEXT_MAX];
        double elapsed = clock_seconds() - p->start;

        fprintf(stderr, "%s%s: %s in %.2f s, %s/s%s\n", p->tty ? "\r" : "", p->title,
                size_format(done, p->done), elapsed,
                size_format(rate, elapsed > 0 ? (int64_t)((double)p->done / elapsed) : 0),
                p->tty ? "\033[K" : "");
    } else if (!p->quiet && p->drawn && p->tty) {
        fputc('\n', stderr);
    }
    pthread_mutex_destroy(&p->lock);
    free(p);
}
