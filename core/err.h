/*
 * core/err.h - how every function here reports failure.
 *
 * A function that can fail returns a tp_status and takes a `struct tp_err *` last. On failure it
 * fills the err with one sentence for people: which file, tensor or rank, what was expected, what
 * was found, what to do. The caller at the top prints it; libraries never print. `err` may not be
 * NULL. Outputs are unchanged on failure unless their header says otherwise.
 */
#ifndef CORE_ERR_H
#define CORE_ERR_H

#include <stdarg.h>

/* What kind of failure; the kind decides the exit code (tp_exit_code). */
typedef enum {
    TP_OK = 0,
    TP_E_NO,       /* the answer is no: verify found damage, diff found a difference   exit 1 */
    TP_E_USAGE,    /* the request is wrong: flag, value, path that is no checkpoint    exit 2 */
    TP_E_LAYOUT,   /* a layout that this model or checkpoint cannot have               exit 2 */
    TP_E_NOTFOUND, /* what the request names does not exist                            exit 2 */
    TP_E_EXISTS,   /* what the request would make exists already                       exit 2 */
    TP_E_BUDGET,   /* --mem is less than the least that is needed                      exit 2 */
    TP_E_IO,       /* the operating system refused                                     exit 3 */
    TP_E_CORRUPT,  /* bytes are not what their checksum or format says                 exit 3 */
    TP_E_NOMEM,    /* allocation failed                                                exit 3 */
    TP_E_COMM,     /* another rank died or MPI failed                                  exit 3 */
    TP_E_STALE,    /* a newer job owns this checkpoint root                            exit 3 */
    TP_E_INTERNAL, /* a bug here                                                       exit 3 */
    TP_E_STOPPED,  /* saved and stopped before the end                                exit 75 */
} tp_status;

#define TP_ERR_MAX 1024

struct tp_err {
    tp_status status;
    char msg[TP_ERR_MAX]; /* one sentence, no newline; "" when status is TP_OK */
};

/* Fill err and return st, so that `return tp_fail(err, TP_E_USAGE, "...")` reads well. */
tp_status tp_fail(struct tp_err *err, tp_status st, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

/* Like tp_fail with TP_E_IO; appends ": " and strerror(errno) as it is on entry. */
tp_status tp_fail_errno(struct tp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

/* Put "prefix: " before the message that err already holds; returns err->status. */
tp_status tp_fail_in(struct tp_err *err, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__
/* What a static analyzer, which sees one file at a time, is to know: these never answer TP_OK. */
#define tp_fail(err, st, ...)   ((void)tp_fail(err, st, __VA_ARGS__), (st))
#define tp_fail_errno(err, ...) ((void)tp_fail_errno(err, __VA_ARGS__), TP_E_IO)
#endif

/* The documented exit code for a status: 0, 1, 2, 3 or 75. */
int tp_exit_code(tp_status st);

/* Evaluate a call that returns tp_status; on failure leave it in the local `st`, `goto done`. */
#define TP_TRY(call)                \
    do {                            \
        if ((st = (call)) != TP_OK) \
            goto done;              \
    } while (0)

#endif
