/* reshard/formats/verl/verl_folder.c - the files of a folder of verl; see
 * reshard/formats/verl/verl_state.h.
 */
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/verl/verl_state.h"
#include "storage/folder.h"
#include "storage/missing_files.h"
#include "storage/object.h"

#define FSDP_CONFIG "fsdp_config.json"
#define TRACKER     "latest_checkpointed_iteration.txt"
#define MODEL_HEAD  "model_world_size_"

enum { RANKS_MAX = 100000, SMALL_BYTES_MAX = 64 << 10, TRACKER_BYTES_MAX = 64, NAME_BYTES = 48 };

void verl_file_name(char name[VERL_NAME_BYTES], const char *kind, int world, int rank)
{
    snprintf(name, VERL_NAME_BYTES, "%s_world_size_%d_rank_%d.pt", kind, world, rank);
}

/* The number of ranks in the name of a file of weights; 0: it is none. */
static int world_of(const char *name)
{
    char *end;
    long n;

    if (strncmp(name, MODEL_HEAD, strlen(MODEL_HEAD)) != 0)
        return 0;
    n = strtol(name + strlen(MODEL_HEAD), &end, 10);
    return n > 0 && n <= RANKS_MAX && strncmp(end, "_rank_", 6) == 0 ? (int)n : 0;
}

/* What the names of files say: the number of ranks, and another one if there are two. A web server
 * has no listings, so 0 there. */
static void list_worlds(int *first, int *other, const char *dir)
{
    struct folder_entry *entries = NULL;
    struct tp_err ignored = { 0 };
    int n = 0;

    *first = *other = 0;
    if (folder_list(&entries, &n, dir, &ignored))
        return;
    for (int i = 0; i < n; i++) {
        const int world = world_of(entries[i].name);

        if (world && !*first)
            *first = world;
        else if (world && world != *first)
            *other = world;
    }
    free(entries);
}

static bool is_folder(const char *dir)
{
    int world, other;

    if (object_is_in(dir, FSDP_CONFIG))
        return true;
    list_worlds(&world, &other, dir);
    return world > 0;
}

/* A folder itself, or the actor's below it. */
static bool find_below(char dir[PATH_MAX], const char *path)
{
    struct tp_err ignored = { 0 };

    snprintf(dir, PATH_MAX, "%s", path);
    return is_folder(dir) || (!file_join(dir, path, "actor", &ignored) && is_folder(dir));
}

tp_status verl_folder_find(char dir[PATH_MAX], const char *path, struct tp_err *err)
{
    struct arena arena = { 0 };
    char file[PATH_MAX], step[PATH_MAX], name[NAME_BYTES], *text, *end;
    long long iteration;
    size_t size;
    tp_status st;

    if (find_below(dir, path))
        return TP_OK;
    TP_TRY(file_join(file, path, TRACKER, err));
    if (!object_is_there(file)) {
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no files of verl, such as " FSDP_CONFIG, path);
        goto done;
    }
    TP_TRY(object_read_any(&text, &size, file, TRACKER_BYTES_MAX, &arena, err));
    iteration = strtoll(text, &end, 10);
    if (end == text || iteration < 0) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not the number of a step", file);
        goto done;
    }
    snprintf(name, sizeof name, "global_step_%lld", iteration);
    TP_TRY(file_join(step, path, name, err));
    if (!find_below(dir, step))
        st = tp_fail(err, TP_E_NOTFOUND, "%s: has no files of verl, although %s names it", step,
                     file);
done:
    arena_free(&arena);
    return st;
}

/* "world_size" of fsdp_config.json; 0: there is no such file. */
static tp_status read_config(int *world, const char *dir, struct tp_err *err)
{
    struct arena arena = { 0 };
    char path[PATH_MAX], *text;
    json_t *root = NULL;
    json_int_t n = 0;
    size_t size;
    tp_status st;

    *world = 0;
    TP_TRY(file_join(path, dir, FSDP_CONFIG, err));
    if (!object_is_there(path))
        goto done;
    TP_TRY(object_read_any(&text, &size, path, SMALL_BYTES_MAX, &arena, err));
    if (json_scan_is_bounded(text, size))
        root = json_loadb(text, size, 0, NULL);
    n = json_integer_value(json_object_get(root, "world_size"));
    if (n < 1 || n > RANKS_MAX)
        st = tp_fail(err, TP_E_CORRUPT, "%s: has no world_size, the number of ranks", path);
    *world = (int)n;
done:
    json_decref(root);
    arena_free(&arena);
    return st;
}

tp_status verl_folder_world(int *world, const char *dir, struct tp_err *err)
{
    int first, other;
    tp_status st = read_config(world, dir, err);

    if (st)
        return st;
    list_worlds(&first, &other, dir);
    if (*world) {
        if (first && first != *world && other != *world)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s/" FSDP_CONFIG ": says %d ranks, but the names of files say %d; take "
                           "all files of one save",
                           dir, *world, first);
        return TP_OK;
    }
    if (other)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has files of %d and of %d ranks, and no " FSDP_CONFIG
                       " that says which count; remove those of the other save",
                       dir, first, other);
    *world = first;
    return TP_OK;
}

/* The files of all ranks; the first one was looked for and is not there, or another one is not. */
static tp_status fail_missing(const struct verl_state *d, const char *kind, int rank,
                              struct tp_err *err)
{
    struct arena arena = { 0 };
    const char **paths = arena_array(&arena, (size_t)d->world, sizeof *paths);
    char name[VERL_NAME_BYTES];
    tp_status st = tp_fail(err, TP_E_NOTFOUND, "no memory");

    for (int i = 0; i < d->world && paths; i++) {
        verl_file_name(name, kind, d->world, i);
        paths[i] = arena_printf(&arena, "%s/%s", d->dir, name);
        if (!paths[i])
            paths = NULL;
    }
    if (paths) {
        tp_fail(err, TP_E_NOTFOUND,
                "%s: no such file; of %d ranks each has one: were the files of all nodes copied?",
                paths[rank], d->world);
        st = missing_files_fail(err, paths, d->world);
    }
    arena_free(&arena);
    return st;
}

tp_status verl_folder_has(bool *found, const struct verl_state *d, const char *kind,
                          struct tp_err *err)
{
    char name[VERL_NAME_BYTES], path[PATH_MAX];
    int missing = -1;
    tp_status st = TP_OK;

    *found = false;
    for (int rank = 0; rank < d->world; rank++) {
        bool is = false;

        verl_file_name(name, kind, d->world, rank);
        TP_TRY(file_join(path, d->dir, name, err));
        TP_TRY(object_exists(&is, path, err));
        if (!is && missing < 0)
            missing = rank;
        *found |= is;
    }
    if (*found && missing >= 0)
        st = fail_missing(d, kind, missing, err);
done:
    return st;
}

tp_status verl_rank_open(struct verl_rank *r, const struct verl_state *d, const char *kind,
                         int rank, struct tp_err *err)
{
    char name[VERL_NAME_BYTES], path[PATH_MAX];
    int file = 0;
    tp_status st;

    *r = (struct verl_rank){ .x.source = d->source, .rank = rank, .world = d->world };
    verl_file_name(name, kind, d->world, rank);
    TP_TRY(file_join(path, d->dir, name, err));
    TP_TRY(file_table_add(piece_source_files(d->source), &file, path, err));
    TP_TRY(torch_pieces_open(&r->x, d->source, file, 0, -1, err));
done:
    return st;
}
