/* layout/model_config.c - see layout/model_config.h. What is read is in the tables of
 * layout/family.h, and layout/config_key.h reads it; here is what is derived from it. */
#include "layout/model_config.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "core/text.h"
#include "layout/config_key.h"
#include "layout/family.h"

/* transformers goes by model_type alone, and others, such as vLLM, by architectures. */
static void check_model_type(struct config_key_reader *r, struct model *m, json_t *type)
{
    enum model_family other;

    if (family_find(&other, NULL, json_string_value(type)) && other != m->family)
        config_key_untrained(r, m,
                             "\"architectures\" of \"%s\" with the \"model_type\" \"%s\" of "
                             "another (correct the one that is wrong)",
                             family_of(m)->architecture, family_at(other)->model_type);
}

static void read_family(struct config_key_reader *r, struct model *m, bool takes_any)
{
    json_t *list = json_object_get(r->root, "architectures");
    json_t *type = json_object_get(r->root, "model_type");
    char supported[512] = "";
    size_t used = 0;

    if (family_find(&m->family, json_string_value(json_array_get(list, 0)),
                    json_string_value(type))) {
        check_model_type(r, m, type);
        return;
    }
    if (takes_any) {
        m->family = MODEL_OF_RULES;
        return;
    }
    for (int i = 0; i < MODEL_FAMILIES; i++)
        used +=
            (size_t)snprintf(supported + used, sizeof supported - used, "%s%s",
                             i ? ", " : "one of ", family_at((enum model_family)i)->architecture);
    snprintf(supported + used, sizeof supported - used,
             " (tp-ckpt import --rules FILE moves others)");
    config_key_fail(r, "architectures", supported, list || !type ? list : type);
}

/* The name of the key that sets a member, for messages. */
static const char *key_of(const struct family *family, size_t member)
{
    const struct family_key *k = family->keys;

    while (k->value != FAMILY_VALUE_END && (k->member != member || k->member_bytes == 0))
        k++;
    return k->key;
}

#define KEY_OF(m, name) key_of(family_of(m), offsetof(struct model, name))

/* Fill in what the config left to be derived, and check the dimensions against each other. */
static void derive(struct config_key_reader *r, struct model *m)
{
    if (!m->kv_heads)
        m->kv_heads = m->heads;
    if (!m->ffn)
        m->ffn = 4 * m->hidden;
    if (m->heads % m->kv_heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %s %d does not divide %s %d", r->path,
                        KEY_OF(m, kv_heads), m->kv_heads, KEY_OF(m, heads), m->heads);
    else if (!m->head_dim && m->hidden % m->heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: %s %d does not divide %s %lld, and there is no head_dim", r->path,
                        KEY_OF(m, heads), m->heads, KEY_OF(m, hidden), (long long)m->hidden);
    else if (m->embedding_width && m->embedding_width != m->hidden)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: %s %lld is not %s %lld; an embedding of another width is not "
                        "supported",
                        r->path, KEY_OF(m, embedding_width), (long long)m->embedding_width,
                        KEY_OF(m, hidden), (long long)m->hidden);
    else if (m->experts_per_token > m->experts)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %s %d is more than %s %d", r->path,
                        KEY_OF(m, experts_per_token), m->experts_per_token, KEY_OF(m, experts),
                        m->experts);
    if (r->st)
        return;
    if (!m->head_dim)
        m->head_dim = m->hidden / m->heads;
    if (family_of(m)->position == FAMILY_ROTARY && m->head_dim % 2 != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: head_dim %lld is odd, but rotary embedding needs an even one", r->path,
                        (long long)m->head_dim);
    else if (m->head_dim * m->heads > FAMILY_WIDTH_MAX)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %d heads of head_dim %lld are wider than %d",
                        r->path, m->heads, (long long)m->head_dim, FAMILY_WIDTH_MAX);
}

/* How many elements of a head are rotated, as transformers rounds it. */
static void derive_rotary(struct config_key_reader *r, struct model *m)
{
    double elements = (double)m->head_dim * m->rotary_part;

    m->rotary_dim = elements < (double)m->head_dim ? (int64_t)elements : m->head_dim;
    if (m->rotary_dim < 2 || m->rotary_dim % 2 != 0)
        config_key_untrained(r, m, "rotary embedding of %lld of the %lld elements of a head",
                             (long long)m->rotary_dim, (long long)m->head_dim);
}

/* What longrope has from other keys. */
static void derive_longrope(struct config_key_reader *r, struct model *m)
{
    struct rope_scaling *s = &m->rope_scaling;
    const int64_t pairs = m->rotary_dim / 2;

    if (m->original_positions > 0)
        s->original_positions = (double)m->original_positions;
    if (!(s->original_positions > 0))
        s->original_positions = (double)m->max_positions;
    if (!(s->factor > 0))
        s->factor = (double)m->max_positions / s->original_positions;
    if (s->n_short != pairs || s->n_long != pairs)
        config_key_untrained(
            r, m,
            "rope_scaling of type \"longrope\" without short_factor and long_factor "
            "of %lld numbers above 0 each",
            (long long)pairs);
    if (!(s->original_positions > 1) && s->factor > 1)
        config_key_untrained(r, m, "longrope from original_max_position_embeddings %g",
                             s->original_positions);
}

static void read_model(struct config_key_reader *r, struct model *m, bool takes_any)
{
    const struct family *f;

    read_family(r, m, takes_any);
    if (r->st || m->family == MODEL_OF_RULES)
        return;
    f = family_of(m);
    for (const struct family_key *k = f->keys; k->value != FAMILY_VALUE_END && !r->st; k++)
        config_key_read(r, k, m);
    if (!r->st)
        derive(r, m);
    if (!r->st && m->rotary_part > 0)
        derive_rotary(r, m);
    if (!r->st && m->rope_scaling.type == ROPE_SCALING_LONGROPE)
        derive_longrope(r, m);
    if (!r->st && f->untrained)
        config_key_untrained(r, m, "%s", f->untrained);
}

/* A text with a name for messages. */
struct config_text {
    const char *text;
    size_t size;
    const char *path;
};

/* A tree of a larger text could need 80 times its memory. A manifest has the text as a JSON string,
 * whose escapes count: a checkpoint that has it must be readable. */
static bool is_bounded(const char *text, size_t size)
{
    size_t quoted = size + strlen("\"\"");

    for (size_t i = 0; i < size; i++)
        quoted += text[i] == '"' || text[i] == '\\' || (unsigned char)text[i] < 0x20;
    return quoted <= JSON_VALUE_BYTES_MAX && json_scan_is_bounded(text, size);
}

static tp_status parse(struct model *out, const struct config_text *c, bool takes_any,
                       struct arena *arena, struct tp_err *err)
{
    const char *text = c->text, *path = c->path;
    size_t size = c->size;
    struct model m = { 0 };
    struct config_key_reader r = { .path = path, .arena = arena, .err = err };
    json_error_t json_err;
    char *copy;

    if (!is_bounded(text, size)) {
        r.st =
            tp_fail(err, TP_E_USAGE,
                    "%s: has more than %d MiB (as a JSON string, with its escapes) or %d values, "
                    "so it is not a model's config.json",
                    path, JSON_VALUE_BYTES_MAX >> 20, 2 * JSON_VALUE_PARTS_MAX);
        goto done;
    }
    r.root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &json_err);
    if (!r.root || !json_is_object(r.root)) {
        r.st = tp_fail(err, TP_E_USAGE, "%s: is not a JSON object (line %d: %.200s)", path,
                       r.root ? 1 : json_err.line, r.root ? "another type" : json_err.text);
        goto done;
    }
    read_model(&r, &m, takes_any);
    if (r.st)
        goto done;
    copy = arena_alloc(arena, size + 1);
    if (!copy) {
        r.st = tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
        goto done;
    }
    memcpy(copy, text, size);
    m.config = copy;
    *out = m;
done:
    json_decref(r.root);
    return r.st;
}

tp_status model_config_parse(struct model *out, const char *text, size_t size, const char *path,
                             struct arena *arena, struct tp_err *err)
{
    return parse(out, &(struct config_text){ text, size, path }, false, arena, err);
}

tp_status model_config_parse_any(struct model *out, const char *text, size_t size, const char *path,
                                 struct arena *arena, struct tp_err *err)
{
    return parse(out, &(struct config_text){ text, size, path }, true, arena, err);
}

static tp_status read_file(struct model *out, const char *path, bool takes_any, struct arena *arena,
                           struct tp_err *err)
{
    char *text, *file = arena_printf(arena, "%s%s", path, file_is_dir(path) ? "/config.json" : "");
    size_t size;
    tp_status st;

    if (!file)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
    if (text_ends_with(file, ".safetensors"))
        return tp_fail(err, TP_E_USAGE,
                       "%s: has weights, and is not a config.json; name the folder that has both",
                       path);
    st = file_read_argument(&text, &size, file, MODEL_CONFIG_BYTES_MAX, arena, err);
    return st ? st : parse(out, &(struct config_text){ text, size, file }, takes_any, arena, err);
}

tp_status model_config_read(struct model *out, const char *path, struct arena *arena,
                            struct tp_err *err)
{
    return read_file(out, path, false, arena, err);
}

tp_status model_config_read_any(struct model *out, const char *path, struct arena *arena,
                                struct tp_err *err)
{
    return read_file(out, path, true, arena, err);
}
