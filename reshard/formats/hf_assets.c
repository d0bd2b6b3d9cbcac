/* reshard/formats/hf_assets.c - see reshard/formats/hf_assets.h. */
#include "reshard/formats/hf_assets.h"

#include <limits.h>
#include <stdlib.h>

#include "core/file.h"
#include "core/text.h"
#include "storage/folder.h"
#include "storage/location.h"
#include "storage/object.h"

#define TEMPLATES "additional_chat_templates" /* a folder of NAME.jinja */

enum { ASSET_MAX_BYTES = 1 << 30 };

static const char *const names[] = {
    "tokenizer.json",      "tokenizer.model",    "tokenizer_config.json",
    "added_tokens.json",   "vocab.json",         "special_tokens_map.json",
    "merges.txt",          "vocab.txt",          "spiece.model",
    "tiktoken.model",      "tekken.json",        "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json", "generation_config.json"
};

tp_status hf_assets_check(const char *from, struct tp_err *err)
{
    char source[PATH_MAX];
    int found = 0;
    tp_status st;

    if (!location_is_remote(from) && !file_is_dir(from))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", from);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        if ((st = file_join(source, from, names[i], err)))
            return st;
        found += object_is_there(source);
    }
    if (found == 0)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: contains no tokenizer, chat template or generation_config.json", from);
    return TP_OK;
}

static bool is_template(const struct folder_entry *e)
{
    return file_name_is_plain(e->name) && text_ends_with(e->name, ".jinja");
}

/* The templates of `from` go to the folder `to`, which is created for the first one. */
static tp_status copy_templates(const char *from, const char *to, struct tp_err *err)
{
    struct folder_entry *entries = NULL;
    int n = 0;
    tp_status st = folder_list(&entries, &n, from, err);

    if (st) /* credentials that may read and not list are enough for all else */
        return st == TP_E_NOTFOUND || location_is_remote(from) ? TP_OK : st;
    for (int i = 0; i < n; i++) {
        if (!is_template(&entries[i]))
            continue;
        TP_TRY(file_make_dirs(to, err));
        TP_TRY(object_copy_file(from, to, entries[i].name, ASSET_MAX_BYTES, err));
    }
    if (file_is_dir(to))
        st = file_sync_dir(to, err);
done:
    free(entries);
    return st;
}

tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err)
{
    char templates[PATH_MAX], copies[PATH_MAX];
    tp_status st;

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (object_is_in(from, names[i]) &&
            (st = object_copy_file(from, to, names[i], ASSET_MAX_BYTES, err)))
            return st;
    if (location_kind(from) == LOCATION_HTTP) /* whose folders cannot be listed */
        return TP_OK;
    st = file_join(templates, from, TEMPLATES, err);
    if (!st)
        st = file_join(copies, to, TEMPLATES, err);
    return st ? st : copy_templates(templates, copies, err);
}
