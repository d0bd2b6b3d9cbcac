/* reshard/atomic_folder.c - see reshard/atomic_folder.h. */
#include "reshard/atomic_folder.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/root_lock.h"
#include "ckpt/temporary.h"
#include "core/file.h"
#include "core/file_exchange.h"
#include "core/file_tree.h"
#include "core/text.h"
#include "storage/location.h"

#define TMP_MARK ".tmp-"

/* Programs that begin the same folder at the same moment may take each other's new temporary folder
 * for one that a dead writer left. */
enum { TRIES = 16 };

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

/* Find out now what would fail when all is written: a rename cannot give the folder this name. */
static tp_status check_name(const char *dir, struct tp_err *err)
{
    const char *base = text_base_name(dir);
    char above[PATH_MAX];
    struct stat sb, above_sb;

    if (strcmp(base, ".") == 0 || strcmp(base, "..") == 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: cannot be replaced by a finished folder, because it ends in '%s'; name "
                       "the folder itself, or one in it",
                       dir, base);
    if (file_join(above, dir, "..", err))
        return err->status;
    if (stat(dir, &sb) == 0 && stat(above, &above_sb) == 0 && sb.st_dev != above_sb.st_dev)
        return tp_fail(err, TP_E_USAGE,
                       "%s: is a mount point, so a finished folder cannot take its place; name a "
                       "folder in it",
                       dir);
    return TP_OK;
}

static tp_status check_place(const struct atomic_folder *f, atomic_folder_replaceable *replaceable,
                             struct tp_err *err)
{
    tp_status st = check_name(f->dir, err);

    if (st || !file_exists(f->dir) || is_empty_dir(f->dir))
        return st;
    st = replaceable ? replaceable(f->dir, err) : TP_OK;
    if (!st && !f->force)
        st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", f->dir);
    return st;
}

/* The folder that contains dir, created if necessary. */
static tp_status make_parent(const char *dir, char parent[PATH_MAX], struct tp_err *err)
{
    file_parent(parent, dir);
    return file_make_dirs(parent, err);
}

/* Whether `name` is a temporary folder of the folder `base`. */
static bool is_temporary(const char *name, const char *base)
{
    const size_t n = strlen(base), mark = strlen(TMP_MARK), digits = SAVE_ID_TEXT - 1;

    return strlen(name) == n + mark + digits && strncmp(name, base, n) == 0 &&
           strncmp(name + n, TMP_MARK, mark) == 0 &&
           strspn(name + n + mark, "0123456789abcdef") == digits;
}

/* Take over a temporary folder, or remove it, if it is this user's and its writer is dead. */
static void inherit(struct atomic_folder *f, const char *path,
                    const struct atomic_folder_heir *heir)
{
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    struct stat sb;
    struct tp_err ignored;

    if (fd < 0)
        return;
    if (fstat(fd, &sb) == 0 && sb.st_uid == geteuid() && flock(fd, LOCK_EX | LOCK_NB) == 0) {
        if (!f->locked && heir && heir->wants(heir->ctx, path)) {
            snprintf(f->tmp, sizeof f->tmp, "%s", path);
            f->lock_fd = fd;
            f->locked = f->resumed = true;
            return;
        }
        file_tree_remove(path, &ignored);
    }
    close(fd);
}

/* Take over or remove what dead writers of f left. A failure to do so is no reason not to write. */
static void inherit_all(struct atomic_folder *f, const char *parent,
                        const struct atomic_folder_heir *heir)
{
    const char *slash = strrchr(f->dir, '/');
    DIR *d = opendir(parent);
    const struct dirent *e;
    char path[PATH_MAX];
    struct tp_err ignored;

    while (d && (e = readdir(d)))
        if (is_temporary(e->d_name, slash ? slash + 1 : f->dir) &&
            !file_join(path, parent, e->d_name, &ignored))
            inherit(f, path, heir);
    if (d)
        closedir(d);
}

/* Whether the descriptor is of the folder that has the name now. */
static bool is_same(int fd, const char *path)
{
    struct stat a, b;

    return fstat(fd, &a) == 0 && lstat(path, &b) == 0 && a.st_dev == b.st_dev &&
           a.st_ino == b.st_ino;
}

/* Create a temporary folder and lock it. *locked is false when another program removed it before
 * it was locked. */
static tp_status make_temporary(struct atomic_folder *f, bool *locked, struct tp_err *err)
{
    char id[SAVE_ID_TEXT];
    int fd;
    tp_status st = temporary_save_id(id, err);

    *locked = false;
    if (st)
        return st;
    snprintf(f->tmp, sizeof f->tmp, "%.*s" TMP_MARK "%s", PATH_MAX - SAVE_ID_TEXT - 8, f->dir, id);
    if (mkdir(f->tmp, 0777) != 0) {
        f->tmp[0] = 0;
        return tp_fail_errno(err, "%s: cannot create a temporary folder next to it", f->dir);
    }
    fd = open(f->tmp, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno != ENOENT)
        return tp_fail_errno(err, "%s: cannot open", f->tmp);
    *locked = fd >= 0 && (flock(fd, LOCK_EX | LOCK_NB) == 0 || root_lock_unsupported(errno)) &&
              is_same(fd, f->tmp);
    if (*locked)
        f->lock_fd = fd;
    else if (fd >= 0)
        close(fd);
    f->locked = *locked;
    return TP_OK;
}

/* Where the folder appears. A symbolic link to a folder stays, and what it leads to is replaced:
 * another disk may be meant, and a folder cannot be renamed to a link. */
static tp_status find_place(struct atomic_folder *f, const char *dir, struct tp_err *err)
{
    char target[PATH_MAX];
    struct stat sb;
    const size_t n = text_path_length(dir);

    if (n == 0 || snprintf(f->dir, sizeof f->dir, "%.*s", (int)n, dir) >= (int)sizeof f->dir)
        return tp_fail(err, TP_E_USAGE, "'%.100s': is not a valid folder name", dir);
    if (lstat(f->dir, &sb) == 0 && S_ISLNK(sb.st_mode) && realpath(f->dir, target) &&
        file_is_dir(target))
        memcpy(f->dir, target, strlen(target) + 1);
    if (strlen(f->dir) + SAVE_ID_TEXT + 8 > sizeof f->dir)
        return tp_fail(err, TP_E_USAGE, "'%.100s': is not a valid folder name", dir);
    return TP_OK;
}

tp_status atomic_folder_check(const char *dir, bool force, atomic_folder_replaceable *replaceable,
                              struct tp_err *err)
{
    struct atomic_folder f = { .force = force };
    tp_status st = location_check_local(dir, err);

    if (!st)
        st = find_place(&f, dir, err);
    return st ? st : check_place(&f, replaceable, err);
}

tp_status atomic_folder_begin(struct atomic_folder *f, const char *dir, bool force,
                              atomic_folder_replaceable *replaceable,
                              const struct atomic_folder_heir *heir, struct tp_err *err)
{
    char parent[PATH_MAX];
    bool locked;
    tp_status st;

    *f = (struct atomic_folder){ .force = force };
    if ((st = location_check_local(dir, err)))
        return st;
    TP_TRY(find_place(f, dir, err));
    TP_TRY(check_place(f, replaceable, err));
    TP_TRY(make_parent(f->dir, parent, err));
    inherit_all(f, parent, heir);
    locked = f->locked;
    for (int i = 0; i < TRIES && !locked; i++)
        TP_TRY(make_temporary(f, &locked, err));
    if (!locked)
        st = tp_fail(err, TP_E_IO, "%s: other programs remove its temporary folder; try again",
                     f->dir);
done:
    return st;
}

/* Give the temporary folder its name. *exchanged: it is now what had the name before. */
static tp_status rename_to_dir(const struct atomic_folder *f, bool *exchanged, struct tp_err *err)
{
    tp_status st;

    *exchanged = false;
    if (rename(f->tmp, f->dir) == 0) /* dir does not exist, or is an empty folder */
        return TP_OK;
    if (errno != EEXIST && errno != ENOTEMPTY)
        return tp_fail_errno(err, "%s: cannot rename %s to it", f->dir, f->tmp);
    if (!f->force)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already; another program was faster", f->dir);
    st = file_exchange(f->tmp, f->dir, err);
    *exchanged = !st;
    return st;
}

/* The new name may not be on the disk: take it back, so that what was there before stays. If that
 * fails too, the temporary folder may be what was there before, so it is not removed. */
static void undo_rename(struct atomic_folder *f, bool exchanged)
{
    if (!file_take_back(f->dir, f->tmp, exchanged))
        f->tmp[0] = 0;
}

/* Right before the rename, and not synced: a crash in between leaves a folder that cannot be
 * resumed. */
static tp_status remove_scratch(const struct atomic_folder *f, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st;

    if (!f->scratch)
        return TP_OK;
    st = file_join(path, f->tmp, f->scratch, err);
    if (!st && unlink(path) != 0 && errno != ENOENT)
        st = tp_fail_errno(err, "%s: cannot remove", path);
    return st;
}

tp_status atomic_folder_commit(struct atomic_folder *f, struct tp_err *err)
{
    char parent[PATH_MAX];
    bool exchanged;
    tp_status st;

    TP_TRY(file_sync_dir(f->tmp, err));
    TP_TRY(make_parent(f->dir, parent, err));
    TP_TRY(remove_scratch(f, err));
    TP_TRY(rename_to_dir(f, &exchanged, err));
    st = file_sync_dir(parent, err);
    if (st) {
        undo_rename(f, exchanged);
        goto done;
    }
    if (!exchanged)
        f->tmp[0] = 0;
    atomic_folder_abort(f); /* removes what was replaced */
done:
    return st;
}

void atomic_folder_suspend(struct atomic_folder *f)
{
    f->tmp[0] = 0;
    atomic_folder_abort(f);
}

void atomic_folder_abort(struct atomic_folder *f)
{
    struct tp_err ignored;

    if (f->tmp[0])
        file_tree_remove(f->tmp, &ignored);
    f->tmp[0] = 0;
    if (f->locked)
        close(f->lock_fd);
    f->locked = false;
}
