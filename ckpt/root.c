/* ckpt/root.c - see ckpt/root.h. */
#include "ckpt/root.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/access.h"
#include "ckpt/root_lock.h"
#include "core/file.h"
#include "core/text.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/object.h"

/* Listings of a root that are tried when steps disappear between listing and opening them. */
enum { OPEN_TRIES = 10 };

/* A step directory was named together with a number, which must be its own. */
static tp_status check_number(const char *dir, int64_t number, int64_t asked, struct tp_err *err)
{
    if (asked < 0 || number == asked)
        return TP_OK;
    return tp_fail(err, TP_E_NOTFOUND, "%s: is step %lld, but step %lld was requested", dir,
                   (long long)number, (long long)asked);
}

/* Whether a step directory can be read, judged by its manifest and the lengths of its shards. */
static bool is_complete(const char *root, const struct ckpt_step *s)
{
    struct arena arena = { 0 };
    struct manifest m;
    struct tp_err err = { 0 };
    char path[PATH_MAX];
    int64_t step;
    bool ok = step_parse_name(&step, s->name) == STEP_DIR &&
              !file_join(path, root, s->name, &err) && !step_load(&m, path, &arena, &err);

    arena_free(&arena);
    return ok;
}

tp_status ckpt_list_names(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                          struct tp_err *err)
{
    struct ckpt_step *found = NULL, *copy;
    int count = 0;
    tp_status st = step_scan(&found, &count, root, err);

    if (st)
        return st;
    copy = arena_array(arena, (size_t)count, sizeof *copy);
    if (!copy) {
        free(found);
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", root);
    }
    memcpy(copy, found, (size_t)count * sizeof *copy);
    free(found);
    *steps = copy;
    *n = count;
    return TP_OK;
}

tp_status ckpt_list(struct ckpt_step **steps, int *n, const char *root, struct arena *arena,
                    struct tp_err *err)
{
    tp_status st = ckpt_list_names(steps, n, root, arena, err);

    for (int i = 0; !st && i < *n; i++)
        (*steps)[i].complete = is_complete(root, &(*steps)[i]);
    return st;
}

static tp_status is_step_dir(bool *is, const char *path, struct tp_err *err)
{
    char manifest[PATH_MAX];
    int64_t step;
    tp_status st;

    *is = step_parse_name(&step, text_base_name(path)) != STEP_NONE;
    if (*is)
        return TP_OK;
    st = file_join(manifest, path, MANIFEST_FILE, err);
    return st ? st : object_exists(is, manifest, err);
}

static tp_status check_is_dir(const char *path, struct tp_err *err)
{
    struct stat sb;

    if (location_is_remote(path))
        return TP_OK; /* a folder exists as long as there is something in it */
    if (stat(path, &sb) != 0 && (errno == ENOENT || errno == ENOTDIR))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such directory", path);
    if (stat(path, &sb) != 0)
        return tp_fail_errno(err, "%s: cannot open", path);
    if (!S_ISDIR(sb.st_mode))
        return tp_fail(err, TP_E_NOTFOUND, "%s: is not a directory, so it is not a checkpoint",
                       path);
    return TP_OK;
}

static tp_status open_step_dir(struct ckpt_found *out, const char *path, int64_t step,
                               struct arena *arena, struct tp_err *err)
{
    struct manifest found = { 0 };
    tp_status st = step_load(&found, path, arena, err);

    if (st == TP_E_NOTFOUND && !location_is_remote(path) && !file_exists(path))
        return step_fail_removed(path, err);
    if (st == TP_E_NOTFOUND && !location_is_remote(path) && !file_is_dir(path))
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: is not a directory, or a link that leads to none, so it is not a "
                       "checkpoint",
                       path);
    if (st == TP_E_NOTFOUND)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has no " MANIFEST_FILE ", so it is not a complete checkpoint; the "
                       "save was probably interrupted",
                       path);
    if (st)
        return st;
    if ((st = check_number(path, found.step, step, err)))
        return st;
    out->manifest = found;
    out->note[0] = 0;
    memmove(out->dir, path, strlen(path) + 1);
    return TP_OK;
}

/* A root, the first n characters of a path, has temporary directories alone. */
static tp_status fail_unfinished(const char *root, size_t n, const char *newest, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOTFOUND,
                   "%.*s: has no complete checkpoint, only what an interrupted save left (%s)",
                   (int)n, root, newest);
}

/* The newest step that can be opened. The note says which newer ones cannot. *gone: another program
 * has removed one of the steps meanwhile, so the list is out of date. */
static tp_status open_newest(struct ckpt_found *out, bool *gone, const char *root,
                             const struct ckpt_step *steps, int n, struct arena *arena,
                             struct tp_err *err)
{
    struct tp_err first = { 0 };
    int64_t step = 0;
    char path[PATH_MAX];

    *gone = false;
    for (int i = n - 1; i >= 0; i--) {
        struct tp_err why = { 0 };
        tp_status st;

        if (step_parse_name(&step, steps[i].name) != STEP_DIR)
            continue;
        st = file_join(path, root, steps[i].name, &why);
        if (!st)
            st = open_step_dir(out, path, -1, arena, &why);
        if (!st) {
            if (first.status)
                snprintf(out->note, sizeof out->note, "%.700s; falling back to %.200s", first.msg,
                         steps[i].name);
            return TP_OK;
        }
        if (st == TP_E_NOMEM) { /* not the fault of the step */
            *err = why;
            return st;
        }
        if (location_is_remote(path) && st == TP_E_IO) { /* the others cannot be read either */
            *err = why;
            return st;
        }
        *gone = *gone || (!location_is_remote(path) && !file_exists(path));
        if (!first.status)
            first = why;
    }
    if (!first.status)
        return fail_unfinished(root, strlen(root), steps[n - 1].name, err);
    *err = first;
    return err->status;
}

/* The list of the one step that is asked for. */
static tp_status list_asked(struct ckpt_step **steps, int *n, int64_t step, struct tp_err *err)
{
    *steps = calloc(1, sizeof **steps);
    if (!*steps)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of steps");
    step_name((*steps)->name, step);
    *n = 1;
    return TP_OK;
}

/* Find out what a path is: a step directory (*n = 0), or a root with entries (malloc'ed). A web
 * server has no listings, so if a step is asked for there (`step` is not negative), it is the only
 * entry. */
static tp_status examine(char clean[PATH_MAX], struct ckpt_step **steps, int *n, const char *path,
                         int64_t step, struct tp_err *err)
{
    bool is_step = false;
    tp_status st;

    *n = 0;
    TP_TRY(location_clean(clean, path, err));
    TP_TRY(check_is_dir(clean, err));
    TP_TRY(is_step_dir(&is_step, clean, err));
    if (is_step)
        return TP_OK;
    if (step >= 0 && location_kind(clean) == LOCATION_HTTP)
        return list_asked(steps, n, step, err);
    TP_TRY(step_scan(steps, n, clean, err));
    if (*n == 0)
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: is not a checkpoint: it contains neither " MANIFEST_FILE
                     " nor step-NNNNNNNN directories",
                     clean);
done:
    return st;
}

/* The directory of a step of a root; `newest` is the root's last entry, for the message. */
static tp_status step_dir_of(char dir[PATH_MAX], const char *root, int64_t step, const char *newest,
                             struct tp_err *err)
{
    char name[STEP_NAME_MAX];
    bool exists = true;
    tp_status st = file_join(dir, root, step_name(name, step), err);

    if (!st)
        st = folder_exists(&exists, dir, err);
    if (!st && !exists)
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no step %lld; its newest entry is %s", root,
                     (long long)step, newest);
    return st;
}

tp_status ckpt_open(struct ckpt_found *out, const char *path, int64_t step, struct arena *arena,
                    struct tp_err *err)
{
    char clean[PATH_MAX], dir[PATH_MAX];
    struct ckpt_step *steps = NULL;
    bool gone = true;
    int n = 0;
    tp_status st = TP_OK;

    for (int i = 0; i < OPEN_TRIES && gone; i++) {
        free(steps);
        steps = NULL;
        gone = false;
        TP_TRY(examine(clean, &steps, &n, path, step, err));
        if (n == 0) {
            st = open_step_dir(out, clean, step, arena, err);
        } else if (step < 0) {
            st = open_newest(out, &gone, clean, steps, n, arena, err);
        } else {
            TP_TRY(step_dir_of(dir, clean, step, steps[n - 1].name, err));
            st = open_step_dir(out, dir, step, arena, err);
        }
    }
done:
    free(steps);
    return st;
}

/* check_number of a step directory that may be damaged: without its manifest the name tells. */
static tp_status check_number_of(const char *dir, int64_t asked, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct tp_err ignored = { 0 };
    struct manifest m;
    int64_t number = -1;

    if (!step_read_manifest(&m, dir, &arena, &ignored))
        number = m.step;
    else if (step_parse_name(&number, text_base_name(dir)) == STEP_NONE)
        number = asked;
    arena_free(&arena);
    return check_number(dir, number, asked, err);
}

/* In a store, a step without a manifest is being saved or removed, or was never saved: find the
 * newest one that has one. */
static tp_status pass_unsaved(int *newest, const char *root, const struct ckpt_step *steps,
                              struct tp_err *err)
{
    char dir[PATH_MAX], path[PATH_MAX];
    bool exists = false;
    tp_status st;

    for (int i = *newest; i >= 0; i--) {
        TP_TRY(file_join(dir, root, steps[i].name, err));
        TP_TRY(file_join(path, dir, MANIFEST_FILE, err));
        TP_TRY(object_exists(&exists, path, err));
        if (exists) {
            *newest = i;
            return TP_OK;
        }
    }
    st = fail_unfinished(root, strlen(root), steps[*newest].name, err);
done:
    return st;
}

static tp_status locate(char dir[PATH_MAX], const char *path, int64_t step, bool saved,
                        struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    char clean[PATH_MAX];
    int64_t number = 0;
    int n = 0, newest;
    tp_status st;

    TP_TRY(examine(clean, &steps, &n, path, step, err));
    newest = n - 1;
    while (newest > 0 && step_parse_name(&number, steps[newest].name) != STEP_DIR)
        newest--;
    if (n == 0 && step >= 0)
        TP_TRY(check_number_of(clean, step, err));
    if (n > 0 && step < 0 && saved && location_kind(clean) == LOCATION_S3)
        TP_TRY(pass_unsaved(&newest, clean, steps, err));
    if (n == 0)
        memcpy(dir, clean, sizeof clean);
    else if (step >= 0)
        st = step_dir_of(dir, clean, step, steps[n - 1].name, err);
    else
        st = file_join(dir, clean, steps[newest].name, err);
done:
    free(steps);
    return st;
}

tp_status ckpt_locate(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err)
{
    return locate(dir, path, step, false, err);
}

tp_status ckpt_locate_saved(char dir[PATH_MAX], const char *path, int64_t step, struct tp_err *err)
{
    int64_t number;
    tp_status st = locate(dir, path, step, true, err);
    const char *name = text_base_name(dir);

    if (st || strlen(dir) == text_path_length(path) || step_parse_name(&number, name) != STEP_TMP)
        return st;
    return fail_unfinished(path, text_path_length(path), name, err);
}

tp_status ckpt_check_root(const char *root, struct tp_err *err)
{
    char path[PATH_MAX];
    tp_status st;

    if ((st = location_check_local(root, err)))
        return st;
    if (!*root)
        return tp_fail(err, TP_E_USAGE, "the path of the checkpoint is empty");
    if (file_exists(root) && !file_is_dir(root))
        return tp_fail(err, TP_E_USAGE, "%s: is not a directory, so it cannot be a checkpoint root",
                       root);
    if ((st = file_join(path, root, MANIFEST_FILE, err)))
        return st;
    if (file_exists(path))
        return tp_fail(err, TP_E_USAGE,
                       "%s: is one step of a checkpoint (it contains " MANIFEST_FILE
                       "); name the root, the directory of its steps",
                       root);
    return step_check_no_name(root, err);
}

/* ---- files of a root ---- */

void root_remove_leftovers(const char *root)
{
    static const char *const names[] = { "epoch.tmp", "latest.tmp", "owner.tmp" };
    char path[PATH_MAX];
    struct tp_err err;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (file_join(path, root, names[i], &err) == TP_OK)
            unlink(path);
}

void root_update_latest(const char *root)
{
    char link[PATH_MAX], tmp[PATH_MAX];
    struct ckpt_step *steps = NULL;
    struct tp_err err;
    int64_t step;
    int n = 0;

    if (file_join(link, root, "latest", &err) || file_join(tmp, root, "latest.tmp", &err) ||
        step_scan(&steps, &n, root, &err))
        return;
    while (n > 0 && step_parse_name(&step, steps[n - 1].name) != STEP_DIR)
        n--;
    unlink(tmp);
    if (n > 0 && symlink(steps[n - 1].name, tmp) == 0 && rename(tmp, link) != 0)
        unlink(tmp);
    free(steps);
}

void root_remove_if_empty(const char *root)
{
    char path[PATH_MAX];
    struct tp_err ignored;
    int lock = -1;

    if (!root_lock_try(&lock, root)) /* another process uses it, so it is not empty for long */
        return;
    if (!file_join(path, root, "lock", &ignored)) {
        unlink(path);
        if (rmdir(root) != 0) { /* another process has begun here and needs the lock */
            int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);

            if (fd >= 0) {
                access_limit(fd, root);
                close(fd);
            }
        }
    }
    close(lock);
}
