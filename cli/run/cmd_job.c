/* cli/run/cmd_job.c - tp-run JOB.yaml: run a job to its end. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "core/text.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"

struct screen {
    bool terminal, shown; /* shown: the live line stands there */
    time_t line_at;
};

enum { LOG_LINE_EVERY_S = 10 };

static void clear(struct screen *s)
{
    if (s->shown)
        fputs("\r\033[K", stderr);
    s->shown = false;
}

static void print_fields(const json_t *event)
{
    const char *name;
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)event, name, v)
    {
        if (strcmp(name, "time") == 0 || strcmp(name, "event") == 0 ||
            strcmp(name, "attempt") == 0 || strcmp(name, "layout") == 0 ||
            strcmp(name, "step") == 0)
            continue;
        if (json_is_string(v))
            fprintf(stderr, "  %s: %s", name, json_string_value(v));
        else if (json_is_integer(v))
            fprintf(stderr, "  %s: %lld", name, (long long)json_integer_value(v));
        else if (json_is_real(v))
            fprintf(stderr, "  %s: %.2f", name, json_real_value(v));
        else if (json_is_boolean(v))
            fprintf(stderr, "  %s: %s", name, json_is_true(v) ? "yes" : "no");
    }
}

static void on_event(void *ctx, const json_t *event)
{
    struct screen *s = ctx;
    time_t now = time(NULL);
    struct tm t;
    char clock[16];

    localtime_r(&now, &t);
    strftime(clock, sizeof clock, "%H:%M:%S", &t);
    clear(s);
    fprintf(stderr, "%s %-9s attempt %lld %s step %lld", clock,
            json_string_value(json_object_get(event, "event")),
            (long long)json_integer_value(json_object_get(event, "attempt")),
            json_string_value(json_object_get(event, "layout")),
            (long long)json_integer_value(json_object_get(event, "step")));
    print_fields(event);
    fputc('\n', stderr);
}

/* Bytes of text that stand in so many columns: a line that wraps cannot be cleared again. */
static int fitting(const char *text, int columns)
{
    int n = 0;

    for (int k = 0; k < columns && text[n]; k++)
        n += text_utf8_length(text + n) > 1 ? text_utf8_length(text + n) : 1;
    return n;
}

/* On a terminal one line that is rewritten; in a log one line now and then. */
static void on_line(void *ctx, const char *text)
{
    struct screen *s = ctx;
    time_t now = time(NULL);
    struct winsize w = { 0 };

    if (s->terminal) {
        ioctl(2, TIOCGWINSZ, &w);
        fprintf(stderr, "\r\033[K%.*s", fitting(text, w.ws_col > 1 ? w.ws_col - 1 : 79), text);
        s->shown = true;
    } else if (now - s->line_at >= LOG_LINE_EVERY_S) {
        fprintf(stderr, "%s\n", text);
        s->line_at = now;
    }
}

static void on_note(void *ctx, const char *text)
{
    clear(ctx);
    fprintf(stderr, "%s\n", text);
}

/* A terminal on which a line can be rewritten. */
static bool is_terminal(void)
{
    const char *term = getenv("TERM");

    return isatty(2) && term && term[0] && strcmp(term, "dumb") != 0;
}

int cmd_run_job(int argc, char **argv)
{
    struct screen screen = { .terminal = is_terminal() };
    const struct run_reporter voice = { on_event, on_line, on_note, &screen }, silence = { 0 };
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    const char *path = NULL;
    bool quiet = false;
    char self[PATH_MAX];
    struct job job;
    ssize_t n;
    int code;
    const struct opt opts[] = {
        OPT_ARG("JOB.yaml", &path, "the job file (tp-run --example prints one)"),
        OPT_FLAG('q', "quiet", &quiet, "print nothing but errors"), OPT_END
    };
    tp_status st;

    if (!report_options(&code, "tp-run", opts, argc, argv, NULL, NULL))
        return code;
    st = job_file_read(&job, path, backends_job(), &arena, &err);
    n = readlink("/proc/self/exe", self, sizeof self - 1);
    if (st == TP_OK && n <= 0)
        st = tp_fail_errno(&err, "/proc/self/exe: cannot read");
    self[n > 0 ? n : 0] = 0;
    if (st == TP_OK)
        st = run_job(&job, self, quiet ? &silence : &voice, &err);
    clear(&screen);
    code = report("tp-run", st, &err);
    arena_free(&arena);
    return code;
}
