/*
 * core/err.h - how functions report failure.
 *
 * A function that can fail returns a tp_status and takes a `struct tp_err *` as its last argument.
 * On failure it writes one sentence into it, for people: which file, tensor or rank, what was
 * expected, what was found, what to do. Libraries do not print; the program's main function prints
 * the sentence and turns the status into an exit code. `err` must not be NULL. Outputs keep their
 * values on failure unless the function's comment says otherwise.
 *
 *     tp_status thing_read(struct thing *out, const char *path, struct tp_err *err)
 *     {
 *         tp_status st;
 *
 *         TP_TRY(thing_open(path, err));
 *         if (!out->name)
 *             st = tp_fail(err, TP_E_CORRUPT, "%s: has no name", path);
 *     done:
 *         thing_close();
 *         return st;
 *     }
 */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#include <stdarg.h>

/* The kind of failure, which decides the exit code (tp_exit_code). */
typedef enum {
    TP_OK = 0,
    TP_E_NO,       /* the answer is no: verify found damage, diff found a difference   exit 1 */
    TP_E_USAGE,    /* the request is wrong: flag, value, path without a checkpoint      exit 2 */
    TP_E_LAYOUT,   /* a layout that does not fit the model or checkpoint               exit 2 */
    TP_E_NOTFOUND, /* what the request names does not exist                            exit 2 */
    TP_E_EXISTS,   /* what the request would create exists already                     exit 2 */
    TP_E_BUDGET,   /* --mem is too small                                               exit 2 */
    TP_E_IO,       /* the operating system reported an error                           exit 3 */
    TP_E_CORRUPT,  /* the bytes do not agree with their checksum or format             exit 3 */
    TP_E_NOMEM,    /* an allocation failed                                             exit 3 */
    TP_E_COMM,     /* another rank died, or MPI failed                                 exit 3 */
    TP_E_GPU,      /* CUDA reported an error of a GPU                                  exit 3 */
    TP_E_GPU_FULL, /* the memory of a GPU does not suffice                             exit 3 */
    TP_E_STALE,    /* a newer job owns this checkpoint root                            exit 3 */
    TP_E_INTERNAL, /* a bug in this program                                            exit 3 */
    TP_E_STOPPED,  /* saved and stopped before the end                                exit 75 */
} tp_status;

#define TP_ERR_MAX 1024

struct tp_err {
    tp_status status;
    char msg[TP_ERR_MAX]; /* one sentence without a newline; "" when status is TP_OK */
};

/* Write the message and status to err. Returns st, so that a function can
 * `return tp_fail(err, TP_E_USAGE, "...")`. */
tp_status tp_fail(struct tp_err *err, tp_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* tp_fail with TP_E_IO, and the text of errno after the message. */
tp_status tp_fail_errno(struct tp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Put "prefix: " before the message that err holds. Returns err->status. */
tp_status tp_fail_in(struct tp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
/* A static analyzer sees one source file at a time; this shows it that they never return TP_OK. */
#define tp_fail(err, st, ...)   ((void)tp_fail(err, st, __VA_ARGS__), (st))
#define tp_fail_errno(err, ...) ((void)tp_fail_errno(err, __VA_ARGS__), TP_E_IO)
#endif

/* The exit code for a status: 0, 1, 2, 3 or 75. */
int tp_exit_code(tp_status st);

/* Evaluate a call that returns tp_status. On failure keep the status in the local variable `st` and
 * `goto done`. */
#define TP_TRY(call)                \
    do {                            \
        if ((st = (call)) != TP_OK) \
            goto done;              \
    } while (0)

#endif
