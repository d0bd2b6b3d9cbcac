/* cli/run/cmd_job.c - tp-run JOB.yaml: run a job to its end. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/cmd_job.h"
#include "core/text.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"

struct job_screen {
    bool terminal; /* the live line is rewritten in place */
    bool shown;    /* it is on the screen */
    time_t line_at;
};

enum { LOG_LINE_EVERY_S = 10 };

static void clear_line(struct job_screen *s)
{
    if (s->shown)
        fputs("\r\033[K", stderr);
    s->shown = false;
}

/* Whether every event has this field, or it is the code that the message explains. */
static bool is_common(const char *name)
{
    static const char *const names[] = { "time", "event",  "attempt", "layout",
                                         "step", "reason", "message" };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0)
            return true;
    return false;
}

static void print_fields(const json_t *event)
{
    const char *name, *message = json_string_value(json_object_get(event, "message"));
    json_t *v;

    json_object_foreach((json_t *)(uintptr_t)event, name, v)
    {
        if (is_common(name))
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
    if (message)
        fprintf(stderr, "  %s", message);
}

static void on_event(void *ctx, const json_t *event)
{
    struct job_screen *s = ctx;
    time_t now = time(NULL);
    struct tm t;
    char clock[16];

    localtime_r(&now, &t);
    strftime(clock, sizeof clock, "%H:%M:%S", &t);
    clear_line(s);
    fprintf(stderr, "%s %-9s attempt %lld %s step %lld", clock,
            json_string_value(json_object_get(event, "event")),
            (long long)json_integer_value(json_object_get(event, "attempt")),
            json_string_value(json_object_get(event, "layout")),
            (long long)json_integer_value(json_object_get(event, "step")));
    print_fields(event);
    fputc('\n', stderr);
}

/* The bytes of `text` that fit into this number of columns. A line that wraps cannot be cleared. */
static int fitting(const char *text, int columns)
{
    int n = 0;

    for (int k = 0; k < columns && text[n]; k++)
        n += text_utf8_length(text + n) > 1 ? text_utf8_length(text + n) : 1;
    return n;
}

/* Rewrite one line on a terminal; write a line from time to time to a log file. */
static void on_line(void *ctx, const char *text)
{
    struct job_screen *s = ctx;
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
    clear_line(ctx);
    fprintf(stderr, "%s\n", text);
}

/* Whether standard error is a terminal on which a line can be rewritten. */
static bool is_terminal(void)
{
    const char *term = getenv("TERM");

    return isatty(2) && term && term[0] && strcmp(term, "dumb") != 0;
}

int cmd_job_run(const struct run_context *c, bool quiet)
{
    struct job_screen screen = { .terminal = is_terminal() };
    const struct run_reporter reporter = { on_event, on_line, on_note, &screen }, silent = { 0 };
    const struct run_setup setup = { .backend = c->backend,
                                     .self = c->self,
                                     .env = &c->env,
                                     .reporter = quiet ? &silent : &reporter };
    struct tp_err err = { 0 };
    tp_status st = run_job(&c->job, &setup, &err);

    clear_line(&screen);
    return report("tp-run", st, &err);
}

int cmd_run_job(int argc, char **argv)
{
    struct run_context c;
    struct tp_err err = { 0 };
    const char *path = NULL;
    bool quiet = false;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path,
                                        "the job file (tp-run --example prints one)"),
                                OPT_FLAG('q', "quiet", &quiet, "print only errors"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run", opts, argc, argv, NULL, NULL))
        return code;
    st = run_context_open(&c, path, &err);
    code = st ? report("tp-run", st, &err) : cmd_job_run(&c, quiet);
    run_context_close(&c);
    return code;
}
