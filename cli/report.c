/* cli/report.c - see cli/report.h. */
#include "cli/report.h"

#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void print_line(const char *prog, const char *text)
{
    char line[TP_ERR_MAX];

    snprintf(line, sizeof line, "%s", text);
    for (char *p = line; *p; p++)
        if ((unsigned char)*p < 0x20 || *p == 0x7f)
            *p = '?';
    fprintf(stderr, "%s: %s\n", prog, line);
}

void report_begin(void)
{
    int fd = open("/dev/null", O_RDWR);

    while (fd >= 0 && fd < 2) /* the lowest that is free */
        fd = open("/dev/null", O_RDWR);
    if (fd > 2)
        close(fd);
}

int report(const char *prog, tp_status st, const struct tp_err *err)
{
    if (st != TP_OK && err->msg[0])
        print_line(prog, err->msg);
    return tp_exit_code(st);
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

bool report_options(int *exit_code, const char *usage, const struct opt *opts, int argc,
                    char **argv, const char *intro, const char *tail)
{
    enum opt_result result = OPT_GO_ON;
    struct tp_err err = { 0 };
    char prog[64];
    tp_status st = opt_parse(opts, argc, argv, &result, &err);

    snprintf(prog, sizeof prog, "%.*s", (int)strcspn(usage, " "), usage);
    *exit_code = 0;
    if (st) {
        *exit_code = report(prog, st, &err);
        return false;
    }
    if (result == OPT_HELP)
        opt_help(stdout, usage, opts, intro, tail);
    else if (result == OPT_VERSION)
        printf("%s %s\n", prog, TP_VERSION);
    return result == OPT_GO_ON;
}
