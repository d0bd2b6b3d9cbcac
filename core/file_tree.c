/* core/file_tree.c - see core/file_tree.h. */
#include "core/file_tree.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { DEPTH_MAX = 256 }; /* each level needs a descriptor */

static tp_status remove_entry(int dir, const char *name, const char *path, uid_t owner, int depth,
                              struct tp_err *err);

/* Remove all that is in the open directory, which is closed. */
static tp_status remove_contents(int fd, const char *path, uid_t owner, int depth,
                                 struct tp_err *err)
{
    DIR *d = fdopendir(fd);
    const struct dirent *e;
    tp_status st = TP_OK;

    if (!d) {
        tp_fail_errno(err, "%s: cannot list", path);
        close(fd);
        return TP_E_IO;
    }
    while (st == TP_OK && (e = readdir(d)))
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0)
            st = remove_entry(dirfd(d), e->d_name, path, owner, depth + 1, err);
    closedir(d);
    return st;
}

/* `path` is for messages: of the tree, or of its parent. */
static tp_status remove_entry(int dir, const char *name, const char *path, uid_t owner, int depth,
                              struct tp_err *err)
{
    struct stat sb;
    int fd;

    if (unlinkat(dir, name, 0) == 0 || errno == ENOENT)
        return TP_OK;
    if (errno != EISDIR && errno != EPERM)
        return tp_fail_errno(err, "%s: cannot remove %s", path, name);
    fd = openat(dir, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return TP_OK;
    if (fd < 0 && (errno == ENOTDIR || errno == ELOOP)) /* a file that may not be removed */
        errno = EPERM;
    if (fd < 0 || fstat(fd, &sb) != 0) {
        tp_fail_errno(err, "%s: cannot remove %s", path, name);
        if (fd >= 0)
            close(fd);
        return TP_E_IO;
    }
    if ((owner != FILE_TREE_ANY_OWNER && sb.st_uid != owner) || depth > DEPTH_MAX) {
        close(fd);
        return tp_fail(err, TP_E_IO, "%s: %s is not removed, because it %s", path, name,
                       depth > DEPTH_MAX ? "is too deep" : "belongs to another user");
    }
    if (remove_contents(fd, path, owner, depth, err))
        return err->status;
    if (unlinkat(dir, name, AT_REMOVEDIR) != 0 && errno != ENOENT)
        return tp_fail_errno(err, "%s: cannot remove %s", path, name);
    return TP_OK;
}

tp_status file_tree_remove(const char *path, struct tp_err *err)
{
    return remove_entry(AT_FDCWD, path, path, FILE_TREE_ANY_OWNER, 0, err);
}

tp_status file_tree_remove_at(int dir, const char *name, uid_t owner, struct tp_err *err)
{
    return remove_entry(dir, name, name, owner, 0, err);
}
