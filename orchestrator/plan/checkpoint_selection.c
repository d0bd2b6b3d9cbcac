/* orchestrator/plan/checkpoint_selection.c - see orchestrator/plan/checkpoint_selection.h. */
#include "orchestrator/plan/checkpoint_selection.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"

static bool has_entries(const char *dir)
{
    DIR *d = opendir(dir);
    struct dirent *e;
    bool any = false;

    while (d && (e = readdir(d)))
        any = any || e->d_name[0] != '.';
    if (d)
        closedir(d);
    return any;
}

/* Read layout and size of the selected step from its manifest. */
static tp_status read_manifest(struct checkpoint_selection *c, struct arena *arena,
                               struct tp_err *err)
{
    struct ckpt_found found;
    tp_status st;

    if (c->step < 0)
        return TP_OK;
    st = ckpt_open(&found, c->dir, -1, arena, err);
    for (int i = 0; st == TP_OK && i < found.manifest.n_shards; i++)
        c->bytes += found.manifest.shards[i].size_bytes;
    if (st == TP_OK)
        c->spec = found.manifest.layout.spec;
    return st;
}

tp_status checkpoint_select(struct checkpoint_selection *out, const char *root, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps = NULL;
    struct checkpoint_selection c = { .step = -1 };
    char quarantine[PATH_MAX];
    int n = 0;
    tp_status st = ckpt_list(&steps, &n, root, &arena, err);

    if (st == TP_E_NOTFOUND)
        st = TP_OK;
    if (st)
        goto done;
    snprintf(quarantine, sizeof quarantine, "%s/quarantine", root);
    c.any_ever = has_entries(quarantine);
    for (int i = 0; i < n; i++) {
        c.any_ever = c.any_ever || strstr(steps[i].name, ".tmp") == NULL;
        if (!steps[i].complete || steps[i].step < c.step)
            continue;
        c.step = steps[i].step;
        snprintf(c.dir, sizeof c.dir, "%s/%s", root, steps[i].name);
    }
    if ((st = read_manifest(&c, &arena, err)))
        goto done;
    *out = c;
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

    if (n < 0 || (size_t)n + strlen(name) + 8 > sizeof dir)
        return tp_fail(err, TP_E_USAGE, "%s: path is too long", root);
    if ((st = file_make_dirs(dir, err)))
        return st;
    n = snprintf(to, PATH_MAX, "%s/%s", dir, name);
    for (int i = 1; file_exists(to) && i < 1000; i++)
        snprintf(to + n, (size_t)(PATH_MAX - n), ".%d", i);
    if (rename(c->dir, to) != 0)
        return tp_fail_errno(err, "%s: cannot move to %s", c->dir, to);
    return file_sync_dir(root, err);
}
