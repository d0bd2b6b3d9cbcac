/*
 * core/process_stat.h - what the kernel says about a process in /proc/PID/stat (proc(5)).
 */
#ifndef CORE_PROCESS_STAT_H
#define CORE_PROCESS_STAT_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

struct process_stat {
    char name[16];    /* of the executable, cut to 15 bytes by the kernel; any bytes */
    char state;       /* 'R' runs, 'S' or 'D' waits, 'T' or 't' is stopped, 'Z' has ended */
    int64_t start;    /* when it started, in clock ticks since boot: a pid that is used again for
                         another process has another start */
    int status;       /* 'Z': its wait status, as waitpid will report it; otherwise 0 */
    bool has_program; /* false: a thread of the kernel, or a process that has ended or is exiting */
    int64_t env_bytes; /* of the environment that its program was started with; -1: there is none
                          now, because it executes a program at this moment, has no program, or is
                          another user's */
};

/* Read the entry of `pid`, or of the calling process. False, with *out zeroed: there is no such
 * process, or /proc does not show it. */
bool process_stat_read(struct process_stat *out, pid_t pid);
bool process_stat_self(struct process_stat *out);

/* For how long the threads of this process could have run but had no processor, in nanoseconds: the
 * sum of all threads that live (/proc/self/task/N/schedstat). 0: the kernel does not say. */
int64_t process_stat_delay(void);

#endif
