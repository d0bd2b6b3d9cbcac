/*
 * trainer/train_log.h - the log of a run: one JSON object for each step, on a line of its own,
 * with 9 significant digits; and the same as a line of text.
 */
#ifndef TRAINER_TRAIN_LOG_H
#define TRAINER_TRAIN_LOG_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum { TRAIN_LOG_TEXT_MAX = 512, TRAIN_LOG_WAITING_MAX = 256 << 10 };

struct train_log {
    const char *path; /* borrowed; NULL: there is no log */
    int fd;
    char *waiting;    /* [TRAIN_LOG_WAITING_MAX] lines that wait until they are written */
    size_t n_waiting; /* bytes of them */
    size_t n_written; /* of these bytes */
    int64_t lost;     /* lines for which there was no room */
};

struct train_log_entry {
    int64_t step;  /* from 0 */
    int64_t steps; /* of the run */
    double loss, grad_norm, lr;
    int64_t tokens; /* so far */
    double seconds; /* of the step, without the time for saving */
    double tokens_per_s;
    double save_seconds;        /* that the loop waited for saving after this step */
    double cpu_seconds;         /* processor time of all ranks since the previous entry */
    double comm_wait_seconds;   /* in collectives during the step, mean over ranks */
    double comm_hidden_seconds; /* of collectives that ran during computation */
    int64_t peak_rss_bytes;     /* of rank 0; no rank is larger */
    const char *layout;
};

/* Open for appending. *out is closed by train_log_close, also after a failure. */
tp_status train_log_open(struct train_log *out, const char *path, struct tp_err *err);

/* Remove what an earlier run wrote. */
tp_status train_log_empty(const struct train_log *l, struct tp_err *err);

/* Let the next line begin a line of the file. What an earlier run could not write to its end, for
 * example on a full disk, is removed if it begins as a line of a log does. */
tp_status train_log_continue(const struct train_log *l, struct tp_err *err);

/* Write the lines that wait, and the JSON line of e. TP_E_IO: what could not be written waits for
 * the next call. */
tp_status train_log_write(struct train_log *l, const struct train_log_entry *e, struct tp_err *err);

/* Write the lines that wait. Returns how many are not written, those without room included. */
int64_t train_log_flush(struct train_log *l, struct tp_err *err);

void train_log_close(struct train_log *l);

/* The line of text, without a newline. Returns buf. */
char *train_log_format(char buf[TRAIN_LOG_TEXT_MAX], const struct train_log_entry *e);

#endif
