/* cli/report.c - see cli/report.h. */
#include "cli/report.h"

#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/print.h"
#include "core/text.h"

static void print_line(const char *prog, const char *text)
{
    char line[4 * TP_ERR_MAX]; /* an escaped byte takes four */

    fprintf(stderr, "%s: %s\n", prog, text_escape(line, sizeof line, text));
}

void report_begin(void)
{
    static char messages[BUFSIZ];
    int fd = open("/dev/null", O_RDWR);

    setvbuf(stderr, messages, _IOLBF, sizeof messages);
    signal(SIGXFSZ, SIG_IGN);
    while (fd >= 0 && fd < 2) /* the lowest that is free */
        fd = open("/dev/null", O_RDWR);
    if (fd > 2)
        close(fd);
}

void report_outlive_reader(void)
{
    signal(SIGPIPE, SIG_IGN);
}

void report_discard(FILE *stream)
{
    int null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (null < 0)
        return;
    dup2(null, fileno(stream));
    close(null);
}

int report(const char *prog, tp_status st, const struct tp_err *err)
{
    if (st != TP_OK && err->msg[0])
        print_line(prog, err->msg);
    return tp_exit_code(st);
}

int report_json(bool json, const char *prog, tp_status st, const struct tp_err *err)
{
    json_t *o;

    if (json && st != TP_OK && st != TP_E_NO) {
        o = json_pack("{s:o, s:i}", "error", print_text(err->msg), "exit", tp_exit_code(st));
        json_dumpf(o, stdout, JSON_PRESERVE_ORDER); /* one line, as events are */
        putchar('\n');
        fflush(stdout); /* where both go to one log, the sentence is the last line */
        json_decref(o);
    }
    return report(prog, st, err);
}

/* Whether the command line asks for JSON, for errors in the command line itself. */
static bool wants_json(const struct opt *opts, int argc, char **argv)
{
    bool known = false, wanted = false;

    for (; opts->kind != OPT_KIND_END; opts++)
        known = known || (opts->name && strcmp(opts->name, "json") == 0);
    for (int i = 1; i < argc; i++)
        wanted = wanted || strcmp(argv[i], "--json") == 0;
    return known && wanted;
}

void report_note(const char *prog, const char *fmt, ...)
{
    char text[TP_ERR_MAX];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    print_line(prog, text);
}

bool report_on_terminal(void)
{
    const char *term = getenv("TERM");

    return isatty(STDERR_FILENO) && term && term[0] && strcmp(term, "dumb") != 0;
}

enum progress_style report_progress(bool json)
{
    return json ? PROGRESS_JSON : report_on_terminal() ? PROGRESS_TEXT : PROGRESS_LINES;
}

bool report_program_options(int *exit_code, const struct report_program *p, const struct opt *opts,
                            int argc, char **argv)
{
    enum opt_result result = OPT_GO_ON;
    struct tp_err err = { 0 };
    char prog[64];
    tp_status st = opt_parse(opts, argc, argv, &result, &err);

    snprintf(prog, sizeof prog, "%.*s", (int)strcspn(p->usage, " "), p->usage);
    *exit_code = 0;
    if (st) {
        *exit_code = report_json(wants_json(opts, argc, argv), prog, st, &err);
        return false;
    }
    if (result == OPT_GO_ON)
        return true;
    if (result == OPT_HELP)
        opt_help(stdout, p->usage, opts, p->intro, p->tail);
    else
        printf("%s %s\n%s", prog, TP_VERSION, p->version ? p->version : "");
    *exit_code = report(prog, print_done(&err), &err);
    return false;
}

bool report_options(int *exit_code, const char *usage, const struct opt *opts, int argc,
                    char **argv, const char *intro, const char *tail)
{
    const struct report_program p = { .usage = usage, .intro = intro, .tail = tail };

    return report_program_options(exit_code, &p, opts, argc, argv);
}
