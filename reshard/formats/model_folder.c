/* reshard/formats/model_folder.c - see reshard/formats/model_folder.h. */
#include "reshard/formats/model_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "storage/folder.h"

enum { NAMES_SHOWN = 3, NAME_SHOWN = 64, NAMES_TEXT = (NAMES_SHOWN + 1) * NAME_SHOWN };

/* Files that only a folder with weights has, at its top. */
static bool is_weights(const char *name)
{
    static const char *const names[] = { ".metadata",
                                         "pytorch_model_fsdp_0",
                                         "latest_checkpointed_iteration.txt",
                                         "latest_universal",
                                         "latest",
                                         "fsdp_config.json",
                                         "consolidated.00.pth",
                                         NULL };

    return text_is_one_of(name, names) || text_ends_with(name, ".safetensors") ||
           text_ends_with(name, ".gguf") ||
           (strncmp(name, "pytorch_model", 13) == 0 && text_ends_with(name, ".bin"));
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct folder_entry *)a)->name, ((const struct folder_entry *)b)->name);
}

/* The names that come first in the alphabet, which does not depend on the file system's order: "a,
 * b, c and 4 more". */
static void format_names(char text[NAMES_TEXT], struct folder_entry *entries, int n)
{
    int at = 0;

    text[0] = 0;
    qsort(entries, (size_t)n, sizeof *entries, by_name);
    for (int i = 0; i < n && i < NAMES_SHOWN; i++) {
        char name[NAME_SHOWN];

        snprintf(name, sizeof name, "%.60s", entries[i].name);
        text_clean(name);
        at += snprintf(text + at, (size_t)(NAMES_TEXT - at), "%s%s", i ? ", " : "", name);
    }
    if (n > NAMES_SHOWN)
        snprintf(text + at, (size_t)(NAMES_TEXT - at), " and %d more", n - NAMES_SHOWN);
}

tp_status model_folder_replaceable(const char *dir, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    bool has_config = false, has_weights = false;
    char names[NAMES_TEXT];
    struct tp_err ignored;
    int n = 0;

    if (folder_list(&entries, &n, dir, &ignored))
        return tp_fail(
            err, TP_E_EXISTS,
            "%s: exists already and is not a folder that can be read, so --force does not "
            "replace it; name another place",
            dir);
    for (int i = 0; i < n; i++) {
        has_config |= strcmp(entries[i].name, "config.json") == 0 ||
                      strcmp(entries[i].name, "fsdp_config.json") == 0;
        has_weights |= is_weights(entries[i].name);
    }
    format_names(names, entries, n);
    free(entries);
    if (has_config && has_weights)
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: exists already and has %s, so it is not a model's folder and --force does "
                   "not replace it; it has %s; remove it yourself if it is not needed",
                   dir, has_config ? "config.json but no weights" : "no config.json", names);
}
