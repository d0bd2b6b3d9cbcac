/* cli/run/cmd_job.c - tp-run JOB.yaml: run a job to its end. */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/cmd_job.h"
#include "cli/run/event_text.h"
#include "cli/run/output_queue.h"
#include "core/text.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"

struct job_screen {
    struct cmd_job_output how;
    struct output_queue *out, *err; /* standard output and error; NULL: it is not used */
    bool terminal;                  /* the live line is rewritten in place */
    bool shown;                     /* it is on the screen */
    time_t line_at;
};

enum { LOG_LINE_EVERY_S = 10, EVENTS_MAX = 4 << 20, MESSAGES_MAX = 64 << 10 };
static const double END_PATIENCE_S = 5; /* for a reader that stands still when the job has ended */

__attribute__((format(printf, 2, 3))) static void say(struct job_screen *s, const char *fmt, ...)
{
    char text[4 * TP_ERR_MAX + 64];
    va_list ap;
    int n;

    va_start(ap, fmt);
    n = vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    if (n > 0)
        output_queue_add(s->err, text, (size_t)n < sizeof text ? (size_t)n : sizeof text - 1);
}

static void clear_line(struct job_screen *s)
{
    if (s->shown)
        say(s, "\r\033[K");
    s->shown = false;
}

static void print_sentence(struct job_screen *s, const json_t *event)
{
    char *text = NULL;
    size_t n = 0;
    FILE *memory = open_memstream(&text, &n);

    if (!memory)
        return;
    event_print(memory, event);
    if (fclose(memory) == 0)
        output_queue_add(s->err, text, n);
    free(text);
}

static void print_json_event(struct job_screen *s, const json_t *event)
{
    char *text = json_dumps(event, JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12));
    size_t n = text ? strlen(text) : 0;

    if (text) {
        text[n] = '\n'; /* instead of the 0 byte */
        output_queue_add(s->out, text, n + 1);
    }
    free(text);
}

/* Nobody may read standard output any more; the job goes on. On a terminal the live line shows the
 * newest save. */
static void on_event(void *ctx, const json_t *event)
{
    struct job_screen *s = ctx;

    if (s->out)
        print_json_event(s, event);
    if (s->how.quiet)
        return;
    if (s->terminal && strcmp(json_string_value(json_object_get(event, "event")), "save") == 0)
        return;
    clear_line(s);
    print_sentence(s, event);
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

    if (s->out)
        output_queue_send(s->out);
    if (!output_queue_send(s->err) || s->how.quiet)
        return;
    text = text_escape(line, sizeof line, text);
    if (s->terminal) {
        ioctl(2, TIOCGWINSZ, &w);
        say(s, "\r\033[K%.*s", fitting(text, w.ws_col > 1 ? w.ws_col - 1 : 79), text);
        s->shown = true;
    } else if (now - s->line_at >= LOG_LINE_EVERY_S) {
        say(s, "%s\n", text);
        s->line_at = now;
    }
}

static void on_note(void *ctx, const char *text)
{
    char line[4 * TP_ERR_MAX];

    clear_line(ctx);
    say(ctx, "%s\n", text_escape(line, sizeof line, text));
}

/* End a queue. True: all was written. The last message must not wait for a reader who still stands
 * still, so it goes nowhere then. */
static bool close_queue(struct output_queue *q, FILE *stream, int *error)
{
    bool all = output_queue_close(q, END_PATIENCE_S, error);

    if (!all && *error == EAGAIN)
        report_discard(stream);
    return all;
}

/* End the output. An error if the job is done and events were to be printed, but some are lost. */
static tp_status close_screen(struct job_screen *s, tp_status st, struct tp_err *err)
{
    int error;

    clear_line(s);
    close_queue(s->err, stderr, &error);
    if (close_queue(s->out, stdout, &error) || st)
        return st;
    tp_fail(err, TP_E_IO, "standard output: %s",
            error && error != EAGAIN ? strerror(error) : "its reader did not read on");
    return tp_fail_in(err, "the job is done, but some of its events could not be printed "
                           "(tp-run events prints them)");
}

int cmd_job_run(const struct run_context *c, struct cmd_job_output how)
{
    struct job_screen screen = { .how = how,
                                 .out =
                                     how.json ? output_queue_open(STDOUT_FILENO, EVENTS_MAX) : NULL,
                                 .err = output_queue_open(STDERR_FILENO, MESSAGES_MAX),
                                 .terminal = report_on_terminal() };
    const struct run_reporter reporter = { on_event, on_line, how.quiet ? NULL : on_note, &screen };
    const struct run_setup setup = {
        .backend = c->backend, .self = c->self, .env = &c->env, .reporter = &reporter
    };
    struct tp_err err = { 0 };
    tp_status st;

    if (!screen.err || (how.json && !screen.out))
        return report_json(how.json, "tp-run", tp_fail(&err, TP_E_NOMEM, "no memory"), &err);
    st = run_job(&c->job, &setup, &err);
    st = close_screen(&screen, st, &err);
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
