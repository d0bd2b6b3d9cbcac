/*
 * orchestrator/watch/log_tail.h - reads the end of an attempt's log and finds the rank at fault.
 */
#ifndef ORCHESTRATOR_WATCH_LOG_TAIL_H
#define ORCHESTRATOR_WATCH_LOG_TAIL_H

#include <stddef.h>

/* The end of a file, 0-terminated; malloc'ed. NULL: it cannot be read. */
char *log_tail_read(const char *path);

/* What a log says about the end of the attempt. */
enum log_tail_end { LOG_TAIL_UNKNOWN, LOG_TAIL_LAUNCHER, LOG_TAIL_EXITED, LOG_TAIL_KILLED };

struct log_tail {
    enum log_tail_end end;
    int rank;       /* -1: no rank is named */
    int signal;     /* LOG_TAIL_KILLED: which one; 0: the line does not say it */
    char line[300]; /* the line that explains the end, "" */
};

/* Find the rank that a launcher names, and the line that explains the end. The launchers' own lines
 * and tables (torchrun, mpirun, srun, tp-run relay), which come last, do not explain it. The line
 * is the one that says that a signal killed the rank, else the exception of a Python traceback,
 * else the last one before the launcher's words. A rank that a signal killed is preferred ("rank 3
 * was killed by signal 9", "process rank 3 with PID 17 ... exited on signal 9"), then one that
 * ended by itself ("rank 3 ended with exit code 1"), then the first one in a line of the backend's
 * launcher, which rank_of_line reads (the rank, or -1; may be NULL), then the first one of tp-train
 * that says that it has failed ("tp-train: rank 2: GPU 2: ..."). text may be NULL. */
void log_tail_parse(struct log_tail *out, const char *text, int (*rank_of_line)(const char *line));

#endif
