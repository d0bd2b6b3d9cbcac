/* cli/cmd_run_job.c - tp-run JOB.yaml: run a job to its end. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/cmd_run.h"
#include "cli/report.h"
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

/* On a terminal one line that is rewritten; in a log one line now and then. */
static void on_line(void *ctx, const char *text)
{
    struct screen *s = ctx;
    time_t now = time(NULL);

    if (s->terminal) {
        fprintf(stderr, "\r\033[K%.200s", text);
        s->shown = true;
    } else if (now - s->line_at >= LOG_LINE_EVERY_S || strncmp(text, "status page", 11) == 0) {
        fprintf(stderr, "%s\n", text);
        s->line_at = now;
    }
}

int cmd_run_job(int argc, char **argv)
{
    struct screen screen = { .terminal = isatty(2) };
    const struct run_voice voice = { on_event, on_line, &screen }, silence = { 0 };
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
    st = job_read(&job, path, &arena, &err);
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
