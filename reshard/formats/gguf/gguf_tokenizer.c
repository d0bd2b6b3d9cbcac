/* reshard/formats/gguf/gguf_tokenizer.c - see reshard/formats/gguf/gguf_tokenizer.h. */
#include "reshard/formats/gguf/gguf_tokenizer.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "core/json_scan.h"
#include "reshard/formats/gguf/gguf_merges.h"
#include "reshard/formats/gguf/gguf_pre.h"
#include "storage/object.h"

/* A file that is being read. */
struct tokenizer_file {
    struct gguf_tokenizer *out;
    struct json_scan *scan;
    const char *path;
    struct arena *arena;
    bool fallback, ignore_merges, is_bpe, has_model;
    json_t *pre_tokenizer, *normalizer, *post_processor;
    struct gguf_merges merges;
};

static tp_status damaged(const struct tokenizer_file *f, const char *what, struct tp_err *err)
{
    return tp_fail(err, TP_E_CORRUPT, "%s: %s", f->path, what);
}

static tp_status no_memory(const struct tokenizer_file *f, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tokens", f->path);
}

/* ---- values ---- */

static tp_status parse(json_t **out, const struct tokenizer_file *f,
                       const struct json_scan_text *text, struct tp_err *err)
{
    *out = json_loadb(text->text, text->n, JSON_DECODE_ANY, NULL);
    return *out ? TP_OK : damaged(f, "has a value that is not JSON", err);
}

/* The next value. */
static tp_status read_value(json_t **out, const struct tokenizer_file *f, struct tp_err *err)
{
    struct json_scan_text text;
    tp_status st = json_scan_value(f->scan, &text, err);

    return st ? st : parse(out, f, &text, err);
}

static tp_status read_flag(bool *out, const struct tokenizer_file *f, struct tp_err *err)
{
    json_t *v;
    tp_status st = read_value(&v, f, err);

    if (st)
        return st;
    *out = json_is_true(v);
    json_decref(v);
    return TP_OK;
}

/* ---- tokens ---- */

static enum gguf_token type_of(const char *text)
{
    if (strcmp(text, "<unk>") == 0)
        return GGUF_TOKEN_UNKNOWN;
    return strlen(text) == 6 && strncmp(text, "<0x", 3) == 0 && text[5] == '>' ? GGUF_TOKEN_BYTE
                                                                               : GGUF_TOKEN_NORMAL;
}

static tp_status add_token(struct tokenizer_file *f, const char *text, json_t *id,
                           enum gguf_token type, struct tp_err *err)
{
    struct gguf_tokenizer *t = f->out;
    const int64_t number = json_is_integer(id) ? json_integer_value(id) : -1;

    if (number < 0 || number >= t->n)
        return tp_fail(err, TP_E_CORRUPT, "%s: token \"%.60s\" is not one of the model's %lld rows",
                       f->path, text, (long long)t->n);
    t->tokens[number] = arena_strdup(f->arena, text);
    if (type != GGUF_TOKEN_NORMAL || t->types[number] == 0) /* added tokens may come first */
        t->types[number] = (unsigned char)type;
    return t->tokens[number] ? TP_OK : no_memory(f, err);
}

static tp_status read_vocab(struct tokenizer_file *f, struct tp_err *err)
{
    struct json_scan_text key;
    bool more, is_object;
    tp_status st;

    TP_TRY(json_scan_enter(f->scan, '{', &is_object, err));
    if (!is_object)
        return damaged(f, "its vocabulary is not an object", err);
    while (!(st = json_scan_member(f->scan, &key, &more, err)) && more) {
        json_t *text, *id = NULL;

        TP_TRY(parse(&text, f, &key, err));
        st = read_value(&id, f, err);
        if (!st)
            st = add_token(f, json_string_value(text), id, type_of(json_string_value(text)), err);
        json_decref(text);
        json_decref(id);
        if (st)
            goto done;
    }
done:
    return st;
}

static tp_status read_added_tokens(struct tokenizer_file *f, struct tp_err *err)
{
    bool more, is_list;
    tp_status st;

    TP_TRY(json_scan_enter(f->scan, '[', &is_list, err));
    if (!is_list)
        return json_scan_skip(f->scan, err);
    while (!(st = json_scan_entry(f->scan, &more, err)) && more) {
        json_t *token, *id;
        const char *text;
        bool special;

        TP_TRY(read_value(&token, f, err));
        text = json_string_value(json_object_get(token, "content"));
        id = json_object_get(token, "id");
        special = json_is_true(json_object_get(token, "special"));
        if (!text)
            st = damaged(f, "an added token has no content", err);
        else if (!json_is_integer(id) ||
                 !gguf_tokenizer_is_beyond(f->out, json_integer_value(id), text, f->arena))
            st = add_token(f, text, id,
                           strcmp(text, "<unk>") == 0 ? GGUF_TOKEN_UNKNOWN
                           : special                  ? GGUF_TOKEN_CONTROL
                                                      : GGUF_TOKEN_USER_DEFINED,
                           err);
        json_decref(token);
        if (st)
            goto done;
    }
done:
    return st;
}

/* ---- merges ---- */

static tp_status read_merges(struct tokenizer_file *f, struct tp_err *err)
{
    bool more, is_list;
    tp_status st;

    TP_TRY(json_scan_enter(f->scan, '[', &is_list, err));
    if (!is_list)
        return damaged(f, "its merges are not a list", err);
    while (!(st = json_scan_entry(f->scan, &more, err)) && more) {
        json_t *merge;

        TP_TRY(read_value(&merge, f, err));
        st = gguf_merges_add(&f->merges, merge, err);
        json_decref(merge);
        if (st)
            goto done;
    }
done:
    return st;
}

/* ---- the file, once for the tokens and once for the merges ---- */

static bool key_is(const struct json_scan_text *key, const char *name)
{
    const size_t n = strlen(name);

    return key->n == n + 2 && memcmp(key->text + 1, name, n) == 0;
}

static tp_status read_model(struct tokenizer_file *f, bool merges, struct tp_err *err)
{
    struct json_scan_text key;
    bool more;
    tp_status st;

    TP_TRY(json_scan_enter(f->scan, '{', NULL, err));
    while (!(st = json_scan_member(f->scan, &key, &more, err)) && more) {
        if (merges && key_is(&key, "merges")) {
            TP_TRY(read_merges(f, err));
        } else if (!merges && key_is(&key, "vocab")) {
            if (!f->is_bpe)
                return tp_fail(
                    err, TP_E_USAGE,
                    "%s: is not a tokenizer of type BPE, the only one that can be written to GGUF",
                    f->path);
            TP_TRY(read_vocab(f, err));
        } else if (key_is(&key, "type")) {
            json_t *type;

            TP_TRY(read_value(&type, f, err));
            f->is_bpe = json_is_string(type) && strcmp(json_string_value(type), "BPE") == 0;
            json_decref(type);
        } else if (key_is(&key, "byte_fallback")) {
            TP_TRY(read_flag(&f->fallback, f, err));
        } else if (key_is(&key, "ignore_merges")) {
            TP_TRY(read_flag(&f->ignore_merges, f, err));
        } else {
            TP_TRY(json_scan_skip(f->scan, err));
        }
    }
    f->has_model = true;
done:
    return st;
}

static tp_status keep_value(json_t **out, struct tokenizer_file *f, struct tp_err *err)
{
    json_decref(*out);
    *out = NULL;
    return read_value(out, f, err);
}

static tp_status read_file(struct tokenizer_file *f, bool merges, struct tp_err *err)
{
    struct json_scan_text key;
    bool more;
    tp_status st;

    json_scan_rewind(f->scan);
    TP_TRY(json_scan_enter(f->scan, '{', NULL, err));
    while (!(st = json_scan_member(f->scan, &key, &more, err)) && more) {
        if (key_is(&key, "model"))
            TP_TRY(read_model(f, merges, err));
        else if (!merges && key_is(&key, "added_tokens"))
            TP_TRY(read_added_tokens(f, err));
        else if (!merges && key_is(&key, "pre_tokenizer"))
            TP_TRY(keep_value(&f->pre_tokenizer, f, err));
        else if (!merges && key_is(&key, "normalizer"))
            TP_TRY(keep_value(&f->normalizer, f, err));
        else if (!merges && key_is(&key, "post_processor"))
            TP_TRY(keep_value(&f->post_processor, f, err));
        else
            TP_TRY(json_scan_skip(f->scan, err));
    }
    if (!st && !f->has_model)
        st = damaged(f, "has no model", err);
done:
    return st;
}

/* ---- what it does with a text ---- */

static tp_status choose_kind(struct tokenizer_file *f, struct tp_err *err)
{
    struct gguf_tokenizer *t = f->out;
    struct gguf_pre pre = gguf_pre_find(f->pre_tokenizer, f->ignore_merges);

    t->bytes = pre.bytes;
    t->pre = pre.bytes ? pre.name : "default";
    t->space_prefix = gguf_pre_has_space_prefix(f->normalizer, f->pre_tokenizer);
    if (!pre.bytes && !f->fallback)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its BPE is neither byte-level nor has byte_fallback, and llama.cpp has "
                       "no other tokenizer",
                       f->path);
    if (pre.bytes && !pre.name)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its pre_tokenizer splits text by a rule that is not supported: %.200s",
                       f->path, pre.regex ? pre.regex : "no regular expression");
    return TP_OK;
}

/* Tokens of another type than their text says: only byte fallback has bytes and <unk>. */
static void correct_types(struct gguf_tokenizer *t)
{
    for (int64_t i = 0; i < t->n; i++)
        if (!t->tokens[i])
            t->types[i] = GGUF_TOKEN_UNUSED;
        else if (t->bytes && (t->types[i] == GGUF_TOKEN_BYTE || t->types[i] == GGUF_TOKEN_UNKNOWN))
            t->types[i] = GGUF_TOKEN_NORMAL;
}

static tp_status read_all(struct tokenizer_file *f, struct tp_err *err)
{
    struct gguf_tokenizer *t = f->out;
    const char *first;
    tp_status st;

    TP_TRY(read_file(f, false, err));
    TP_TRY(choose_kind(f, err));
    f->merges = (struct gguf_merges){ .path = f->path,
                                      .tokens = t->tokens,
                                      .n_tokens = t->n,
                                      .scores = t->bytes ? NULL : t->scores,
                                      .bytes = &t->merges };
    TP_TRY(gguf_merges_begin(&f->merges, f->arena, err));
    TP_TRY(read_file(f, true, err));
    t->n_merges = f->merges.n;
    correct_types(t);
    first = gguf_pre_first_token(f->post_processor);
    t->first = first ? gguf_tokenizer_find(t, first) : -1;
done:
    return st;
}

tp_status gguf_tokenizer_make(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                              struct arena *arena, struct tp_err *err)
{
    *out = (struct gguf_tokenizer){ .n = vocab, .first = -1 };
    out->tokens = arena_array(arena, (size_t)vocab, sizeof *out->tokens);
    out->types = arena_array(arena, (size_t)vocab, sizeof *out->types);
    out->scores = arena_array(arena, (size_t)vocab, sizeof *out->scores);
    if (!out->tokens || !out->types || !out->scores)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its tokens", path);
    return TP_OK;
}

tp_status gguf_tokenizer_read(struct gguf_tokenizer *out, const char *path, int64_t vocab,
                              struct arena *arena, struct tp_err *err)
{
    struct tokenizer_file f = { .out = out, .path = path, .arena = arena, .is_bpe = true };
    struct json_scan_input input;
    struct object file = OBJECT_NONE;
    int64_t size;
    tp_status st;

    TP_TRY(gguf_tokenizer_make(out, path, vocab, arena, err));
    TP_TRY(object_open_any(&file, &size, path, err));
    object_will_read(&file, 0, size);
    input = object_json(&file, 0, size, path);
    TP_TRY(json_scan_open(&f.scan, &input, err));
    TP_TRY(read_all(&f, err));
done:
    json_decref(f.pre_tokenizer);
    json_decref(f.normalizer);
    json_decref(f.post_processor);
    json_scan_close(f.scan);
    object_close(&file);
    return st;
}

void gguf_tokenizer_free(struct gguf_tokenizer *t)
{
    gguf_bytes_free(&t->merges);
}

bool gguf_tokenizer_is_beyond(struct gguf_tokenizer *t, int64_t number, const char *text,
                              struct arena *arena)
{
    if (number < t->n)
        return false;
    if (!t->beyond)
        t->beyond = arena_strdup(arena, text);
    return true;
}

int64_t gguf_tokenizer_find(const struct gguf_tokenizer *t, const char *text)
{
    for (int64_t i = 0; i < t->n; i++)
        if (t->tokens[i] && strcmp(t->tokens[i], text) == 0)
            return i;
    return -1;
}
