/* layout/model_config.c - see layout/model_config.h. What is read is in the tables of
 * layout/family.h; here are the kinds of values, and what is derived from others. */
#include "layout/model_config.h"

#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "layout/family.h"
#include "layout/rope_config.h"

/* The first failure is kept in st, and later reads do nothing. */
struct config_reader {
    json_t *root;
    const char *path;
    const struct family *family;
    struct arena *arena;
    bool takes_any; /* also a model of no family */
    struct tp_err *err;
    tp_status st;
};

static void fail(struct config_reader *r, const char *key, const char *expected, json_t *found)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

    r->st = tp_fail(r->err, TP_E_USAGE, "%s: \"%s\" is %.60s, expected %s", r->path, key,
                    text ? text : "missing", expected);
    free(text);
}

static bool is_absent(json_t *v)
{
    return !v || json_is_null(v);
}

/* ---- values ---- */

static void read_count(struct config_reader *r, const struct family_key *k, json_t *v, void *member)
{
    int64_t n = (int64_t)k->fallback;

    if (!is_absent(v) || k->value == FAMILY_VALUE_NEED) {
        n = json_is_integer(v) ? json_integer_value(v) : 0;
        if (n < 1 || n > k->max) {
            char expected[64];

            snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)k->max);
            fail(r, k->key, expected, v);
            return;
        }
    }
    if (k->member_bytes == sizeof(int))
        *(int *)member = (int)n;
    else
        *(int64_t *)member = n;
}

static double read_positive(struct config_reader *r, const char *key, json_t *v, double fallback)
{
    if (is_absent(v))
        return fallback;
    if (!json_is_number(v) || !(json_number_value(v) > 0) || !isfinite(json_number_value(v)))
        fail(r, key, "a number above 0", v);
    return json_number_value(v);
}

static double read_amount(struct config_reader *r, const struct family_key *k, json_t *v)
{
    if (is_absent(v))
        return k->fallback;
    if (!json_is_number(v) || !(json_number_value(v) >= 0) || !isfinite(json_number_value(v)))
        fail(r, k->key, "a number that is not negative", v);
    return json_number_value(v);
}

static void read_flag(struct config_reader *r, const struct family_key *k, json_t *v, bool *member)
{
    if (!is_absent(v) && !json_is_boolean(v))
        fail(r, k->key, "true or false", v);
    *member = is_absent(v) ? k->fallback != 0 : json_is_true(v);
}

static void read_dropout(struct config_reader *r, const struct family_key *k, json_t *v,
                         double *member)
{
    double p = is_absent(v) ? k->fallback : json_number_value(v);

    if (!is_absent(v) && (!json_is_number(v) || !(p >= 0 && p < 1)))
        fail(r, k->key, "a number from 0 to below 1", v);
    if (p > *member)
        *member = p;
}

/* Keep the first thing that tp-train does not compute. */
static void keep_untrained(struct config_reader *r, struct model *m, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static void keep_untrained(struct config_reader *r, struct model *m, const char *format, ...)
{
    char text[160];
    va_list args;

    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (m->untrained)
        return;
    m->untrained =
        arena_printf(r->arena, "%s: tp-train cannot compute this model's %s", r->path, text);
    if (!m->untrained)
        r->st = tp_fail(r->err, TP_E_NOMEM, "%s: no memory", r->path);
}

static void read_rope(struct config_reader *r, const struct family_key *k, struct model *m)
{
    struct rope_config c;

    r->st = rope_config_read(&c, r->root, k->fallback, r->path, r->err);
    if (r->st)
        return;
    m->rope_theta = c.theta;
    m->rope_scaling = c.scaling;
    if (*c.unknown)
        keep_untrained(r, m, "rope_scaling of type \"%s\"", c.unknown);
    if (c.is_partial)
        keep_untrained(r, m, "partial_rotary_factor");
}

static void read_local_rope(struct config_reader *r, const struct family_key *k, struct model *m)
{
    bool is_scaled;

    r->st = rope_config_read_local(&m->local_rope_theta, &is_scaled, r->root, k->fallback, r->path,
                                   r->err);
    if (!r->st && is_scaled)
        keep_untrained(r, m, "scaled rotary embedding of layers with a sliding window");
}

static void read_cap(struct config_reader *r, const struct family_key *k, json_t *v, double *member)
{
    *member = json_is_null(v) ? 0 : read_positive(r, k->key, v, k->fallback);
}

/* Whether the layer has no sliding window; `types` has no more than a period, or one for each. */
static bool is_full_layer(struct config_reader *r, json_t *types, int64_t period, int layer)
{
    const char *type = json_string_value(json_array_get(types, (size_t)layer));

    if (!types)
        return (layer + 1) % period == 0;
    if (type && strcmp(type, "full_attention") == 0)
        return true;
    if (!r->st && (!type || strcmp(type, "sliding_attention") != 0))
        fail(r, "layer_types", "\"full_attention\" and \"sliding_attention\" alone", types);
    return false;
}

/* transformers writes a list of types; older versions wrote the period, or knew it. */
static void read_layers(struct config_reader *r, const struct family_key *k, json_t *v,
                        const struct model *m, const bool **member)
{
    bool is_list = json_is_array(v);
    int64_t period = is_list ? 1 : (int64_t)k->fallback;
    bool *full = arena_array(r->arena, (size_t)m->layers, sizeof *full);

    if (!full) {
        r->st = tp_fail(r->err, TP_E_NOMEM, "%s: no memory", r->path);
        return;
    }
    if (is_list && json_array_size(v) != (size_t)m->layers)
        fail(r, "layer_types", "a type for each layer", v);
    else if (!is_list && !is_absent(v))
        read_count(r, k, v, &period);
    for (int i = 0; i < m->layers && !r->st; i++)
        full[i] = is_full_layer(r, is_list ? v : NULL, period, i);
    *member = full;
}

/* null means none, which is not the same as an absent key. */
static void read_window(struct config_reader *r, const struct family_key *k, json_t *v,
                        int64_t *member)
{
    *member = 0;
    if (!v || !json_is_null(v))
        read_count(r, k, v, member);
}

/* Whether the values are equal; 0 and 0.0 are. */
static bool is_equal(json_t *a, json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Whether the key is absent or has the only value that is known. */
static bool has_only(struct config_reader *r, const struct family_key *k, json_t *v)
{
    json_t *only;
    bool is_same;

    if (is_absent(v))
        return true;
    only = json_loads(k->only, JSON_DECODE_ANY, NULL);
    if (!only)
        r->st = tp_fail(r->err, TP_E_NOMEM, "%s: no memory", r->path);
    is_same = only && is_equal(v, only);
    for (size_t i = 0; i < json_array_size(only); i++)
        is_same = is_same || is_equal(v, json_array_get(only, i));
    json_decref(only);
    return is_same;
}

static void refuse_other(struct config_reader *r, const struct family_key *k, json_t *v)
{
    char expected[128];

    snprintf(expected, sizeof expected, "%s%s%s%s", k->only, k->other ? " (" : "",
             k->other ? k->other : "", k->other ? ")" : "");
    fail(r, k->key, expected, v);
}

static void keep_other(struct config_reader *r, const struct family_key *k, json_t *v,
                       struct model *m)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);

    keep_untrained(r, m, "\"%s\" of %.60s (only %s is implemented)", k->key, text ? text : "?",
                   k->only);
    free(text);
}

/* The value of a key; "a or b": of the first that is there. */
static json_t *value_of(json_t *root, const char *key)
{
    const char * or = strstr(key, " or ");
    json_t *v = json_object_getn(root, key, or ? (size_t)(or -key) : strlen(key));

    return or &&is_absent(v) ? value_of(root, or +strlen(" or ")) : v;
}

static void read_key(struct config_reader *r, const struct family_key *k, struct model *m)
{
    json_t *v = value_of(r->root, k->key);
    void *member = (char *)m + k->member;

    switch (k->value) {
    case FAMILY_VALUE_NEED:
    case FAMILY_VALUE_COUNT:
        read_count(r, k, v, member);
        break;
    case FAMILY_VALUE_POSITIVE:
        *(double *)member = read_positive(r, k->key, v, k->fallback);
        break;
    case FAMILY_VALUE_AMOUNT:
        *(double *)member = read_amount(r, k, v);
        break;
    case FAMILY_VALUE_FLAG:
        read_flag(r, k, v, member);
        break;
    case FAMILY_VALUE_DROPOUT:
        read_dropout(r, k, v, member);
        break;
    case FAMILY_VALUE_ROPE:
        read_rope(r, k, m);
        break;
    case FAMILY_VALUE_LOCAL:
        read_local_rope(r, k, m);
        break;
    case FAMILY_VALUE_LAYERS:
        read_layers(r, k, v, m, member);
        break;
    case FAMILY_VALUE_CAP:
        read_cap(r, k, v, member);
        break;
    case FAMILY_VALUE_WINDOW:
        read_window(r, k, v, member);
        break;
    case FAMILY_VALUE_FIXED:
        *(bool *)member = k->fallback != 0;
        break;
    case FAMILY_VALUE_ONLY:
        if (!has_only(r, k, v) && !r->st)
            refuse_other(r, k, v);
        break;
    case FAMILY_VALUE_TRAINS:
        if (!has_only(r, k, v) && !r->st)
            keep_other(r, k, v, m);
        break;
    default:
        r->st = tp_fail(r->err, TP_E_INTERNAL, "%s: no reader for this key", k->key);
    }
}

/* ---- the model ---- */

static void read_family(struct config_reader *r, struct model *m)
{
    json_t *list = json_object_get(r->root, "architectures");
    json_t *type = json_object_get(r->root, "model_type");
    char supported[512] = "";
    size_t used = 0;

    if (family_find(&m->family, json_string_value(json_array_get(list, 0)),
                    json_string_value(type)))
        return;
    if (r->takes_any) {
        m->family = MODEL_OF_RULES;
        return;
    }
    for (int i = 0; i < MODEL_FAMILIES; i++)
        used +=
            (size_t)snprintf(supported + used, sizeof supported - used, "%s%s",
                             i ? ", " : "one of ", family_at((enum model_family)i)->architecture);
    snprintf(supported + used, sizeof supported - used,
             " (tp-ckpt import --rules FILE moves others)");
    fail(r, "architectures", supported, list || !type ? list : type);
}

/* The name of the key that sets a member, for messages. */
static const char *key_of(const struct config_reader *r, size_t member)
{
    const struct family_key *k = r->family->keys;

    while (k->value != FAMILY_VALUE_END && (k->member != member || k->member_bytes == 0))
        k++;
    return k->key;
}

#define KEY_OF(r, name) key_of(r, offsetof(struct model, name))

/* Fill in what the config left to be derived, and check the dimensions against each other. */
static void derive(struct config_reader *r, struct model *m)
{
    if (!m->kv_heads)
        m->kv_heads = m->heads;
    if (!m->ffn)
        m->ffn = 4 * m->hidden;
    if (m->heads % m->kv_heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %s %d does not divide %s %d", r->path,
                        KEY_OF(r, kv_heads), m->kv_heads, KEY_OF(r, heads), m->heads);
    else if (!m->head_dim && m->hidden % m->heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: %s %d does not divide %s %lld, and there is no head_dim", r->path,
                        KEY_OF(r, heads), m->heads, KEY_OF(r, hidden), (long long)m->hidden);
    else if (m->embedding_width && m->embedding_width != m->hidden)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: %s %lld is not %s %lld; an embedding of another width is not "
                        "supported",
                        r->path, KEY_OF(r, embedding_width), (long long)m->embedding_width,
                        KEY_OF(r, hidden), (long long)m->hidden);
    else if (m->experts_per_token > m->experts)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %s %d is more than %s %d", r->path,
                        KEY_OF(r, experts_per_token), m->experts_per_token, KEY_OF(r, experts),
                        m->experts);
    if (r->st)
        return;
    if (!m->head_dim)
        m->head_dim = m->hidden / m->heads;
    if (r->family->position == FAMILY_ROTARY && m->head_dim % 2 != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: head_dim %lld is odd, but rotary embedding needs an even one", r->path,
                        (long long)m->head_dim);
    else if (m->head_dim * m->heads > FAMILY_WIDTH_MAX)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %d heads of head_dim %lld are wider than %d",
                        r->path, m->heads, (long long)m->head_dim, FAMILY_WIDTH_MAX);
}

static void read_model(struct config_reader *r, struct model *m)
{
    read_family(r, m);
    if (r->st || m->family == MODEL_OF_RULES)
        return;
    r->family = family_of(m);
    for (const struct family_key *k = r->family->keys; k->value != FAMILY_VALUE_END && !r->st; k++)
        read_key(r, k, m);
    if (!r->st)
        derive(r, m);
    if (!r->st && r->family->untrained)
        keep_untrained(r, m, "%s", r->family->untrained);
}

/* A text with a name for messages. */
struct config_text {
    const char *text;
    size_t size;
    const char *path;
};

static tp_status parse(struct model *out, const struct config_text *c, bool takes_any,
                       struct arena *arena, struct tp_err *err)
{
    const char *text = c->text, *path = c->path;
    size_t size = c->size;
    struct model m = { 0 };
    struct config_reader r = { .path = path, .arena = arena, .takes_any = takes_any, .err = err };
    json_error_t json_err;
    char *copy;

    if (!json_scan_is_bounded(text, size)) { /* a tree of it could need 80 times its memory */
        r.st = tp_fail(err, TP_E_USAGE,
                       "%s: has more than %d MiB or %d values, so it is not a model's config.json",
                       path, JSON_VALUE_BYTES_MAX >> 20, 2 * JSON_VALUE_PARTS_MAX);
        goto done;
    }
    r.root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &json_err);
    if (!r.root || !json_is_object(r.root)) {
        r.st = tp_fail(err, TP_E_USAGE, "%s: is not a JSON object (line %d: %.200s)", path,
                       r.root ? 1 : json_err.line, r.root ? "another type" : json_err.text);
        goto done;
    }
    read_model(&r, &m);
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
