/* cli/ckpt/cmd_ls.c - tp-ckpt ls: list the steps of a root. */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "ckpt/root.h"
#include "cli/ckpt/cmd.h"
#include "cli/ckpt/foreign.h"
#include "cli/print.h"
#include "cli/report.h"
#include "core/file.h"
#include "core/size.h"
#include "core/text.h"
#include "reshard/foreign_contents.h"
#include "reshard/formats/foreign.h"
#include "storage/location.h"

static const char intro[] =
    "Lists the steps of a checkpoint root, oldest first: layout, shards, size, and whether each "
    "is\n"
    "complete. A step is complete when its manifest is intact and every shard exists with its\n"
    "length; `tp-ckpt verify` reads the bytes too. A checkpoint of another framework is one line.";

struct ls_entry {
    const char *name;
    struct ckpt_found found; /* when it is complete */
    int64_t bytes;
    time_t saved;      /* 0: unknown */
    struct tp_err why; /* why it is not complete, or TP_OK */
};

static void examine(struct ls_entry *e, const char *root, const char *name, struct arena *arena)
{
    char path[PATH_MAX];
    struct stat sb;

    memset(e, 0, sizeof *e);
    e->name = name;
    if (file_join(path, root, name, &e->why))
        return;
    if (stat(path, &sb) == 0)
        e->saved = sb.st_mtime;
    if (strstr(name, ".tmp-"))
        tp_fail(&e->why, TP_E_NOTFOUND, "is being written, or was left by an interrupted save");
    else
        ckpt_open(&e->found, path, -1, arena, &e->why);
    for (int i = 0; i < e->found.manifest.n_shards; i++)
        e->bytes += e->found.manifest.shards[i].size_bytes;
}

static void print_entry(const struct ls_entry *e)
{
    char spec[SPEC_TEXT_MAX] = "-", size[SIZE_TEXT_MAX] = "-", when[32] = "-";
    char name[4 * NAME_MAX + 1]; /* an escaped byte takes four */
    const struct manifest *m = &e->found.manifest;
    struct tm tm;

    if (!e->why.status) {
        spec_format(spec, &m->layout.spec);
        size_format(size, e->bytes);
    }
    if (e->saved && localtime_r(&e->saved, &tm))
        strftime(when, sizeof when, "%Y-%m-%d %H:%M:%S", &tm);
    printf("%-14s  %-16s  %6d  %10s  %-19s  ", text_escape(name, sizeof name, e->name), spec,
           m->n_shards, size, when);
    print_safe(e->why.status ? e->why.msg : "complete");
    putchar('\n');
}

static json_t *entry_json(const struct ls_entry *e)
{
    const struct manifest *m = &e->found.manifest;
    char spec[SPEC_TEXT_MAX];

    if (e->why.status)
        return json_pack("{s:o, s:b, s:o}", "name", print_text(e->name), "complete", 0, "reason",
                         print_text(e->why.msg));
    return json_pack("{s:o, s:b, s:I, s:s, s:I, s:i, s:i, s:I}", "name", print_text(e->name),
                     "complete", 1, "step", (json_int_t)m->step, "layout",
                     spec_format(spec, &m->layout.spec), "bytes", (json_int_t)e->bytes, "shards",
                     m->n_shards, "tensors", m->layout.n_tensors, "saved", (json_int_t)e->saved);
}

/* Split a path into folder and name: "a/b" into "a" and "b", "/b" into "/" and "b". */
static void split_path(char folder[PATH_MAX], char name[NAME_MAX + 1], const char *path)
{
    const char *slash = strrchr(path, '/');
    int n = slash ? (int)(slash - path) + (slash == path) : 0;

    snprintf(folder, PATH_MAX, "%.*s", slash ? n : 1, slash ? path : ".");
    snprintf(name, NAME_MAX + 1, "%.*s", NAME_MAX, slash ? slash + 1 : path);
}

/* The folder to list and its entries: a root's, or a step directory alone. */
static tp_status find_entries(char root[PATH_MAX], struct ckpt_step **steps, int *n,
                              const char *path, struct arena *arena, struct tp_err *err)
{
    char dir[PATH_MAX];
    tp_status st;

    TP_TRY(ckpt_locate(dir, path, -1, err)); /* refuses what is not a checkpoint */
    TP_TRY(ckpt_list_names(steps, n, path, arena, err));
    snprintf(root, PATH_MAX, "%s", path);
    if (*n > 0)
        return TP_OK;
    *steps = arena_array(arena, 1, sizeof **steps);
    if (!*steps)
        return tp_fail(err, TP_E_NOMEM, "no memory to list %s", path);
    split_path(root, (*steps)->name, dir);
    *n = 1;
done:
    return st;
}

/* Steps come first (foreign_contents_find); what else is in the folder must not be hidden. */
static void note_foreign(const char *root)
{
    const struct foreign_format *other =
        location_is_remote(root) ? NULL : foreign_format_detect_any(root);

    if (other)
        report_note("tp-ckpt",
                    "%s also has files of %s; beside steps they are not read: move them into a "
                    "folder of their own",
                    root, other->title);
}

static tp_status list(const char *given, bool json, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps = NULL;
    json_t *entries = json_array();
    char root[PATH_MAX], path[PATH_MAX];
    int n = 0;
    tp_status st;

    TP_TRY(location_clean(path, given, err));
    TP_TRY(find_entries(root, &steps, &n, path, &arena, err));
    if (!json)
        printf("%-14s  %-16s  %6s  %10s  %-19s  %s\n", "STEP", "LAYOUT", "SHARDS", "SIZE", "SAVED",
               "STATE");
    for (int i = 0; i < n; i++) {
        struct arena step_arena = { 0 };
        struct ls_entry e;

        examine(&e, root, steps[i].name, &step_arena);
        if (json)
            json_array_append_new(entries, entry_json(&e));
        else
            print_entry(&e);
        arena_free(&step_arena);
    }
    if (json)
        print_json(entries);
    st = print_done(err);
    note_foreign(root);
done:
    json_decref(entries);
    arena_free(&arena);
    return st;
}

int cmd_ls(int argc, char **argv)
{
    struct foreign_contents_request from = { .step = -1, .memory_bytes = FOREIGN_MEMORY_BYTES };
    bool json = false;
    struct tp_err err = { 0 };
    int code;
    tp_status st;
    const struct opt opts[] = {
        OPT_ARG("ROOT", &from.path, "checkpoint root, or one of its steps"), FOREIGN_OPTIONS(&from),
        OPT_FLAG(0, "json", &json, "print a JSON list, one object per step"), OPT_END
    };

    if (!report_options(&code, "tp-ckpt ls", opts, argc, argv, intro, NULL))
        return code;
    st = foreign_contents_find(&from.format, from.path, -1, &err);
    if (!st)
        st = from.format ? foreign_ls(&from, json, &err) : list(from.path, json, &err);
    return report_json(json, "tp-ckpt", st, &err);
}
