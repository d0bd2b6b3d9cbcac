/* reshard/formats/foreign_place.c - see reshard/formats/foreign_place.h. */
#include "reshard/formats/foreign_place.h"

#include <fnmatch.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/step.h"
#include "core/arena.h"
#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/foreign.h"
#include "reshard/formats/pt/pt.h"
#include "storage/folder.h"
#include "storage/location.h"

/* How far below the path to look, and at how many folders: a home folder should not take long. */
enum { DEPTH_MAX = 3, FOLDERS_MAX = 200, NAMES_SHOWN = 4, TEXT_MAX = 600, TRACKER_BYTES = 200 };

/* Files that say what a folder is, although no format was detected. The first row counts. */
static const struct {
    const char *pattern, *says;
} evidence[] = {
    { "adapter_config.json",
      "it is an adapter of PEFT (LoRA) and no model; merge it into its base model with "
      "merge_and_unload() of peft, save that with save_pretrained(), and name that folder" },
    { "*.gguf", "GGUF is written and not read; import the model that it was made from" },
    { "*.distcp", "there is no .metadata, which rank 0 writes last; it was not copied, or the save "
                  "was interrupted" },
    { "mp_rank_*", "there is no complete mp_rank_00, which is read first; were the folders "
                   "of all ranks copied?" },
    { "*_model_states.pt", "the model states of rank 0 are missing, which are read first; were the "
                           "files of all ranks copied?" },
    { "*_optim_states.pt", "the model states of rank 0 are missing, which are read first; were the "
                           "files of all ranks copied?" },
    { "model-*-of-*.safetensors", "there is no model.safetensors.index.json, which says which "
                                  "part has which tensor" },
    { "pytorch_model-*-of-*.bin", "there is no pytorch_model.bin.index.json, which says which "
                                  "part has which tensor" },
    { "consolidated.*.pth",
      "there is no consolidated.00.pth, which is read first; were the files of "
      "all ranks copied?" },
    { "consolidated*", "of Mistral's own files only consolidated.safetensors is read; import the "
                       "model's files of Hugging Face (model.safetensors)" },
};

/* A walk through the folders below. */
struct place_search {
    char found[NAMES_SHOWN][PATH_MAX]; /* complete checkpoints */
    int n_found, n_folders;
    char seen[PATH_MAX]; /* the first file of a row of `evidence`; "" */
    const char *says;
    bool at_top; /* it is in the folder that people named */
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct folder_entry *)a)->name, ((const struct folder_entry *)b)->name);
}

bool foreign_place_is_step(const char *dir)
{
    const char *slash = strrchr(dir, '/');
    struct tp_err ignored;
    char path[PATH_MAX];
    int64_t step;

    return step_parse_name(&step, slash ? slash + 1 : dir) != STEP_NONE &&
           !file_join(path, dir, MANIFEST_FILE, &ignored) && !file_exists(path) &&
           foreign_format_detect_any(dir);
}

static bool is_own(const char *dir, const char *name)
{
    struct tp_err ignored;
    char path[PATH_MAX];
    int64_t step;

    return strcmp(name, MANIFEST_FILE) == 0 ||
           (step_parse_name(&step, name) != STEP_NONE &&
            (file_join(path, dir, name, &ignored) || !foreign_place_is_step(path)));
}

/* What the files of a folder say of it. */
static void weigh(struct place_search *s, const char *dir, const struct folder_entry *entries,
                  int n)
{
    const size_t rows = sizeof evidence / sizeof *evidence;
    struct tp_err ignored;

    for (size_t row = 0; row < rows && !s->says; row++)
        for (int i = 0; i < n && !s->says; i++)
            if (fnmatch(evidence[row].pattern, entries[i].name, 0) == 0 &&
                !file_join(s->seen, dir, entries[i].name, &ignored))
                s->says = evidence[row].says;
}

static void add_found(struct place_search *s, const char *path)
{
    if (s->n_found++ < NAMES_SHOWN)
        snprintf(s->found[s->n_found - 1], PATH_MAX, "%s", path);
}

/* Look at a folder, which is none of a known format, and below it. *own: it is of this project. */
static void search(struct place_search *s, bool *own, const char *dir, int depth)
{
    struct folder_entry *entries = NULL;
    struct tp_err ignored;
    int n = 0;

    if (folder_list(&entries, &n, dir, &ignored))
        return;
    if (n > 0)
        qsort(entries, (size_t)n, sizeof *entries, by_name);
    for (int i = 0; i < n; i++)
        *own |= is_own(dir, entries[i].name);
    if (!*own && !s->says) {
        weigh(s, dir, entries, n);
        s->at_top = s->says && depth == 0;
    }
    for (int i = 0; i < n && !*own && depth < DEPTH_MAX; i++) {
        char path[PATH_MAX];
        bool found;

        if (file_join(path, dir, entries[i].name, &ignored) || !file_is_dir(path) ||
            s->n_folders >= FOLDERS_MAX)
            continue;
        s->n_folders++;
        found = foreign_format_detect_any(path);
        if (!found)
            search(s, &found, path, depth + 1);
        if (found)
            add_found(s, path);
    }
    free(entries);
}

/* ", although latest says global_step99"; "" without such a file. */
static void tracker_text(char text[TEXT_MAX], const char *dir)
{
    struct arena arena = { 0 };
    struct tp_err ignored;

    text[0] = 0;
    for (int i = 0; i < FOREIGN_TRACKERS && !text[0]; i++) {
        char path[PATH_MAX], *data = NULL;
        size_t size = 0;

        if (file_join(path, dir, foreign_trackers[i], &ignored) || file_is_dir(path) ||
            file_read_all(&data, &size, path, TRACKER_BYTES, &arena, &ignored))
            continue;
        data[strcspn(data, "\r\n")] = 0;
        text_clean(data);
        snprintf(text, TEXT_MAX, ", although its %s says %s", foreign_trackers[i], data);
    }
    arena_free(&arena);
}

static tp_status name_found(const struct place_search *s, const char *path, struct tp_err *err)
{
    char text[TEXT_MAX], tracker[TEXT_MAX];
    const int shown = s->n_found < NAMES_SHOWN ? s->n_found : NAMES_SHOWN;
    size_t used = 0;

    text[0] = 0;
    for (int i = 0; i < shown; i++)
        if (used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", i ? ", " : "",
                                     s->found[i]);
    tracker_text(tracker, path);
    return tp_fail(err, TP_E_NOTFOUND, "%s: has no checkpoint itself%s; below it %s %s%s", path,
                   tracker, s->n_found == 1 ? "is" : "are", text,
                   s->n_found > shown ? " and more; name one of them"
                   : s->n_found > 1   ? "; name one of them"
                                      : "; name this folder");
}

static bool is_named(const char *path, const char *pattern)
{
    const char *slash = strrchr(path, '/');

    return fnmatch(pattern, slash ? slash + 1 : path, 0) == 0;
}

/* A file, the folder of one rank, or of one tensor of DeepSpeed Universal. */
static tp_status check_above(const char *path, bool is_file, struct tp_err *err)
{
    char above[PATH_MAX], part[PATH_MAX];

    snprintf(part, sizeof part, "%s", path);
    for (int level = 0; level < 3; level++) {
        file_parent(above, part);
        if (!is_file && level == 0 && !is_named(part, "mp_rank_*") && !is_named(part, "zero") &&
            !is_named(above, "zero"))
            return TP_OK;
        if (foreign_format_detect_any(above))
            return tp_fail(err, TP_E_NOTFOUND,
                           "%s: is a part of the checkpoint in %s; name that folder%s", path, above,
                           is_file && pt_detect(path)
                               ? " (or the format pt, if this file alone has "
                                 "the model)"
                               : "");
        memcpy(part, above, sizeof part);
    }
    return TP_OK;
}

tp_status foreign_place_check(const char *path, struct tp_err *err)
{
    struct place_search *s;
    bool own = false;
    tp_status st = TP_OK;

    if (location_is_remote(path))
        return TP_OK;
    st = check_above(path, file_exists(path) && !file_is_dir(path), err);
    if (st || !file_is_dir(path))
        return st;
    s = calloc(1, sizeof *s);
    if (!s)
        return TP_OK;
    search(s, &own, path, 0);
    if (!own && s->n_found && !s->at_top)
        st = name_found(s, path, err);
    else if (!own && s->says)
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: is not a checkpoint that can be read: it has %s, but %s", path, s->seen,
                     s->says);
    free(s);
    return st;
}
