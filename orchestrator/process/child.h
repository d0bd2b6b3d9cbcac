/*
 * orchestrator/process/child.h - a short program at work for tp-run, which does not wait for it.
 *
 * Its output is collected while it runs, or goes to a file that outlives tp-run. Whoever reaps
 * processes tells child_over. What Slurm put into tp-run's own environment is kept from it, but for
 * where Slurm is: a request made inside a job must not take that job's shape.
 */
#ifndef ORCHESTRATOR_PROCESS_CHILD_H
#define ORCHESTRATOR_PROCESS_CHILD_H

#include <stddef.h>
#include <sys/types.h>

#include "core/err.h"

struct child {
    pid_t pid;  /* 0: none is at work */
    int fd;     /* its output, while pid is set and it is collected; else -1 */
    char *text; /* what it said so far, 0-terminated; malloc'ed, NULL: nothing */
    size_t n;
    double until; /* CLOCK_MONOTONIC seconds: killed then; 0: never */
};

/* Start argv in folder dir, stdout and stderr together collected, or with log appended to that
 * file, in a session of its own, so that a terminal's Ctrl-C does not reach it. c: zeroes, or one
 * that is over. TP_E_NOMEM. A program that cannot be executed says so and exits with 127. */
tp_status child_start(struct child *c, char *const *argv, const char *dir, const char *log,
                      struct tp_err *err);

/* Forget, in this process, what Slurm put into the environment about a job. */
void child_forget_job(void);

/* Take what it has said; kill it when its time is over. */
void child_look(struct child *c, double now);

/* It was reaped with this wait status. Its exit code, 128 + signal; c->text is complete, without
 * blanks at its end. pid is 0 after it, the text stays until the next start or child_free. */
int child_over(struct child *c, int status);

/* The last line it said, "" for none. */
const char *child_last_line(const struct child *c);

/* Kill and reap it if it is at work, and free. */
void child_free(struct child *c);

#endif
