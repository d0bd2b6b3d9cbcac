/* layout/model_config.c - see layout/model_config.h. What is read is in the tables of
 * layout/family.h; here are the kinds of values, and what is derived from others. */
#include "layout/model_config.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "layout/family.h"

/* The first failure is kept in st, and later reads do nothing. */
struct config_reader {
    json_t *root;
    const char *path;
    const struct family *family;
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

/* Whether the object asks for the rotary embedding without scaling. Its "type" is an older name of
 * "rope_type". */
static bool is_default_rope(json_t *parameters)
{
    json_t *type = json_object_get(parameters, "rope_type");

    if (!type)
        type = json_object_get(parameters, "type");
    return json_is_string(type) && strcmp(json_string_value(type), "default") == 0;
}

/* transformers 5 writes rope_parameters.rope_theta, older versions rope_theta and rope_scaling. */
static void read_rope_theta(struct config_reader *r, const struct family_key *k, json_t *v,
                            double *member)
{
    json_t *parameters = json_object_get(r->root, "rope_parameters");
    json_t *scaling = json_object_get(r->root, "rope_scaling");

    *member = k->fallback;
    if (!is_absent(scaling) && !is_default_rope(scaling))
        fail(r, "rope_scaling", "null (scaled rotary embedding is not supported)", scaling);
    else if (!is_absent(json_object_get(parameters, "rope_type")) && !is_default_rope(parameters))
        fail(r, "rope_parameters", "rope_type \"default\"", parameters);
    else if (!is_absent(json_object_get(parameters, k->key)))
        *member = read_positive(r, k->key, json_object_get(parameters, k->key), k->fallback);
    else
        *member = read_positive(r, k->key, v, k->fallback);
}

/* Whether the values are equal; 0 and 0.0 are. */
static bool is_equal(json_t *a, json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Refuse any value but the one that is implemented. */
static void check_only(struct config_reader *r, const struct family_key *k, json_t *v)
{
    json_t *only;

    if (is_absent(v))
        return;
    only = json_loads(k->only, JSON_DECODE_ANY, NULL);
    if (!only) {
        r->st = tp_fail(r->err, TP_E_NOMEM, "%s: no memory", r->path);
    } else if (!is_equal(v, only)) {
        char expected[128];

        snprintf(expected, sizeof expected, "%s%s%s%s", k->only, k->other ? " (" : "",
                 k->other ? k->other : "", k->other ? ")" : "");
        fail(r, k->key, expected, v);
    }
    json_decref(only);
}

static void read_key(struct config_reader *r, const struct family_key *k, struct model *m)
{
    json_t *v = json_object_get(r->root, k->key);
    void *member = (char *)m + k->member;

    switch (k->value) {
    case FAMILY_VALUE_NEED:
    case FAMILY_VALUE_COUNT:
        read_count(r, k, v, member);
        break;
    case FAMILY_VALUE_POSITIVE:
        *(double *)member = read_positive(r, k->key, v, k->fallback);
        break;
    case FAMILY_VALUE_FLAG:
        read_flag(r, k, v, member);
        break;
    case FAMILY_VALUE_DROPOUT:
        read_dropout(r, k, v, member);
        break;
    case FAMILY_VALUE_ROPE:
        read_rope_theta(r, k, v, member);
        break;
    case FAMILY_VALUE_ONLY:
        check_only(r, k, v);
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
    char supported[256] = "";
    size_t used = 0;

    if (family_find(&m->family, json_string_value(json_array_get(list, 0)),
                    json_string_value(type)))
        return;
    for (int i = 0; i < MODEL_FAMILIES; i++)
        used += (size_t)snprintf(supported + used, sizeof supported - used, "%s[\"%s\"]",
                                 i ? " or " : "", family_at((enum model_family)i)->architecture);
    fail(r, "architectures", supported, list || !type ? list : type);
}

/* The name of the key that sets a member, for messages. */
static const char *key_of(const struct config_reader *r, size_t member)
{
    const struct family_key *k = r->family->keys;

    while (k->value != FAMILY_VALUE_END && (k->member != member || k->value == FAMILY_VALUE_ONLY))
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
    if (r->st)
        return;
    r->family = family_of(m);
    for (const struct family_key *k = r->family->keys; k->value != FAMILY_VALUE_END && !r->st; k++)
        read_key(r, k, m);
    if (!r->st)
        derive(r, m);
}

tp_status model_config_parse(struct model *out, const char *text, size_t size, const char *path,
                             struct arena *arena, struct tp_err *err)
{
    struct model m = { 0 };
    struct config_reader r = { .path = path, .err = err };
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

tp_status model_config_read(struct model *out, const char *path, struct arena *arena,
                            struct tp_err *err)
{
    char *text, *file = arena_printf(arena, "%s%s", path, file_is_dir(path) ? "/config.json" : "");
    size_t size;
    tp_status st;

    if (!file)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
    st = file_read_all(&text, &size, file, MODEL_CONFIG_BYTES_MAX, arena, err);
    if (st == TP_E_CORRUPT) /* too long or not a file: the request is wrong */
        st = err->status = TP_E_USAGE;
    return st ? st : model_config_parse(out, text, size, file, arena, err);
}
