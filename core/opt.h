/*
 * core/opt.h - option tables. One table describes a command line: it drives the parser
 * (getopt_long), --help, man pages and completions.
 *
 *     int n_jobs = 1;
 *     const char *path = NULL;
 *     const struct opt opts[] = {
 *         OPT_ARG("CKPT", &path, "checkpoint root or step directory"),
 *         OPT_INT('j', "jobs", "N", &n_jobs, "threads (default 1)"),
 *         OPT_END
 *     };
 *
 * Options are written `--name VALUE`, `--name=VALUE` or `-l VALUE`; a VALUE that begins with "--"
 * only as `--name=VALUE`, because otherwise a value was forgotten. Every table has --help and
 * --version.
 */
#ifndef CORE_OPT_H
#define CORE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/err.h"

enum opt_kind {
    OPT_KIND_END,
    OPT_KIND_ARG,     /* positional argument, required */
    OPT_KIND_ARG_OPT, /* positional argument, optional: *out stays as it is when absent */
    OPT_KIND_FLAG,    /* bool, set to true */
    OPT_KIND_INT,     /* int, >= 0 */
    OPT_KIND_INT64,   /* int64_t, >= 0 */
    OPT_KIND_DOUBLE,  /* double, finite */
    OPT_KIND_SIZE,    /* int64_t bytes: 64M */
    OPT_KIND_STR,     /* const char * */
    OPT_KIND_STR_OPT, /* const char *: `--name` alone sets "", `--name=V` sets V */
    OPT_KIND_LIST,    /* struct opt_list: each use of the option adds a value */
    OPT_KIND_HEADING, /* a heading in --help */
};

enum { OPT_LIST_MAX = 64 };

struct opt_list {
    const char *values[OPT_LIST_MAX];
    int n;
};

struct opt {
    enum opt_kind kind;
    char letter;       /* short form; 0: none */
    const char *name;  /* long form without dashes; of a positional argument, in capitals */
    const char *value; /* the value's name in --help, or its choices: "N", "fp32|bf16" */
    void *out;         /* the variable to set; see enum opt_kind for its type */
    const char *help;  /* "\n" breaks a line */
    bool *given;       /* set to true when the option is given; may be NULL */
};

/* Arguments: letter, name, value, variable, help. */
/* clang-format off */
#define OPT_ARG(nm, o, h)           { OPT_KIND_ARG, 0, nm, 0, o, h, 0 }
#define OPT_ARG_OPT(nm, o, h)       { OPT_KIND_ARG_OPT, 0, nm, 0, o, h, 0 }
#define OPT_FLAG(l, nm, o, h)       { OPT_KIND_FLAG, l, nm, 0, o, h, 0 }
#define OPT_INT(l, nm, v, o, h)     { OPT_KIND_INT, l, nm, v, o, h, 0 }
#define OPT_INT64(l, nm, v, o, h)   { OPT_KIND_INT64, l, nm, v, o, h, 0 }
#define OPT_DOUBLE(l, nm, v, o, h)  { OPT_KIND_DOUBLE, l, nm, v, o, h, 0 }
#define OPT_SIZE(l, nm, v, o, h)    { OPT_KIND_SIZE, l, nm, v, o, h, 0 }
#define OPT_STR(l, nm, v, o, h)     { OPT_KIND_STR, l, nm, v, o, h, 0 }
#define OPT_STR_OPT(l, nm, v, o, h) { OPT_KIND_STR_OPT, l, nm, v, o, h, 0 }
#define OPT_LIST(l, nm, v, o, h)    { OPT_KIND_LIST, l, nm, v, o, h, 0 }
#define OPT_HEADING(h)              { OPT_KIND_HEADING, 0, 0, 0, 0, h, 0 }
#define OPT_END                     { OPT_KIND_END, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

enum opt_result {
    OPT_GO_ON,   /* the command line is complete: run */
    OPT_HELP,    /* --help was given */
    OPT_VERSION, /* --version was given */
};

/* Parse argv[1..] by the table and set the variables; strings point into argv. With OPT_HELP and
 * OPT_VERSION positional arguments may be missing. TP_E_USAGE: an unknown option (the message
 * suggests the nearest name), a missing or malformed value, too few, too many or empty
 * arguments. */
tp_status opt_parse(const struct opt *opts, int argc, char **argv, enum opt_result *result,
                    struct tp_err *err);

/* Write the help to f: "usage: PROG ARGS [options]", intro, table, tail. intro and tail are text
 * with newlines and may be NULL. */
void opt_help(FILE *f, const char *prog, const struct opt *opts, const char *intro,
              const char *tail);

#endif
