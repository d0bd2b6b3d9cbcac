/* reshard/formats/hf_assets.c - see reshard/formats/hf_assets.h. */
#include "reshard/formats/hf_assets.h"

#include <limits.h>

#include "core/file.h"
#include "storage/location.h"
#include "storage/object.h"

enum { ASSET_MAX_BYTES = 1 << 30 };

static const char *const names[] = {
    "tokenizer.json",      "tokenizer.model",    "tokenizer_config.json",
    "added_tokens.json",   "vocab.json",         "special_tokens_map.json",
    "merges.txt",          "vocab.txt",          "spiece.model",
    "tiktoken.model",      "tekken.json",        "sentencepiece.bpe.model",
    "chat_template.jinja", "chat_template.json", "generation_config.json"
};

static tp_status copy_file(const char *from, const char *to, struct tp_err *err)
{
    struct arena arena = { 0 };
    char *data;
    size_t size;
    tp_status st = object_read_any(&data, &size, from, ASSET_MAX_BYTES, &arena, err);

    if (!st)
        st = file_write_new(to, data, size, err);
    arena_free(&arena);
    return st;
}

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

tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        tp_status st;

        if ((st = file_join(source, from, names[i], err)) ||
            (st = file_join(target, to, names[i], err)))
            return st;
        if (object_is_there(source) && (st = copy_file(source, target, err)))
            return st;
    }
    return TP_OK;
}
