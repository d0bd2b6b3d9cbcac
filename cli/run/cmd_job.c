/* cli/run/cmd_job.c - tp-run JOB.yaml: run a job to its end. */
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>

#include "cli/print.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/cmd_job.h"
#include "cli/run/event_text.h"
#include "core/text.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"

struct job_screen {
    struct cmd_job_output how;
    bool terminal; /* the live line is rewritten in place */
    bool shown;    /* it is on the screen */
    time_t line_at;
};

enum { LOG_LINE_EVERY_S = 10 };

static void clear_line(struct job_screen *s)
{
    if (s->shown) {
        fputs("\r\033[K", stderr);
        fflush(stderr);
    }
    s->shown = false;
}

/* Nobody may read standard output any more; the job goes on. On a terminal the live line shows the
 * newest save. */
static void on_event(void *ctx, const json_t *event)
{
    struct job_screen *s = ctx;

    if (s->how.json) {
        json_dumpf(event, stdout, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
        putchar('\n');
        fflush(stdout);
    }
    if (s->how.quiet)
        return;
    if (s->terminal && strcmp(json_string_value(json_object_get(event, "event")), "save") == 0)
        return;
    clear_line(s);
    event_print(stderr, event);
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
    char line[TP_ERR_MAX];

    text = text_escape(line, sizeof line, text);
    if (s->terminal) {
        ioctl(2, TIOCGWINSZ, &w);
        fprintf(stderr, "\r\033[K%.*s", fitting(text, w.ws_col > 1 ? w.ws_col - 1 : 79), text);
        fflush(stderr);
        s->shown = true;
    } else if (now - s->line_at >= LOG_LINE_EVERY_S) {
        fprintf(stderr, "%s\n", text);
        s->line_at = now;
    }
}

static void on_note(void *ctx, const char *text)
{
    char line[4 * TP_ERR_MAX];

    clear_line(ctx);
    fprintf(stderr, "%s\n", text_escape(line, sizeof line, text));
}

int cmd_job_run(const struct run_context *c, struct cmd_job_output how)
{
    struct job_screen screen = { .how = how, .terminal = report_on_terminal() };
    const struct run_reporter reporter = { on_event, how.quiet ? NULL : on_line,
                                           how.quiet ? NULL : on_note, &screen };
    const struct run_setup setup = {
        .backend = c->backend, .self = c->self, .env = &c->env, .reporter = &reporter
    };
    struct tp_err err = { 0 };
    tp_status st = run_job(&c->job, &setup, &err);

    clear_line(&screen);
    if (!st && how.json && print_done(&err))
        st =
            tp_fail_in(&err, "the job is done, but some of its events could not be printed (tp-run "
                             "events prints them)");
    return report_json(how.json, "tp-run", st, &err);
}

int cmd_run_job(int argc, char **argv)
{
    struct run_context c;
    struct tp_err err = { 0 };
    const char *path = NULL;
    struct cmd_job_output how = { 0 };
    int code;
    const struct opt opts[] = {
        OPT_ARG("JOB.yaml", &path, "the job file (tp-run --example prints one)"),
        OPT_FLAG('q', "quiet", &how.quiet, "print only errors"),
        OPT_FLAG(0, "json", &how.json,
                 "print each event on standard output: one JSON object per line"),
        OPT_END
    };
    tp_status st;

    if (!report_options(&code, "tp-run", opts, argc, argv, NULL, NULL))
        return code;
    st = run_context_open(&c, path, &err);
    code = st ? report_json(how.json, "tp-run", st, &err) : cmd_job_run(&c, how);
    run_context_close(&c);
    return code;
}
