/* cli/ckpt/cmd_ls.c - tp-ckpt ls: the steps of a root. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ckpt/commit.h"
#include "cli/ckpt/cmd.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/size.h"

/* One line of the listing. */
struct entry {
    char name[NAME_MAX + 1];
    struct manifest m; /* when it is complete */
    int64_t bytes;
    time_t saved;      /* 0: unknown */
    struct tp_err why; /* what is wrong, or TP_OK */
};

static struct entry look(const char *root, const char *name, struct arena *arena)
{
    struct entry e;
    char path[PATH_MAX], dir[PATH_MAX];
    struct stat sb;

    memset(&e, 0, sizeof e);
    snprintf(e.name, sizeof e.name, "%s", name);
    if (snprintf(path, sizeof path, "%s/%s", root, name) >= (int)sizeof path) {
        tp_fail(&e.why, TP_E_USAGE, "path is too long");
        return e;
    }
    if (stat(path, &sb) == 0)
        e.saved = sb.st_mtime;
    if (strstr(name, ".tmp-"))
        tp_fail(&e.why, TP_E_NOTFOUND, "being written, or left by a save that did not finish");
    else
        ckpt_open(dir, &e.m, path, -1, arena, &e.why);
    for (int i = 0; i < e.m.n_shards; i++)
        e.bytes += e.m.shards[i].size_bytes;
    return e;
}

static void print_entry(const struct entry *e)
{
    char spec[SPEC_TEXT_MAX] = "-", size[SIZE_TEXT_MAX] = "-", when[32] = "-";
    struct tm tm;

    if (!e->why.status) {
        spec_format(spec, &e->m.layout.spec);
        size_format(size, e->bytes);
    }
    if (e->saved && localtime_r(&e->saved, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    printf("%-14s  %-16s  %6d  %10s  %-19s  ", e->name, spec, e->m.n_shards, size, when);
    print_safe(e->why.status ? e->why.msg : "complete");
    putchar('\n');
}

static json_t *entry_json(const struct entry *e)
{
    char spec[SPEC_TEXT_MAX];

    if (e->why.status)
        return json_pack("{s:s, s:b, s:s}", "name", e->name, "complete", 0, "reason", e->why.msg);
    return json_pack("{s:s, s:b, s:I, s:s, s:I, s:i, s:i, s:I}", "name", e->name, "complete", 1,
                     "step", (json_int_t)e->m.step, "layout", spec_format(spec, &e->m.layout.spec),
                     "bytes", (json_int_t)e->bytes, "shards", e->m.n_shards, "tensors",
                     e->m.layout.n_tensors, "saved", (json_int_t)e->saved);
}

/* The folder to list and its entries: a root's, or a step directory alone. */
static tp_status find_entries(char root[PATH_MAX], struct ckpt_step **steps, int *n,
                              const char *path, struct arena *arena, struct tp_err *err)
{
    char dir[PATH_MAX], *slash;
    tp_status st;

    TP_TRY(ckpt_locate(dir, path, -1, err)); /* refuses what is no checkpoint */
    TP_TRY(ckpt_list(steps, n, path, arena, err));
    snprintf(root, PATH_MAX, "%s", path);
    if (*n > 0)
        return TP_OK;
    *steps = arena_array(arena, 1, sizeof **steps);
    if (!*steps)
        return tp_fail(err, TP_E_NOMEM, "no memory to list %s", path);
    slash = strrchr(dir, '/');
    snprintf((*steps)->name, sizeof(*steps)->name, "%.200s", slash ? slash + 1 : dir);
    snprintf(root, PATH_MAX, "%s", ".");
    if (slash) {
        slash[slash == dir] = 0;
        snprintf(root, PATH_MAX, "%s", dir);
    }
    *n = 1;
done:
    return st;
}

int cmd_ls(int argc, char **argv)
{
    const char *path = NULL;
    bool json = false;
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct ckpt_step *steps = NULL;
    char root[PATH_MAX];
    json_t *list = json_array();
    int code, n = 0;
    tp_status st;
    const struct opt opts[] = { OPT_ARG("ROOT", &path, "checkpoint root, or one step of it"),
                                OPT_FLAG(0, "json", &json, "a JSON list, one object a step"),
                                OPT_END };

    if (!report_options(
            &code, "tp-ckpt ls", opts, argc, argv,
            "List the steps of a checkpoint root, oldest first: layout, shards, bytes,\n"
            "and whether each is complete. Complete means that the manifest is intact\n"
            "and every shard there with its length; `verify` reads the bytes too.",
            NULL)) {
        json_decref(list);
        return code;
    }
    TP_TRY(find_entries(root, &steps, &n, path, &arena, &err));
    if (!json)
        printf("%-14s  %-16s  %6s  %10s  %-19s  %s\n", "STEP", "LAYOUT", "SHARDS", "SIZE", "SAVED",
               "STATE");
    for (int i = 0; i < n; i++) {
        struct arena step_arena = { 0 };
        struct entry e = look(root, steps[i].name, &step_arena);

        if (json)
            json_array_append_new(list, entry_json(&e));
        else
            print_entry(&e);
        arena_free(&step_arena);
    }
    if (json)
        print_json(list);
done:
    json_decref(list);
    arena_free(&arena);
    return report("tp-ckpt", st, &err);
}
