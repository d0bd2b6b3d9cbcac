/* core/file_exchange.c - see core/file_exchange.h. */
#include "core/file_exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <unistd.h>

/* Report errno, and give b its name again. a_is_there: a has its own name, so b is free. */
static tp_status undo(const char *a, const char *b, const char *aside, bool a_is_there,
                      struct tp_err *err)
{
    tp_fail_errno(err, "%s: cannot exchange it with %s", b, a);
    if ((a_is_there || rename(b, a) == 0) && rename(aside, b) == 0)
        return err->status;
    return tp_fail_in(err, "what was %s is now %s", b, aside);
}

static tp_status rename_thrice(const char *a, const char *b, struct tp_err *err)
{
    char aside[PATH_MAX];

    if (snprintf(aside, sizeof aside, "%s.replaced-%ld", b, (long)getpid()) >= (int)sizeof aside)
        return tp_fail(err, TP_E_USAGE, "%.200s...: the path is too long", b);
    if (rename(b, aside) != 0)
        return tp_fail_errno(err, "%s: cannot rename it to %s", b, aside);
    if (rename(a, b) != 0)
        return undo(a, b, aside, true, err);
    if (rename(aside, a) != 0)
        return undo(a, b, aside, false, err);
    return TP_OK;
}

tp_status file_exchange(const char *a, const char *b, struct tp_err *err)
{
    if (renameat2(AT_FDCWD, a, AT_FDCWD, b, RENAME_EXCHANGE) == 0)
        return TP_OK;
    if (errno == EINVAL || errno == ENOSYS)
        return rename_thrice(a, b, err);
    return tp_fail_errno(err, "%s: cannot exchange it with %s", b, a);
}

bool file_take_back(const char *path, const char *tmp, bool exchanged)
{
    struct tp_err ignored;

    return exchanged ? file_exchange(path, tmp, &ignored) == TP_OK : rename(path, tmp) == 0;
}
