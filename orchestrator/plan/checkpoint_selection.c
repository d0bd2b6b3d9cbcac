/* orchestrator/plan/checkpoint_selection.c - see orchestrator/plan/checkpoint_selection.h. */
#include "orchestrator/plan/checkpoint_selection.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/object.h"
#include "storage/store_object.h"

enum { QUARANTINES_MAX = 1000 }; /* of one step */

/* Whether a folder has entries. What cannot be known is an error of a store only. */
static tp_status has_entries(bool *any, const char *dir, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    int n = 0;
    tp_status st = folder_list(&entries, &n, dir, err);

    *any = false;
    for (int i = 0; i < n && !st; i++)
        *any = *any || entries[i].name[0] != '.';
    free(entries);
    return st == TP_E_NOTFOUND || !location_is_remote(dir) ? TP_OK : st;
}

static void take_manifest(struct checkpoint_selection *c, const struct manifest *m)
{
    c->spec = m->layout.spec;
    for (int i = 0; i < m->n_shards; i++)
        c->bytes += m->shards[i].size_bytes;
}

static tp_status select_local(struct checkpoint_selection *c, const char *root, struct arena *arena,
                              struct tp_err *err)
{
    struct ckpt_step *steps = NULL;
    struct ckpt_found found;
    int n = 0;
    tp_status st = ckpt_list(&steps, &n, root, arena, err);

    for (int i = 0; i < n && !st; i++) {
        c->any_ever = c->any_ever || strstr(steps[i].name, ".tmp") == NULL;
        if (!steps[i].complete || steps[i].step < c->step)
            continue;
        c->step = steps[i].step;
        snprintf(c->dir, sizeof c->dir, "%s/%s", root, steps[i].name);
    }
    if (st || c->step < 0)
        return st == TP_E_NOTFOUND ? TP_OK : st;
    st = ckpt_open(&found, c->dir, -1, arena, err);
    if (!st)
        take_manifest(c, &found.manifest);
    return st;
}

/* In a store shards without a manifest are what a dead writer left, and no step. A store that does
 * not answer is an error: its newest step must not be skipped. */
static tp_status select_in_store(struct checkpoint_selection *c, const char *root,
                                 struct arena *arena, struct tp_err *err)
{
    struct ckpt_found found;
    tp_status st = ckpt_open(&found, root, -1, arena, err);

    c->any_ever = c->any_ever || st == TP_OK || st == TP_E_CORRUPT;
    if (st == TP_E_NOTFOUND || st == TP_E_CORRUPT)
        return TP_OK;
    if (st)
        return st;
    c->step = found.manifest.step;
    snprintf(c->dir, sizeof c->dir, "%s", found.dir);
    take_manifest(c, &found.manifest);
    return TP_OK;
}

tp_status checkpoint_select(struct checkpoint_selection *out, const char *root, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct checkpoint_selection c = { .step = -1 };
    char quarantine[PATH_MAX];
    tp_status st;

    snprintf(quarantine, sizeof quarantine, "%s/quarantine", root);
    st = has_entries(&c.any_ever, quarantine, err);
    if (!st)
        st = location_is_remote(root) ? select_in_store(&c, root, &arena, err)
                                      : select_local(&c, root, &arena, err);
    if (!st)
        *out = c;
    arena_free(&arena);
    return st;
}

/* A store cannot rename. So only the manifest moves: without it there is no step, and its shards
 * are removed by the next writer of the step. */
static tp_status quarantine_in_store(char to[PATH_MAX], const struct checkpoint_selection *c,
                                     const char *root, struct tp_err *err)
{
    struct arena arena = { 0 };
    char from[PATH_MAX], suffix[16] = "", *text = NULL;
    size_t size = 0;
    tp_status st;

    TP_TRY(file_join(from, c->dir, MANIFEST_FILE, err));
    TP_TRY(object_read_all(&text, &size, from, MANIFEST_MAX_BYTES, &arena, err));
    st = TP_E_EXISTS;
    for (int i = 0; i < QUARANTINES_MAX && st == TP_E_EXISTS; i++) {
        if (i)
            snprintf(suffix, sizeof suffix, ".%d", i);
        if (snprintf(to, PATH_MAX, "%s/quarantine/%s%s/" MANIFEST_FILE, root,
                     strrchr(c->dir, '/') + 1, suffix) >= PATH_MAX)
            TP_TRY(tp_fail(err, TP_E_USAGE, "%s: path is too long", root));
        st = store_object_create(to, text, size, err);
    }
    if (!st)
        st = store_object_withdraw(from, text, size, err);
done:
    arena_free(&arena);
    return st;
}

tp_status checkpoint_quarantine(char to[PATH_MAX], const struct checkpoint_selection *c,
                                const char *root, struct tp_err *err)
{
    char dir[PATH_MAX];
    const char *name = strrchr(c->dir, '/') + 1;
    int n = snprintf(dir, sizeof dir, "%s/quarantine", root);
    tp_status st;

    if (location_is_remote(root))
        return quarantine_in_store(to, c, root, err);
    if (n < 0 || (size_t)n + strlen(name) + 8 > sizeof dir)
        return tp_fail(err, TP_E_USAGE, "%s: path is too long", root);
    if ((st = file_make_dirs(dir, err)))
        return st;
    n = snprintf(to, PATH_MAX, "%s/%s", dir, name);
    for (int i = 1; file_exists(to) && i < QUARANTINES_MAX; i++)
        snprintf(to + n, (size_t)(PATH_MAX - n), ".%d", i);
    if (rename(c->dir, to) != 0)
        return tp_fail_errno(err, "%s: cannot move to %s", c->dir, to);
    return file_sync_dir(root, err);
}
