/* reshard/export_store.c - see reshard/export_store.h. */
#include "reshard/export_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/store_object.h"

enum { SMALL_FILE_BYTES = 256 << 20 };

/* ---- begin ---- */

/* Only a prefix without objects is written to, so nothing of others has to be replaced. */
static tp_status check_place(const struct export_store *s, struct tp_err *err)
{
    char path[PATH_MAX];
    struct folder_entry *entries = NULL;
    bool complete = false;
    int n = 0;
    tp_status st = folder_list(&entries, &n, s->to, err);

    if (st == TP_E_NOTFOUND)
        return TP_OK;
    for (int i = 0; i < n && !st; i++)
        complete |= strcmp(entries[i].name, s->mark) == 0;
    free(entries);
    if (st || (st = file_join(path, s->to, s->mark, err)))
        return st;
    if (complete)
        return tp_fail(err, TP_E_EXISTS,
                       "%s: exists already; a store cannot replace several objects in one go, so "
                       "remove it first, or name another prefix",
                       s->to);
    return tp_fail(err, TP_E_EXISTS,
                   "%s: has %d objects but no %s, so it is something else, or what a writer that "
                   "was killed left; remove them, or name another prefix",
                   s->to, n, s->mark);
}

tp_status export_store_begin(struct export_store *s, const char *to, const char *mark,
                             const char *scratch, int n_tensors, struct tp_err *err)
{
    size_t n = strlen(to);
    tp_status st;

    *s = (struct export_store){ .mark = mark };
    while (n > 0 && to[n - 1] == '/')
        n--; /* a store's key "a//b" is not "a/b" */
    if (snprintf(s->to, sizeof s->to, "%.*s", (int)n, to) >= (int)sizeof s->to)
        return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", to);
    if (location_kind(s->to) != LOCATION_S3)
        return tp_fail(err, TP_E_USAGE,
                       "%.400s: a web server cannot be written to; name a folder, or "
                       "s3://BUCKET/PREFIX",
                       s->to);
    TP_TRY(location_check(s->to, err));
    TP_TRY(check_place(s, err));
    TP_TRY(file_join(s->dir, scratch ? scratch : "/tmp", "tp-export-XXXXXX", err));
    if (!mkdtemp(s->dir)) {
        st = tp_fail_errno(err, "%s: cannot create a folder for headers and small files", s->dir);
        s->dir[0] = 0;
        goto done;
    }
    st = upload_set_new(&s->files, s->dir, s->to, n_tensors, err);
done:
    return st;
}

/* ---- small files ---- */

/* Files of the scratch folder, in the order in which they are sent. */
struct small_files {
    const struct export_store *store;
    struct arena arena;
    const char **paths;
    int n, room;
};

static tp_status add(struct small_files *f, const char *path, struct tp_err *err)
{
    if (f->n == f->room) {
        const int room = f->room ? 2 * f->room : 16;
        const char **grown = realloc((void *)f->paths, (size_t)room * sizeof *f->paths);

        if (grown) {
            f->paths = grown;
            f->room = room;
        }
    }
    if (f->n == f->room || !(f->paths[f->n] = arena_strdup(&f->arena, path)))
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of files", f->store->to);
    f->n++;
    return TP_OK;
}

/* Add the small files of a folder and of those in it, but not the one that is sent last. */
static tp_status add_all(struct small_files *f, const char *dir, struct tp_err *err)
{
    const struct export_store *s = f->store;
    struct folder_entry *entries = NULL;
    char path[PATH_MAX];
    int n = 0;
    tp_status st = folder_list(&entries, &n, dir, err);

    for (int i = 0; i < n && !st; i++) {
        TP_TRY(file_join(path, dir, entries[i].name, err));
        if (file_is_dir(path))
            st = add_all(f, path, err);
        else if (!upload_set_has(s->files, path) &&
                 (strcmp(entries[i].name, s->mark) != 0 || strcmp(dir, s->dir) != 0))
            st = add(f, path, err);
    }
done:
    free(entries);
    return st;
}

static tp_status list(struct small_files *f, struct tp_err *err)
{
    char mark[PATH_MAX];
    tp_status st = add_all(f, f->store->dir, err);

    if (!st)
        st = file_join(mark, f->store->dir, f->store->mark, err);
    return st ? st : add(f, mark, err);
}

/* Create an object with the bytes of a file; or remove it if it has them. */
static tp_status send(const struct export_store *s, const char *path, bool withdraw,
                      struct tp_err *err)
{
    struct arena arena = { 0 };
    char to[PATH_MAX], *data;
    size_t n;
    tp_status st;

    TP_TRY(file_join(to, s->to, path + strlen(s->dir) + 1, err));
    TP_TRY(file_read_all(&data, &n, path, SMALL_FILE_BYTES, &arena, err));
    st = withdraw ? store_object_withdraw(to, data, n, err) : store_object_create(to, data, n, err);
done:
    arena_free(&arena);
    return st;
}

tp_status export_store_commit(struct export_store *s, struct tp_err *err)
{
    struct small_files f = { .store = s };
    struct tp_err ignored;
    int sent = 0;
    tp_status st;

    TP_TRY(list(&f, err));
    TP_TRY(upload_set_appear(s->files, err));
    for (; sent < f.n && !st; sent++)
        st = send(s, f.paths[sent], false, err);
done:
    if (st == TP_E_EXISTS) /* the last one is another writer's */
        sent--;
    while (st && sent > 0)
        send(s, f.paths[--sent], true, &ignored);
    if (st)
        upload_set_remove(s->files);
    free((void *)f.paths);
    arena_free(&f.arena);
    return st;
}

void export_store_end(struct export_store *s)
{
    struct tp_err ignored;

    upload_set_free(s->files);
    s->files = NULL;
    if (s->dir[0])
        file_tree_remove(s->dir, &ignored);
    s->dir[0] = 0;
}
