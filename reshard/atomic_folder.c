/* reshard/atomic_folder.c - see reshard/atomic_folder.h. */
#include "reshard/atomic_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/file.h"

static bool is_empty_dir(const char *path)
{
    DIR *d = opendir(path);
    struct dirent *e;
    bool empty = d != NULL;

    while (d && empty && (e = readdir(d)))
        empty = strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0;
    if (d)
        closedir(d);
    return empty;
}

static tp_status check_place(const struct atomic_folder *f, const char *mark, struct tp_err *err)
{
    char path[PATH_MAX];

    if (!file_exists(f->dir) || is_empty_dir(f->dir))
        return TP_OK;
    if (!f->force)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", f->dir);
    if (!file_join(path, f->dir, mark, err) && file_exists(path))
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: has no %s, so --force does not replace it; remove it yourself if it is not "
                   "needed",
                   f->dir, mark);
}

/* The folder that contains dir, created if necessary. */
static tp_status make_parent(const char *dir, char parent[PATH_MAX], struct tp_err *err)
{
    char *slash;

    snprintf(parent, PATH_MAX, "%s", dir);
    slash = strrchr(parent, '/');
    if (!slash)
        snprintf(parent, PATH_MAX, ".");
    else if (slash == parent)
        slash[1] = 0;
    else
        *slash = 0;
    return file_make_dirs(parent, err);
}

tp_status atomic_folder_begin(struct atomic_folder *f, const char *dir, bool force,
                              const char *mark, struct tp_err *err)
{
    char parent[PATH_MAX];
    size_t n = strlen(dir);
    mode_t mask;
    tp_status st;

    *f = (struct atomic_folder){ .force = force };
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n == 0 || snprintf(f->dir, sizeof f->dir, "%.*s", (int)n, dir) + 16 > (int)sizeof f->dir)
        return tp_fail(err, TP_E_USAGE, "'%.100s': is not a valid folder name", dir);
    if ((st = check_place(f, mark, err)))
        return st;
    if ((st = make_parent(f->dir, parent, err)))
        return st;
    snprintf(f->tmp, sizeof f->tmp, "%.*s.tmp-XXXXXX", PATH_MAX - 16, f->dir);
    if (!mkdtemp(f->tmp)) {
        f->tmp[0] = 0;
        return tp_fail_errno(err, "%s: cannot create a temporary folder next to it", f->dir);
    }
    mask = umask(0); /* mkdtemp does not use the umask */
    umask(mask);
    if (chmod(f->tmp, 0777 & ~mask) != 0)
        return tp_fail_errno(err, "%s: cannot set its mode", f->tmp);
    return TP_OK;
}

tp_status atomic_folder_commit(struct atomic_folder *f, struct tp_err *err)
{
    char parent[PATH_MAX];
    tp_status st;

    TP_TRY(file_sync_dir(f->tmp, err));
    if (rename(f->tmp, f->dir) == 0) { /* dir does not exist, or is an empty folder */
        f->tmp[0] = 0;
    } else if (errno != EEXIST && errno != ENOTEMPTY) {
        st = tp_fail_errno(err, "%s: cannot rename %s to it", f->dir, f->tmp);
        goto done;
    } else if (!f->force) {
        st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", f->dir);
        goto done;
    } else if (renameat2(AT_FDCWD, f->tmp, AT_FDCWD, f->dir, RENAME_EXCHANGE) != 0) {
        st = tp_fail_errno(err, "%s: cannot exchange it with %s", f->dir, f->tmp);
        goto done;
    }
    TP_TRY(make_parent(f->dir, parent, err));
    TP_TRY(file_sync_dir(parent, err));
    atomic_folder_abort(f); /* removes what was replaced */
done:
    return st;
}

void atomic_folder_abort(struct atomic_folder *f)
{
    struct tp_err ignored;

    if (f->tmp[0])
        file_remove_tree(f->tmp, &ignored);
    f->tmp[0] = 0;
}
