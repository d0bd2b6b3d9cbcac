/* reshard/formats/gguf/gguf_vocab.c - see reshard/formats/gguf/gguf_vocab.h. */
#include "reshard/formats/gguf/gguf_vocab.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "reshard/formats/gguf/gguf_sentencepiece.h"
#include "reshard/formats/gguf/gguf_tokenizer.h"
#include "storage/object.h"

enum { TOKEN_TEXT = 32 };

#define KEY "tokenizer.ggml."

/* ---- tokens ---- */

static void add_tokens(struct gguf_bytes *b, const struct gguf_tokenizer *t)
{
    char unused[TOKEN_TEXT];

    gguf_key_array(b, KEY "tokens", GGUF_VALUE_STRING, t->n);
    for (int64_t i = 0; i < t->n; i++) {
        snprintf(unused, sizeof unused, "[PAD%lld]", (long long)i);
        gguf_bytes_string(b, t->tokens[i] ? t->tokens[i] : unused);
    }
    gguf_key_array(b, KEY "token_type", GGUF_VALUE_I32, t->n);
    for (int64_t i = 0; i < t->n; i++)
        gguf_bytes_u32(b, t->types[i]);
    if (t->bytes) {
        gguf_key_array(b, KEY "merges", GGUF_VALUE_STRING, t->n_merges);
        gguf_bytes_add(b, t->merges.data, t->merges.n);
        return;
    }
    gguf_key_array(b, KEY "scores", GGUF_VALUE_F32, t->n);
    for (int64_t i = 0; i < t->n; i++)
        gguf_bytes_f32(b, t->scores[i]);
    gguf_key_bool(b, NULL, KEY "add_space_prefix", t->space_prefix);
}

/* ---- special tokens ---- */

/* A small JSON file of the folder; NULL: there is none. `flags` are jansson's. */
static tp_status read_json(json_t **out, const char *dir, const char *name, size_t flags,
                           struct arena *arena, struct tp_err *err)
{
    char path[PATH_MAX], *text;
    size_t size;
    tp_status st;

    *out = NULL;
    TP_TRY(file_join(path, dir, name, err));
    if (!object_is_there(path))
        return TP_OK;
    TP_TRY(object_read_any(&text, &size, path, JSON_VALUE_BYTES_MAX, arena, err));
    if (json_scan_is_bounded(text, size))
        *out = json_loadb(text, size, flags, NULL);
    if (!*out)
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not JSON, or too large", path);
done:
    return st;
}

/* "bos_token" of tokenizer_config.json: a text, or an object with one. Else "bos_token_id" of
 * config.json: a number, or a list. -1: neither. */
static int64_t special_token(const struct gguf_tokenizer *t, json_t *settings, json_t *config,
                             const char *name)
{
    json_t *token = json_object_get(settings, name), *id;
    const char *text =
        json_string_value(json_is_object(token) ? json_object_get(token, "content") : token);
    char key[TOKEN_TEXT];
    int64_t found = text ? gguf_tokenizer_find(t, text) : -1;

    if (found >= 0)
        return found;
    snprintf(key, sizeof key, "%s_id", name);
    id = json_object_get(config, key);
    if (json_is_array(id))
        id = json_array_get(id, 0);
    found = json_is_integer(id) ? json_integer_value(id) : -1;
    return found >= 0 && found < t->n ? found : -1;
}

static void add_special(struct gguf_bytes *b, const struct gguf_tokenizer *t, json_t *settings,
                        json_t *config)
{
    static const char *const names[][2] = { { "bos_token", KEY "bos_token_id" },
                                            { "eos_token", KEY "eos_token_id" },
                                            { "unk_token", KEY "unknown_token_id" },
                                            { "pad_token", KEY "padding_token_id" } };
    json_t *add_bos = json_object_get(settings, "add_bos_token"),
           *add_eos = json_object_get(settings, "add_eos_token");
    int64_t bos = -1;

    for (int i = 0; i < 4; i++) {
        const int64_t id = special_token(t, settings, config, names[i][0]);

        if (i == 0)
            bos = id;
        if (id >= 0)
            gguf_key_u32(b, NULL, names[i][1], id);
    }
    gguf_key_bool(b, NULL, KEY "add_bos_token",
                  json_is_boolean(add_bos) ? json_is_true(add_bos) : bos >= 0 && t->first == bos);
    gguf_key_bool(b, NULL, KEY "add_eos_token", json_is_true(add_eos));
}

/* In tokenizer_config.json, or a file of its own. */
static tp_status add_chat_template(struct gguf_bytes *b, json_t *settings, const char *dir,
                                   struct arena *arena, struct tp_err *err)
{
    const char *text = json_string_value(json_object_get(settings, "chat_template"));
    char path[PATH_MAX], *own;
    size_t size;
    tp_status st;

    TP_TRY(file_join(path, dir, "chat_template.jinja", err));
    if (!text && object_is_there(path)) {
        TP_TRY(object_read_any(&own, &size, path, JSON_VALUE_BYTES_MAX, arena, err));
        text = own;
    }
    if (text)
        gguf_key_string(b, NULL, "tokenizer.chat_template", text);
done:
    return st;
}

/* A tokenizer.model, with the tokens that are beside it. */
static tp_status read_sentencepiece(struct gguf_tokenizer *t, const struct export_contents *q,
                                    const char *path, json_t *settings, struct arena *arena,
                                    struct tp_err *err)
{
    json_t *added = NULL;
    tp_status st;

    TP_TRY(gguf_sentencepiece_read(t, path, q->model->vocab, arena, err));
    TP_TRY(read_json(&added, q->assets, "added_tokens.json", 0, arena, err));
    TP_TRY(gguf_sentencepiece_add(t, path, added, json_object_get(settings, "added_tokens_decoder"),
                                  arena, err));
done:
    json_decref(added);
    return st;
}

static tp_status add_tokenizer(struct gguf_bytes *b, const struct export_contents *q,
                               const char *path, bool is_json, struct arena *arena,
                               struct tp_err *err)
{
    struct gguf_tokenizer t = { 0 };
    json_t *settings = NULL, *config = NULL;
    tp_status st;

    /* transformers writes int(1e30) as model_max_length where there is no limit */
    TP_TRY(read_json(&settings, q->assets, "tokenizer_config.json", JSON_DECODE_INT_AS_REAL, arena,
                     err));
    TP_TRY(is_json ? gguf_tokenizer_read(&t, path, q->model->vocab, arena, err)
                   : read_sentencepiece(&t, q, path, settings, arena, err));
    if (t.beyond)
        progress_note(q->progress,
                      "%s: the model has %lld rows, and added tokens with higher numbers, such as "
                      "%.60s, are left out of model.gguf",
                      path, (long long)t.n, t.beyond);
    config = q->model->config ? json_loads(q->model->config, 0, NULL) : NULL;
    gguf_key_string(b, NULL, KEY "model", t.bytes ? "gpt2" : "llama");
    gguf_key_string(b, NULL, KEY "pre", t.pre);
    add_tokens(b, &t);
    add_special(b, &t, settings, config);
    TP_TRY(add_chat_template(b, settings, q->assets, arena, err));
done:
    json_decref(settings);
    json_decref(config);
    gguf_tokenizer_free(&t);
    return st;
}

/* The tokenizer in the folder of --assets, which may be a URL; "": it has none. An error is that of
 * a place that cannot say whether there is one. */
static tp_status find_tokenizer(char path[PATH_MAX], bool *is_json, const char *dir,
                                struct tp_err *err)
{
    tp_status first = TP_OK;

    for (int i = 0; i < 2; i++) {
        struct tp_err why = { 0 };
        bool found = false;
        tp_status st = file_join(path, dir, i ? "tokenizer.model" : "tokenizer.json", &why);

        if (!st)
            st = object_exists(&found, path, &why);
        *is_json = i == 0;
        if (found)
            return TP_OK;
        if (st && !first) {
            first = st;
            *err = why;
        }
    }
    path[0] = 0;
    return first;
}

tp_status gguf_vocab_keys(struct gguf_bytes *b, const struct export_contents *q,
                          struct arena *arena, struct tp_err *err)
{
    char path[PATH_MAX] = "";
    bool is_json = false;
    tp_status st = q->assets ? find_tokenizer(path, &is_json, q->assets, err) : TP_OK;

    if (st || path[0])
        return st ? st : add_tokenizer(b, q, path, is_json, arena, err);
    progress_note(q->progress,
                  q->assets
                      ? "%s has no tokenizer.json or tokenizer.model, so model.gguf has no "
                        "tokenizer"
                      : "%s has no tokenizer; model.gguf gets one from the folder of --assets",
                  q->assets ? q->assets : q->source);
    gguf_key_string(b, NULL, KEY "model", "none");
    return TP_OK;
}
