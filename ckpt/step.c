/* ckpt/step.c - see ckpt/step.h. */
#include "ckpt/step.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/step_remote.h"
#include "core/file.h"
#include "core/text.h"
#include "storage/folder.h"
#include "storage/location.h"

static const char prefix[] = "step-";
static const char tmp_mark[] = ".tmp-";

char *step_name(char buf[STEP_NAME_MAX], int64_t step)
{
    snprintf(buf, STEP_NAME_MAX, "%s%08lld", prefix, (long long)step);
    return buf;
}

enum step_kind step_parse_name(int64_t *step, const char *name)
{
    char canonical[STEP_NAME_MAX];
    size_t n;

    if (strncmp(name, prefix, strlen(prefix)) != 0 || !isdigit((unsigned char)name[strlen(prefix)]))
        return STEP_NONE;
    errno = 0;
    *step = strtoll(name + strlen(prefix), NULL, 10);
    if (errno)
        return STEP_NONE;
    n = strlen(step_name(canonical, *step));
    if (strncmp(name, canonical, n) != 0)
        return STEP_NONE;
    if (name[n] == 0)
        return STEP_DIR;
    return strncmp(name + n, tmp_mark, strlen(tmp_mark)) == 0 ? STEP_TMP : STEP_NONE;
}

tp_status step_check_no_name(const char *root, struct tp_err *err)
{
    char clean[PATH_MAX];
    int64_t step;

    snprintf(clean, sizeof clean, "%.*s", (int)text_path_length(root), root);
    if (step_parse_name(&step, text_base_name(clean)) == STEP_NONE)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: has the name of a step, so steps in it would not be found; name the root, "
                   "the directory of its steps",
                   root);
}

/* A cheap check: every shard exists with its length. */
static tp_status check_files(const struct manifest *m, const char *dir, struct tp_err *err)
{
    char path[PATH_MAX];
    struct stat sb;

    if (location_is_remote(dir)) {
        tp_status st = step_check_remote(m, dir, err);

        return st == TP_E_NOTFOUND ? step_fail_removed(dir, err) : st;
    }
    for (int i = 0; i < m->n_shards; i++) {
        tp_status st = file_join(path, dir, m->shards[i].file, err);

        if (st)
            return st;
        if (lstat(path, &sb) != 0)
            return tp_fail(err, TP_E_CORRUPT, "%s: the shard of rank %d is missing", path,
                           m->shards[i].rank);
        if (!S_ISREG(sb.st_mode))
            return tp_fail(err, TP_E_CORRUPT, "%s: is not a regular file", path);
        if (sb.st_size != m->shards[i].size_bytes)
            return tp_fail(err, TP_E_CORRUPT, "%s: has %lld bytes, but the manifest says %lld",
                           path, (long long)sb.st_size, (long long)m->shards[i].size_bytes);
    }
    return TP_OK;
}

static tp_status read_file(struct manifest *m, const char *path, struct arena *arena,
                           struct tp_err *err)
{
    struct json_scan_input in;
    int64_t size = 0;
    int fd = -1;
    tp_status st;

    if (location_is_remote(path))
        return step_read_remote(m, path, arena, err);
    st = file_open_own(&fd, &size, path, err);

    if (st)
        return st;
    in = json_scan_input_file(fd, 0, size, path);
    if (size > MANIFEST_MAX_BYTES)
        st = tp_fail(err, TP_E_CORRUPT, "%s: %lld bytes, more than the %d allowed", path,
                     (long long)size, MANIFEST_MAX_BYTES);
    else
        st = manifest_parse(m, &in, arena, err);
    close(fd);
    return st;
}

tp_status step_read_manifest(struct manifest *m, const char *dir, struct arena *arena,
                             struct tp_err *err)
{
    char path[PATH_MAX];
    struct manifest found = { 0 };
    const char *name = strrchr(dir, '/');
    int64_t step = 0;
    tp_status st;

    TP_TRY(file_join(path, dir, MANIFEST_FILE, err));
    TP_TRY(read_file(&found, path, arena, err));
    name = name ? name + 1 : dir;
    if (step_parse_name(&step, name) == STEP_DIR && step != found.step)
        return tp_fail(
            err, TP_E_CORRUPT,
            "%s: is the manifest of step %lld, but its directory has the name of step %lld", path,
            (long long)found.step, (long long)step);
    *m = found;
done:
    return st;
}

/* The files of a step, which may be damaged. */
static bool has_own_names_only(const char *dir)
{
    struct folder_entry *entries = NULL;
    struct tp_err ignored = { 0 };
    int n = 0;
    bool own = folder_list(&entries, &n, dir, &ignored) == TP_OK;

    for (int i = 0; i < n && own; i++)
        own = strcmp(entries[i].name, MANIFEST_FILE) == 0 ||
              fnmatch("rank-*.h5", entries[i].name, 0) == 0;
    free(entries);
    return own;
}

bool step_is_own(const char *dir)
{
    struct arena arena = { 0 };
    struct tp_err ignored = { 0 };
    struct manifest m;
    const bool readable = step_read_manifest(&m, dir, &arena, &ignored) == TP_OK;

    arena_free(&arena);
    return readable || has_own_names_only(dir);
}

tp_status step_fail_removed(const char *dir, struct tp_err *err)
{
    return tp_fail(err, TP_E_IO,
                   "%s: was removed by another program while it was read (tp-ckpt prune, or a run "
                   "with --keep); it is not damaged; choose a step that still exists",
                   dir);
}

/* The step with this save id cannot be read, and err says why. If the reason is that another
 * program has removed or replaced the step since its manifest was read, say that instead. Returns
 * the status of err. */
static tp_status explain(const char *dir, const char *save_id, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct manifest now;
    struct tp_err why = { 0 };
    tp_status st = err->status == TP_E_NOMEM ? TP_OK : step_read_manifest(&now, dir, &arena, &why);

    if (st == TP_E_NOTFOUND)
        step_fail_removed(dir, err);
    else if (!st && err->status != TP_E_NOMEM && strcmp(now.save_id, save_id) != 0)
        tp_fail(err, TP_E_IO,
                "%s: was replaced by another program while it was read; it is not damaged; run "
                "this again",
                dir);
    arena_free(&arena);
    return err->status;
}

tp_status ckpt_open_shard(struct shard_reader **out, const char *dir, const struct manifest *m,
                          int i, struct tp_err *err)
{
    tp_status st = shard_open(out, dir, &m->shards[i], &m->layout, err);

    return st ? explain(dir, m->save_id, err) : TP_OK;
}

tp_status step_load(struct manifest *m, const char *dir, struct arena *arena, struct tp_err *err)
{
    struct manifest found = { 0 };
    tp_status st = step_read_manifest(&found, dir, arena, err);

    if (st)
        return st;
    if (check_files(&found, dir, err))
        return explain(dir, found.save_id, err);
    *m = found;
    return TP_OK;
}

static int by_step(const void *a, const void *b)
{
    const struct ckpt_step *x = a, *y = b;

    if (x->step != y->step)
        return x->step < y->step ? -1 : 1;
    return strcmp(x->name, y->name);
}

/* The one step that can be found where there are no listings. */
static tp_status scan_web_server(struct ckpt_step **steps, int *n, const char *root,
                                 struct tp_err *err)
{
    struct ckpt_step found = { .step = 0 }, *list;
    char name[STEP_NAME_MAX];
    tp_status st = step_find_latest(&found.step, root, err);

    if (st)
        return st;
    list = malloc(sizeof *list);
    if (!list)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", root);
    snprintf(found.name, sizeof found.name, "%s", step_name(name, found.step));
    *list = found;
    *steps = list;
    *n = 1;
    return TP_OK;
}

tp_status step_scan(struct ckpt_step **steps, int *n, const char *root, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    struct ckpt_step *list = NULL;
    int count = 0, n_entries = 0;
    tp_status st;

    if (location_kind(root) == LOCATION_HTTP)
        return scan_web_server(steps, n, root, err);
    TP_TRY(folder_list(&entries, &n_entries, root, err));
    list = calloc((size_t)n_entries + 1, sizeof *list);
    if (!list)
        TP_TRY(tp_fail(err, TP_E_NOMEM, "%s: no memory to list it", root));
    for (int i = 0; i < n_entries; i++) {
        int64_t step = 0;

        if (step_parse_name(&step, entries[i].name) == STEP_NONE)
            continue;
        list[count] = (struct ckpt_step){ .step = step };
        snprintf(list[count++].name, sizeof list->name, "%s", entries[i].name);
    }
    qsort(list, (size_t)count, sizeof *list, by_step);
    *steps = list;
    *n = count;
done:
    free(entries);
    return st;
}
