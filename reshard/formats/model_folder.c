/* reshard/formats/model_folder.c - see reshard/formats/model_folder.h. */
#include "reshard/formats/model_folder.h"

#include <dirent.h>
#include <stdio.h>
#include <string.h>

#include "core/text.h"

enum { NAMES_SHOWN = 3, NAMES_TEXT = 3 * 64 + 64 };

/* Files that only a folder with weights has, at its top. */
static bool is_weights(const char *name)
{
    static const char *const names[] = { ".metadata", "latest_checkpointed_iteration.txt",
                                         "latest_universal", "latest", NULL };

    return text_is_one_of(name, names) || text_ends_with(name, ".safetensors") ||
           text_ends_with(name, ".gguf") ||
           (strncmp(name, "pytorch_model", 13) == 0 && text_ends_with(name, ".bin"));
}

/* The names that come first in the alphabet, which do not depend on the file system's order. */
struct first_names {
    char name[NAMES_SHOWN][64];
    int n, others;
};

static void add_name(struct first_names *f, const char *name)
{
    char cut[sizeof f->name[0]];
    int at = f->n;

    snprintf(cut, sizeof cut, "%.60s", name);
    text_clean(cut);
    while (at > 0 && strcmp(cut, f->name[at - 1]) < 0)
        at--;
    if (f->n == NAMES_SHOWN)
        f->others++;
    else
        f->n++;
    if (at == NAMES_SHOWN)
        return;
    memmove(f->name[at + 1], f->name[at], (size_t)(f->n - 1 - at) * sizeof cut);
    memcpy(f->name[at], cut, sizeof cut);
}

/* "a, b, c and 4 more". */
static void format_names(char text[NAMES_TEXT], const struct first_names *f)
{
    int at = 0;

    text[0] = 0;
    for (int i = 0; i < f->n; i++)
        at += snprintf(text + at, (size_t)(NAMES_TEXT - at), "%s%s", i ? ", " : "", f->name[i]);
    if (f->others)
        snprintf(text + at, (size_t)(NAMES_TEXT - at), " and %d more", f->others);
}

tp_status model_folder_replaceable(const char *dir, struct tp_err *err)
{
    struct first_names found = { .n = 0 };
    bool has_config = false, has_weights = false;
    char names[NAMES_TEXT];
    const struct dirent *e;
    DIR *d = opendir(dir);

    if (!d)
        return tp_fail(err, TP_E_EXISTS,
                       "%s: is no folder that can be read, so --force does not replace it", dir);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        has_config |= strcmp(e->d_name, "config.json") == 0;
        has_weights |= is_weights(e->d_name);
        add_name(&found, e->d_name);
    }
    closedir(d);
    if (has_config && has_weights)
        return TP_OK;
    format_names(names, &found);
    return tp_fail(err, TP_E_EXISTS,
                   "%s: has %s, so it is not a model's folder and --force does not replace it; it "
                   "has %s; remove it yourself if it is not needed",
                   dir, has_config ? "config.json but no weights" : "no config.json", names);
}
