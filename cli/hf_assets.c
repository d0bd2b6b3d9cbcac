/* cli/hf_assets.c - see cli/hf_assets.h. */
#include "cli/hf_assets.h"

#include <limits.h>
#include <stdio.h>

#include "core/file.h"

enum { ASSET_MAX_BYTES = 1 << 30 };

static const char *const names[] = { "tokenizer.json",
                                     "tokenizer.model",
                                     "tokenizer_config.json",
                                     "added_tokens.json",
                                     "vocab.json",
                                     "special_tokens_map.json",
                                     "merges.txt",
                                     "vocab.txt",
                                     "spiece.model",
                                     "tiktoken.model",
                                     "chat_template.jinja",
                                     "chat_template.json",
                                     "generation_config.json" };

static tp_status copy_file(const char *from, const char *to, struct tp_err *err)
{
    struct arena arena = { 0 };
    char *data;
    size_t size;
    tp_status st = file_read_all(&data, &size, from, ASSET_MAX_BYTES, &arena, err);

    if (!st)
        st = file_write_new(to, data, size, err);
    arena_free(&arena);
    return st;
}

tp_status hf_assets_copy(const char *from, const char *to, struct tp_err *err)
{
    int copied = 0;

    if (!file_is_dir(from))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", from);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        char source[PATH_MAX], target[PATH_MAX];
        tp_status st;

        if (snprintf(source, sizeof source, "%s/%s", from, names[i]) >= (int)sizeof source ||
            snprintf(target, sizeof target, "%s/%s", to, names[i]) >= (int)sizeof target)
            return tp_fail(err, TP_E_USAGE, "%.100s...: the path is too long", from);
        if (!file_exists(source))
            continue;
        if ((st = copy_file(source, target, err)))
            return st;
        copied++;
    }
    if (copied == 0)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has no tokenizer, chat template or generation_config.json", from);
    return TP_OK;
}
