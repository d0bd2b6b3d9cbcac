/* cli/ckpt/publish.c - see cli/ckpt/publish.h. */
#include "cli/ckpt/publish.h"

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

static tp_status check_place(const struct publish *p, const char *mark, struct tp_err *err)
{
    char path[PATH_MAX];

    if (!file_exists(p->dir) || is_empty_dir(p->dir))
        return TP_OK;
    if (!p->force)
        return tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", p->dir);
    if (snprintf(path, sizeof path, "%s/%s", p->dir, mark) < (int)sizeof path && file_exists(path))
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: has no %s, so it is not what --force may replace: remove it yourself",
                   p->dir, mark);
}

/* The folder that dir is in; what is behind the last slash is a name. */
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

tp_status publish_begin(struct publish *p, const char *dir, bool force, const char *mark,
                        struct tp_err *err)
{
    char parent[PATH_MAX];
    size_t n = strlen(dir);
    mode_t mask;
    tp_status st;

    *p = (struct publish){ .force = force };
    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n == 0 || snprintf(p->dir, sizeof p->dir, "%.*s", (int)n, dir) + 16 > (int)sizeof p->dir)
        return tp_fail(err, TP_E_USAGE, "'%.100s': no folder can have this name", dir);
    if ((st = check_place(p, mark, err)))
        return st;
    if ((st = make_parent(p->dir, parent, err)))
        return st;
    snprintf(p->tmp, sizeof p->tmp, "%.*s.tmp-XXXXXX", PATH_MAX - 16, p->dir);
    if (!mkdtemp(p->tmp)) {
        p->tmp[0] = 0;
        return tp_fail_errno(err, "%s: cannot create a folder beside it", p->dir);
    }
    mask = umask(0); /* as mkdir would have made it */
    umask(mask);
    if (chmod(p->tmp, 0777 & ~mask) != 0)
        return tp_fail_errno(err, "%s: cannot set its mode", p->tmp);
    return TP_OK;
}

tp_status publish_commit(struct publish *p, struct tp_err *err)
{
    char parent[PATH_MAX];
    tp_status st;

    TP_TRY(file_sync_dir(p->tmp, err));
    if (rename(p->tmp, p->dir) == 0) { /* there is nothing, or an empty folder */
        p->tmp[0] = 0;
    } else if (errno != EEXIST && errno != ENOTEMPTY) {
        st = tp_fail_errno(err, "%s: cannot rename %s to it", p->dir, p->tmp);
        goto done;
    } else if (!p->force) {
        st = tp_fail(err, TP_E_EXISTS, "%s: exists already; --force replaces it", p->dir);
        goto done;
    } else if (renameat2(AT_FDCWD, p->tmp, AT_FDCWD, p->dir, RENAME_EXCHANGE) != 0) {
        st = tp_fail_errno(err, "%s: cannot exchange it with %s", p->dir, p->tmp);
        goto done;
    }
    TP_TRY(make_parent(p->dir, parent, err));
    TP_TRY(file_sync_dir(parent, err));
    publish_abort(p); /* what was replaced */
done:
    return st;
}

void publish_abort(struct publish *p)
{
    struct tp_err ignored;

    if (p->tmp[0])
        file_remove_tree(p->tmp, &ignored);
    p->tmp[0] = 0;
}
