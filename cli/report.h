/*
 * cli/report.h - how the programs talk to people: options, errors, exit codes.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>

#include "core/err.h"
#include "core/opt.h"

/* First of all in `main`: where standard input, output or error are closed (a daemon's child), open
 * /dev/null in their place, so that no file of ours gets their number and messages end up in it. */
void report_begin(void);

/* What `main` returns for st: the contract's exit code. A failure is printed on stderr first, as
 * "PROG: sentence"; control characters (names come from files) are printed as '?'. */
int report(const char *prog, tp_status st, const struct tp_err *err);

/* Print "PROG: sentence" on stderr, for what is worth saying though the work goes on. */
void report_note(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Parse argv by the table. True: go on. False: *exit_code is what to return, since help or version
 * was asked for (and printed) or the command line is wrong (and that was said). usage is what
 * --help calls the program ("tp-ckpt verify"); its first word is the PROG of messages. intro and
 * tail as in opt_help. */
bool report_options(int *exit_code, const char *usage, const struct opt *opts, int argc,
                    char **argv, const char *intro, const char *tail);

#endif
