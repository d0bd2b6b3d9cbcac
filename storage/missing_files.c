/* storage/missing_files.c - see storage/missing_files.h. */
#include "storage/missing_files.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "storage/location.h"
#include "storage/object.h"

enum { NAMED_MAX = 4, NAMES_TEXT = 512 };

/* How many bytes all paths begin with, to the last '/'. */
static size_t common_folder(const char *const *paths, int n)
{
    size_t common = strlen(paths[0]);

    for (int i = 1; i < n; i++) {
        size_t same = 0;

        while (same < common && paths[i][same] == paths[0][same])
            same++;
        common = same;
    }
    while (common > 0 && paths[0][common - 1] != '/')
        common--;
    return common;
}

tp_status missing_files_fail(struct tp_err *err, const char *const *paths, int n)
{
    char names[NAMES_TEXT] = "";
    const size_t common = n > 0 ? common_folder(paths, n) : 0, used = strlen(err->msg);
    size_t length = 0;
    int missing = 0;

    err->status = TP_E_CORRUPT;
    for (int i = 0; i < n; i++) {
        if (location_is_remote(paths[i]))
            return err->status;
        if (object_is_there(paths[i]))
            continue;
        if (missing++ < NAMED_MAX && length < sizeof names)
            length += (size_t)snprintf(names + length, sizeof names - length, "%s%s",
                                       length ? ", " : "", paths[i] + common);
    }
    if (missing > NAMED_MAX)
        snprintf(err->msg + used, sizeof err->msg - used,
                 "; %d files of this checkpoint are missing: %s and %d others", missing, names,
                 missing - NAMED_MAX);
    else if (missing > 1)
        snprintf(err->msg + used, sizeof err->msg - used,
                 "; %d files of this checkpoint are missing: %s", missing, names);
    return err->status;
}
