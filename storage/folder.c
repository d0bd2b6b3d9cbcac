/* storage/folder.c - see storage/folder.h. */
#include "storage/folder.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "storage/location.h"
#include "storage/s3_list.h"

static tp_status list_local(struct folder_entry **entries, int *n, const char *dir,
                            struct tp_err *err)
{
    struct folder_entry *list = NULL;
    struct dirent *entry;
    int count = 0, capacity = 0;
    DIR *d = opendir(dir);

    if (!d && (errno == ENOENT || errno == ENOTDIR))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such directory", dir);
    if (!d)
        return tp_fail_errno(err, "%s: cannot open the directory", dir);
    while ((errno = 0, entry = readdir(d))) {
        if (strcmp(entry->d_name, ".") == 0 || strcmp(entry->d_name, "..") == 0)
            continue;
        if (count == capacity) {
            struct folder_entry *more;

            capacity = capacity ? 2 * capacity : 32;
            more = realloc(list, (size_t)capacity * sizeof *list);
            if (!more) {
                errno = ENOMEM;
                break;
            }
            list = more;
        }
        list[count] = (struct folder_entry){ .size = -1 };
        snprintf(list[count++].name, sizeof list->name, "%s", entry->d_name);
    }
    if (errno) {
        tp_fail_errno(err, "%s: cannot list the directory", dir);
        closedir(d);
        free(list);
        return TP_E_IO;
    }
    closedir(d);
    *entries = list;
    *n = count;
    return TP_OK;
}

tp_status folder_list(struct folder_entry **entries, int *n, const char *dir, struct tp_err *err)
{
    tp_status st;

    switch (location_kind(dir)) {
    case LOCATION_LOCAL:
        return list_local(entries, n, dir, err);
    case LOCATION_HTTP:
        return tp_fail(err, TP_E_USAGE, "%s: the folders of a web server cannot be listed", dir);
    default:
        st = s3_list(entries, n, dir, err);
        if (!st && *n == 0)
            st = tp_fail(err, TP_E_NOTFOUND, "%s: no object has a key that begins with this", dir);
        return st;
    }
}

tp_status folder_exists(bool *exists, const char *dir, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    int n = 0;
    tp_status st = TP_OK;

    *exists = true;
    if (location_kind(dir) == LOCATION_LOCAL) {
        *exists = file_is_dir(dir);
    } else if (location_kind(dir) == LOCATION_S3) {
        st = folder_list(&entries, &n, dir, err);
        *exists = !st;
        st = st == TP_E_NOTFOUND ? TP_OK : st;
    }
    free(entries);
    return st;
}
