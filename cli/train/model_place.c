/* cli/train/model_place.c - see cli/train/model_place.h. */
#include "cli/train/model_place.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/root.h"
#include "core/file.h"
#include "core/text.h"
#include "reshard/output_root.h"
#include "storage/folder.h"
#include "storage/location.h"

tp_status model_place_check_root(const char *root, bool has_model, struct tp_err *err)
{
    const struct foreign_format *found = output_root_foreign(root);
    char word[TEXT_WORD_MAX];
    bool weights_only;

    if (!found)
        return TP_OK;
    weights_only = strcmp(found->name, "safetensors") == 0 || strcmp(found->name, "bin") == 0;
    if (weights_only && has_model)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%.400s: has the format %s, and --ckpt is for checkpoints of tp-train; "
                   "tp-ckpt import %s -o ROOT makes one that --resume --ckpt ROOT continues",
                   root, found->name, text_shell_word(word, root));
}

tp_status model_place_explain(const char *path, struct tp_err *err)
{
    char dir[PATH_MAX], word[TEXT_WORD_MAX];
    struct tp_err ignored = { 0 };

    if (err->status != TP_E_NOTFOUND || location_is_remote(path) ||
        ckpt_locate(dir, path, -1, &ignored))
        return err->status;
    return tp_fail(err, TP_E_USAGE,
                   "%.400s: is a checkpoint of tp-train, not a model's folder; --resume --ckpt "
                   "continues it, and tp-ckpt export %s -o DIR makes a model's folder",
                   path, text_shell_word(word, path));
}

/* The names of files that tp-train reads: a model's parts have numbers in theirs. */
static bool is_read(const char *name)
{
    static const char *const names[] = { "config.json", "model.safetensors.index.json", NULL };

    return text_is_one_of(name, names) ||
           (strncmp(name, "model", 5) == 0 && text_ends_with(name, ".safetensors"));
}

bool model_place_has(const char *model, const char *path)
{
    const char *name = text_base_name(path);
    struct folder_entry *entries = NULL;
    char at[PATH_MAX];
    struct tp_err ignored;
    bool found;
    int n = 0;

    if (location_is_remote(model) || !file_is_dir(model))
        return false;
    snprintf(at, sizeof at, "%.*s", (int)(name - path), path);
    found = is_read(name) && file_is_same(*at ? at : ".", model);
    if (folder_list(&entries, &n, model, &ignored))
        n = 0;
    for (int i = 0; i < n && !found; i++)
        found = is_read(entries[i].name) && !file_join(at, model, entries[i].name, &ignored) &&
                file_is_same(at, path);
    free(entries);
    return found;
}
