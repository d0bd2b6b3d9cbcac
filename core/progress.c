/* core/progress.c - see core/progress.h. */
#include "core/progress.h"

#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/err.h"
#include "core/size.h"
#include "core/text.h"

/* Seconds between two lines. */
#define TTY_S  0.1
#define LOG_S  10.0
#define JSON_S 1.0

enum { LINE_SIZE = 256 };

struct progress {
    const char *title, *action; /* action: "" when there is only one */
    enum progress_style style;
    enum progress_kind kind;
    int64_t total, done;           /* of the action */
    int64_t kinds[PROGRESS_KINDS]; /* bytes of the operation */
    int64_t (*sent_bytes)(void);   /* NULL: nothing is sent */
    double start, last; /* of the action, and of the last line: seconds on the monotonic clock */
    bool tty, drawn;
    pthread_mutex_t lock;
};

struct progress *progress_new(const char *title, int64_t total_bytes, enum progress_style style)
{
    struct progress *p = calloc(1, sizeof *p);

    if (!p)
        return NULL;
    p->title = title;
    p->action = "";
    p->total = total_bytes;
    p->style = style;
    p->tty = style == PROGRESS_TEXT && isatty(STDERR_FILENO) != 0;
    p->start = p->last = clock_seconds();
    pthread_mutex_init(&p->lock, NULL);
    return p;
}

void progress_sent(struct progress *p, int64_t (*sent_bytes)(void))
{
    if (p)
        p->sent_bytes = sent_bytes;
}

static int64_t sent(const struct progress *p)
{
    return p->sent_bytes ? p->sent_bytes() : 0;
}

/* Bytes per second, and the seconds that are left at this rate; -1: unknown. */
static double rate(const struct progress *p, double t, double *left)
{
    double elapsed = t - p->start, speed = elapsed > 0 ? (double)p->done / elapsed : 0;

    *left = speed > 0 ? (double)(p->total - p->done) / speed : -1;
    if (speed > 0 && *left < 0)
        *left = 0;
    return speed;
}

static void print_json(const struct progress *p, double t)
{
    double left, speed = rate(p, t, &left);

    fprintf(stderr,
            "{\"progress\": \"%s\", \"action\": \"%s\", \"bytes_done\": %lld, "
            "\"bytes_total\": %lld, \"bytes_per_s\": %.0f, ",
            p->title, p->action, (long long)p->done, (long long)p->total, speed);
    if (left < 0)
        fputs("\"seconds_left\": null", stderr);
    else
        fprintf(stderr, "\"seconds_left\": %.1f", left);
    fprintf(stderr, ", \"bytes_copied\": %lld, \"bytes_cloned\": %lld, \"bytes_sent\": %lld}\n",
            (long long)p->kinds[PROGRESS_COPIED], (long long)p->kinds[PROGRESS_CLONED],
            (long long)sent(p));
}

__attribute__((format(printf, 2, 3))) static void append(char line[LINE_SIZE], const char *fmt, ...)
{
    size_t n = strlen(line);
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(line + n, LINE_SIZE - n, fmt, ap);
    va_end(ap);
}

/* A duration: with so many decimals below a minute, and then in minutes, hours and days. */
static const char *duration(char text[CLOCK_TEXT_MAX], double seconds, int decimals)
{
    if (seconds >= 59.5)
        return clock_format_duration(text, seconds);
    snprintf(text, CLOCK_TEXT_MAX, "%.*f s", decimals, seconds);
    return text;
}

/* ", 1.5 GiB cloned": what was done in another way than the action's, and what was sent. */
static void append_others(char line[LINE_SIZE], const struct progress *p)
{
    static const char *const names[PROGRESS_KINDS] = {
        [PROGRESS_COPIED] = "copied", [PROGRESS_CLONED] = "cloned"
    };
    char text[SIZE_TEXT_MAX];

    for (int k = PROGRESS_COPIED; k < PROGRESS_KINDS; k++)
        if (k != (int)p->kind && p->kinds[k] > 0)
            append(line, ", %s %s", size_format(text, p->kinds[k]), names[k]);
    if (sent(p) > 0)
        append(line, ", %s sent", size_format(text, sent(p)));
}

/* The characters that fit into a line of the terminal, as wide as it is now. A line that wraps
 * cannot be redrawn. */
static int terminal_width(void)
{
    struct winsize w = { 0 };

    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 1 ? w.ws_col - 1 : LINE_SIZE;
}

static void draw(struct progress *p, double t)
{
    char done[SIZE_TEXT_MAX], total[SIZE_TEXT_MAX], speed_text[SIZE_TEXT_MAX];
    char line[LINE_SIZE] = "", left_text[CLOCK_TEXT_MAX];
    double left, speed = rate(p, t, &left);

    if (p->style == PROGRESS_JSON) {
        print_json(p, t);
        return;
    }
    append(line, "%s: %s%s%s of %s (%.0f %%), %s/s, %s left", p->title, p->action,
           *p->action ? " " : "", size_format(done, p->done), size_format(total, p->total),
           p->total > 0 ? 100.0 * (double)p->done / (double)p->total : 0.0,
           size_format(speed_text, (int64_t)speed), duration(left_text, left < 0 ? 0 : left, 0));
    append_others(line, p);
    if (p->tty)
        fprintf(stderr, "\r%.*s\033[K", terminal_width(), line);
    else
        fprintf(stderr, "%s\n", line);
    fflush(stderr); /* the line on a terminal has no end */
    p->drawn = true;
}

/* Count from here on. */
static void restart(struct progress *p, int64_t total_bytes)
{
    p->total = total_bytes;
    p->done = 0;
    p->start = p->last = clock_seconds();
}

void progress_total(struct progress *p, int64_t total_bytes)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    restart(p, total_bytes);
    pthread_mutex_unlock(&p->lock);
}

void progress_action(struct progress *p, const char *action, enum progress_kind kind,
                     int64_t total_bytes)
{
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    if (p->style == PROGRESS_JSON && p->done > 0)
        print_json(p, clock_seconds()); /* the end of the action before */
    p->action = action;
    p->kind = kind;
    restart(p, total_bytes);
    pthread_mutex_unlock(&p->lock);
}

/* kind: NULL for that of the action, which may change until the lock is held. */
static void add(struct progress *p, const enum progress_kind *kind, int64_t n_bytes)
{
    double t, wait;

    if (!p || p->style == PROGRESS_QUIET)
        return;
    wait = p->style == PROGRESS_JSON ? JSON_S : p->tty ? TTY_S : LOG_S;
    pthread_mutex_lock(&p->lock);
    p->done += n_bytes;
    p->kinds[kind ? *kind : p->kind] += n_bytes;
    t = clock_seconds();
    if (t - p->last >= wait) {
        p->last = t;
        draw(p, t);
    }
    pthread_mutex_unlock(&p->lock);
}

void progress_add(struct progress *p, int64_t n_bytes)
{
    add(p, NULL, n_bytes);
}

void progress_add_as(struct progress *p, enum progress_kind kind, int64_t n_bytes)
{
    add(p, &kind, n_bytes);
}

void progress_note(struct progress *p, const char *fmt, ...)
{
    char text[TP_ERR_MAX], line[4 * TP_ERR_MAX]; /* an escaped byte takes four */
    va_list ap;

    if (!p)
        return;
    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    pthread_mutex_lock(&p->lock);
    fprintf(stderr, "%s%s: %s%s\n", p->tty && p->drawn ? "\r" : "", p->title,
            text_escape(line, sizeof line, text), p->tty && p->drawn ? "\033[K" : "");
    pthread_mutex_unlock(&p->lock);
}

void progress_say(void *ctx, const char *sentence)
{
    progress_note(ctx, "%s", sentence);
}

static void release(struct progress *p)
{
    pthread_mutex_destroy(&p->lock);
    free(p);
}

void progress_erase(struct progress *p)
{
    if (!p)
        return;
    if (p->style == PROGRESS_JSON && p->done > 0)
        print_json(p, clock_seconds());
    else if (p->drawn && p->tty)
        fputs("\r\033[K", stderr);
    fflush(stderr);
    release(p);
}

void progress_end(struct progress *p, bool ok)
{
    if (!p)
        return;
    if (p->style == PROGRESS_JSON) {
        if (ok)
            print_json(p, clock_seconds());
    } else if (p->style != PROGRESS_QUIET && ok) {
        char done[SIZE_TEXT_MAX], speed[SIZE_TEXT_MAX], took[CLOCK_TEXT_MAX];
        double elapsed = clock_seconds() - p->start;

        fprintf(stderr, "%s%s: %s in %s, %s/s%s\n", p->tty ? "\r" : "", p->title,
                size_format(done, p->done), duration(took, elapsed, 2),
                size_format(speed, elapsed > 0 ? (int64_t)((double)p->done / elapsed) : 0),
                p->tty ? "\033[K" : "");
    } else if (p->drawn && p->tty) {
        fputc('\n', stderr);
    }
    release(p);
}
