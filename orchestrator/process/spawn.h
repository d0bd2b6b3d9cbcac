/*
 * orchestrator/process/spawn.h - starts a program in a process of its own.
 */
#ifndef ORCHESTRATOR_PROCESS_SPAWN_H
#define ORCHESTRATOR_PROCESS_SPAWN_H

#include <signal.h>
#include <stdbool.h>
#include <sys/types.h>

#include "orchestrator/process/environment.h"

/* The exit code of a process whose program could not be executed, as a shell has it. */
enum { SPAWN_NOT_EXECUTED = 127 };

struct spawn {
    char *const *argv; /* argv[0] is searched for in the PATH of `env` */
    const struct environment *env;
    const char *dir; /* working folder; NULL: this process's */
    int out;    /* becomes standard output and error; input is /dev/null. -1: inherit all three */
    int report; /* gets the errno (an int) when argv[0] cannot be executed; -1: a sentence is
                   written to standard error */
    const sigset_t *mask;  /* blocked signals, from the first moment; NULL: none */
    bool own_session;      /* a terminal's Ctrl-C does not reach it */
    bool own_group;        /* in a process group of its own */
    bool dies_with_parent; /* SIGKILL when this process ends */
    bool ignores_sigterm;
};

/* Returns the pid of the new process, or -1: see errno. The process exits with SPAWN_NOT_EXECUTED
 * if the program cannot be executed. */
pid_t spawn_start(const struct spawn *s);

#endif
