/*
 * cli/report.h - what all programs do alike: parse options, print errors, return exit codes.
 */
#ifndef CLI_REPORT_H
#define CLI_REPORT_H

#include <stdbool.h>
#include <stdio.h>

#include "core/err.h"
#include "core/opt.h"
#include "core/progress.h"

/* Call this first in main(). If standard input, output or error is closed (as for the child of a
 * daemon), open /dev/null in its place. Otherwise a file that is opened later would get its number,
 * and messages would be written into that file. Standard error gets whole lines, so that messages
 * of several processes do not mix: without a buffer, glibc 2.37 and later writes a line in pieces
 * of 128 bytes. What does not end a line needs fflush. Ignore SIGXFSZ, so that a limit on the size
 * of files (ulimit -f) is an error like a full disk: what was begun is removed, and a sentence says
 * why. */
void report_begin(void);

/* For a program or verb that writes or deletes: a reader of its output or messages that ends
 * (`| head`, a log collector that crashes) must not kill it in the middle, nor before it has said
 * that its result is complete. Writing to the pipe is then an error, which print_done returns. */
void report_outlive_reader(void);

/* What is printed to a stream from now on goes to /dev/null, if that can be opened. */
void report_discard(FILE *stream);

/* What `main` returns for st: the contract's exit code. A failure is printed on stderr first, as
 * "PROG: sentence"; control characters (names come from files) are escaped
 * (text_escape). */
int report(const char *prog, tp_status st, const struct tp_err *err);

/* The same of a program that prints JSON when `json` is set: then a failure is also an object on
 * stdout, {"error": "sentence", "exit": code}. TP_E_NO is not a failure here. */
int report_json(bool json, const char *prog, tp_status st, const struct tp_err *err);

/* Print "PROG: sentence" on stderr: something that people should know, but not an error. */
void report_note(const char *prog, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

/* Whether standard error is a terminal on which a line can be rewritten. */
bool report_on_terminal(void);

/* How a program shows the progress of what it does. */
enum progress_style report_progress(bool json);

/* Parse argv by the table. True: the options are valid. False: return *exit_code, because help or
 * version was requested and printed, or the command line is wrong, which was printed too. usage is
 * the name that --help shows ("tp-ckpt verify"); its first word is the PROG of messages. intro and
 * tail as in opt_help. */
bool report_options(int *exit_code, const char *usage, const struct opt *opts, int argc,
                    char **argv, const char *intro, const char *tail);

/* The same for a program whose --version prints more lines, each ended by a newline. */
struct report_program {
    const char *usage, *intro, *tail;
    const char *version; /* or NULL */
};

bool report_program_options(int *exit_code, const struct report_program *p, const struct opt *opts,
                            int argc, char **argv);

#endif
