/*
 * core/opt.h - option tables: one table drives both parsing (getopt_long) and --help.
 *
 *     int n_jobs = 1;
 *     const char *path = NULL;
 *     const struct opt opts[] = {
 *         OPT_ARG("CKPT", &path, "checkpoint root or step directory"),
 *         OPT_INT('j', "jobs", "N", &n_jobs, "threads (default 1)"),
 *         OPT_END
 *     };
 *
 * Long options take `--name VALUE` or `--name=VALUE`. Every table has --help and --version.
 */
#ifndef CORE_OPT_H
#define CORE_OPT_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/err.h"

enum opt_kind {
    OPT_KIND_END,
    OPT_KIND_ARG,     /* positional, required */
    OPT_KIND_ARG_OPT, /* positional, may be absent (stays NULL) */
    OPT_KIND_FLAG,    /* bool: present or not */
    OPT_KIND_INT,     /* int, >= 0 */
    OPT_KIND_INT64,   /* int64_t, >= 0 */
    OPT_KIND_DOUBLE,  /* double, finite */
    OPT_KIND_SIZE,    /* int64_t bytes: 64M */
    OPT_KIND_STR,     /* const char * */
    OPT_KIND_STR_OPT, /* const char *: `--name` alone gives "", `--name=V` gives V */
    OPT_KIND_HEADING, /* a line in --help */
};

struct opt {
    enum opt_kind kind;
    char letter;       /* short form, 0: none */
    const char *name;  /* long form, without dashes; a positional's name in capitals */
    const char *value; /* what --help calls the value */
    void *out;
    const char *help; /* one sentence; "\n" breaks a line */
    bool *given;      /* set when the option is on the command line; may be NULL */
};

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
#define OPT_HEADING(h)              { OPT_KIND_HEADING, 0, 0, 0, 0, h, 0 }
#define OPT_END                     { OPT_KIND_END, 0, 0, 0, 0, 0, 0 }
/* clang-format on */

enum opt_result { OPT_GO_ON, OPT_HELP, OPT_VERSION };

/* Parse argv[1..] by the table. *result says whether --help or --version was asked for; then
 * required positionals may be missing. Values point into argv.
 * TP_E_USAGE: unknown option (the nearest name is suggested), missing or malformed value, too many
 * or too few positionals. */
tp_status opt_parse(const struct opt *opts, int argc, char **argv, enum opt_result *result,
                    struct tp_err *err);

/* Write "usage: PROG ARGS [options]", the intro, the table, and the tail to f. intro and tail may
 * be NULL; they are text with newlines. */
void opt_help(FILE *f, const char *prog, const struct opt *opts, const char *intro,
              const char *tail);

#endif
