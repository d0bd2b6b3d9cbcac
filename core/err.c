/* core/err.c - see core/err.h. */
#include "core/err.h"

#undef tp_fail
#undef tp_fail_errno

#include <errno.h>
#include <stdio.h>
#include <string.h>

tp_status tp_fail(struct tp_err *err, tp_status st, const char *fmt, ...)
{
    va_list ap;

    err->status = st;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    return st;
}

tp_status tp_fail_errno(struct tp_err *err, const char *fmt, ...)
{
    int saved = errno;
    size_t used;
    va_list ap;

    err->status = TP_E_IO;
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, ": %s%s", strerror(saved),
             saved == EMFILE ? "; raise the limit of this process (ulimit -n)" : "");
    return TP_E_IO;
}

tp_status tp_fail_in(struct tp_err *err, const char *fmt, ...)
{
    char inner[TP_ERR_MAX];
    size_t used;
    va_list ap;

    memcpy(inner, err->msg, sizeof inner);
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    used = strlen(err->msg);
    snprintf(err->msg + used, sizeof err->msg - used, ": %s", inner);
    return err->status;
}

int tp_exit_code(tp_status st)
{
    switch (st) {
    case TP_OK:
        return 0;
    case TP_E_NO:
        return 1;
    case TP_E_USAGE:
    case TP_E_LAYOUT:
    case TP_E_NOTFOUND:
    case TP_E_EXISTS:
    case TP_E_BUDGET:
        return 2;
    case TP_E_STOPPED:
        return 75;
    default:
        return 3;
    }
}
