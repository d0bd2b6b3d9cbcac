/*
 * orchestrator/process/child.h - runs a short program without waiting for it.
 *
 * Its output is collected while it runs, or goes to a file that outlives tp-run. The caller reaps
 * it and then calls child_ended.
 */
#ifndef ORCHESTRATOR_PROCESS_CHILD_H
#define ORCHESTRATOR_PROCESS_CHILD_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"
#include "orchestrator/process/environment.h"

/* The exit code of a program that succeeded, but printed more than 64 MiB. */
enum { CHILD_TOO_LONG = 256 };

struct child {
    pid_t pid;      /* 0: none runs */
    int fd;         /* where output is read from while pid is set; else -1 */
    char *text;     /* the output so far, 0-terminated; malloc'ed, NULL: nothing */
    size_t n;       /* bytes of it */
    size_t room;    /* for bytes of it, without the 0 */
    bool too_long;  /* the text is only the beginning of the output */
    char last[300]; /* the last line of the output, after the end; "" for none */
    double until;   /* clock_seconds at which it is killed; 0: never */
};

struct child_setup {
    char *const *argv;
    const struct environment *env;
    const char *dir; /* working folder */
    const char *log; /* append the output to this file, in a session of its own; NULL: collect it */
};

/* Start a program. c: zeroes, or one that has ended. A program that cannot be executed exits with
 * 127 and a sentence as its output. TP_E_NOMEM. */
tp_status child_start(struct child *c, const struct child_setup *setup, struct tp_err *err);

/* Read the available output; kill the program if its time is over. */
void child_poll(struct child *c, double now);

/* It was reaped with this wait status. Returns its exit code, or 128 + signal, or CHILD_TOO_LONG,
 * which `last` then explains. Now the text is complete, without blanks at its end, and stays until
 * the next start or child_free. */
int child_ended(struct child *c, int status);

/* Kill and reap it if it runs, and free c. */
void child_free(struct child *c);

#endif
