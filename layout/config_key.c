/* layout/config_key.c - see layout/config_key.h. */
#include "layout/config_key.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/rope_config.h"

void config_key_fail(struct config_key_reader *r, const char *key, const char *expected,
                     json_t *found)
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

static void read_count(struct config_key_reader *r, const struct family_key *k, json_t *v,
                       void *member)
{
    int64_t n = (int64_t)k->fallback;

    if (!is_absent(v) || k->value == FAMILY_VALUE_NEED) {
        n = json_is_integer(v) ? json_integer_value(v) : 0;
        if (n < 1 || n > k->max) {
            char expected[64];

            snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)k->max);
            config_key_fail(r, k->key, expected, v);
            return;
        }
    }
    if (k->member_bytes == sizeof(int))
        *(int *)member = (int)n;
    else
        *(int64_t *)member = n;
}

static double read_positive(struct config_key_reader *r, const char *key, json_t *v,
                            double fallback)
{
    if (is_absent(v))
        return fallback;
    if (!json_is_number(v) || !(json_number_value(v) > 0) || !isfinite(json_number_value(v)))
        config_key_fail(r, key, "a number above 0", v);
    return json_number_value(v);
}

static double read_amount(struct config_key_reader *r, const struct family_key *k, json_t *v)
{
    if (is_absent(v))
        return k->fallback;
    if (!json_is_number(v) || !(json_number_value(v) >= 0) || !isfinite(json_number_value(v)))
        config_key_fail(r, k->key, "a number that is not negative", v);
    return json_number_value(v);
}

static void read_flag(struct config_key_reader *r, const struct family_key *k, json_t *v,
                      bool *member)
{
    if (!is_absent(v) && !json_is_boolean(v))
        config_key_fail(r, k->key, "true or false", v);
    *member = is_absent(v) ? k->fallback != 0 : json_is_true(v);
}

static void read_dropout(struct config_key_reader *r, const struct family_key *k, json_t *v,
                         double *member)
{
    double p = is_absent(v) ? k->fallback : json_number_value(v);

    if (!is_absent(v) && (!json_is_number(v) || !(p >= 0 && p < 1)))
        config_key_fail(r, k->key, "a number from 0 to below 1", v);
    if (p > *member)
        *member = p;
}

void config_key_untrained(struct config_key_reader *r, struct model *m, const char *format, ...)
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

static void read_rope(struct config_key_reader *r, const struct family_key *k, struct model *m)
{
    const double part = family_of(m)->rotary_part;
    struct rope_config c;

    r->st = rope_config_read(&c, r->root, k->fallback, r->path, r->arena, r->err);
    if (r->st)
        return;
    m->rope_theta = c.theta;
    m->rope_scaling = c.scaling;
    if (*c.unknown)
        config_key_untrained(r, m, "rope_scaling of type \"%s\"", c.unknown);
    m->rotary_part = c.part > 0 ? c.part : part > 0 ? part : 1;
    if (m->rotary_part > 1 || (m->rotary_part < 1 && !(part > 0)))
        config_key_untrained(r, m, "partial_rotary_factor of %g", m->rotary_part);
}

static void read_local_rope(struct config_key_reader *r, const struct family_key *k,
                            struct model *m)
{
    bool is_scaled;

    r->st = rope_config_read_local(&m->local_rope_theta, &is_scaled, r->root, k->fallback,
                                   k->max ? m->rope_theta : k->fallback, r->path, r->err);
    if (!r->st && is_scaled)
        config_key_untrained(r, m, "scaled rotary embedding of layers with a sliding window");
}

static void read_cap(struct config_key_reader *r, const struct family_key *k, json_t *v,
                     double *member)
{
    *member = json_is_null(v) ? 0 : read_positive(r, k->key, v, k->fallback);
}

/* Whether the layer has no sliding window; `types` has no more than a period, or one for each. */
static bool is_full_layer(struct config_key_reader *r, json_t *types, int64_t period, int layer)
{
    const char *type = json_string_value(json_array_get(types, (size_t)layer));

    if (!types)
        return (layer + 1) % period == 0;
    if (type && strcmp(type, "full_attention") == 0)
        return true;
    if (!r->st && (!type || strcmp(type, "sliding_attention") != 0))
        config_key_fail(r, "layer_types", "\"full_attention\" and \"sliding_attention\" alone",
                        types);
    return false;
}

/* A bool for each layer. NULL: no memory, which is kept in r->st. */
static bool *alloc_layers(struct config_key_reader *r, const struct model *m)
{
    bool *layers = arena_array(r->arena, (size_t)m->layers, sizeof *layers);

    if (!layers)
        r->st = tp_fail(r->err, TP_E_NOMEM, "%s: no memory", r->path);
    return layers;
}

/* SmolLM3 without a list of types: the window is that of layers without a rotary embedding. */
static bool is_full_with_rope(struct config_key_reader *r, const struct model *m, int layer)
{
    return !json_is_true(json_object_get(r->root, "use_sliding_window")) ||
           family_layer_has_rope(m, layer);
}

/* transformers writes a list of types; older versions wrote the period, or knew it. */
static void read_layers(struct config_key_reader *r, const struct family_key *k, json_t *v,
                        const struct model *m, const bool **member)
{
    bool is_list = json_is_array(v);
    int64_t period = is_list ? 1 : (int64_t)k->fallback;
    bool *full = alloc_layers(r, m);

    if (!full)
        return;
    if (is_list && json_array_size(v) != (size_t)m->layers)
        config_key_fail(r, "layer_types", "a type for each layer", v);
    else if (!is_list && !is_absent(v))
        read_count(r, k, v, &period);
    for (int i = 0; i < m->layers && !r->st; i++)
        full[i] = period > 0 ? is_full_layer(r, is_list ? v : NULL, period, i)
                             : is_full_with_rope(r, m, i);
    *member = full;
}

/* Whether the layer has no rotary embedding; `uses` has a 1 for layers that have one. */
static bool is_nope_layer(struct config_key_reader *r, json_t *uses, int64_t period, int layer)
{
    json_t *v = json_array_get(uses, (size_t)layer);
    const json_int_t use = json_is_boolean(v) ? json_is_true(v) : json_integer_value(v);

    if (!uses)
        return (layer + 1) % period == 0;
    if (!r->st && ((!json_is_integer(v) && !json_is_boolean(v)) || use < 0 || use > 1))
        config_key_fail(r, "no_rope_layers", "1 (a rotary embedding) or 0 (none) for each layer",
                        uses);
    return use == 0;
}

/* transformers reads a list, which may be longer than needed, or a period. */
static void read_nope(struct config_key_reader *r, const struct family_key *k, json_t *v,
                      const struct model *m, const bool **member)
{
    bool is_list = json_is_array(v);
    int64_t period = (int64_t)k->fallback;
    bool *nope = alloc_layers(r, m);

    if (!nope)
        return;
    if (!is_list && !is_absent(v))
        read_count(r, k, v, &period);
    for (int i = 0; i < m->layers && !r->st; i++)
        nope[i] = is_nope_layer(r, is_list ? v : NULL, period, i);
    *member = nope;
}

/* null means none, which is not the same as an absent key. */
static void read_window(struct config_key_reader *r, const struct family_key *k, json_t *v,
                        int64_t *member)
{
    *member = 0;
    if (!v || !json_is_null(v))
        read_count(r, k, v, member);
}

/* The name of an activation function in transformers. */
static void read_gelu(struct config_key_reader *r, const struct family_key *k, json_t *v,
                      struct model *m, bool *member)
{
    static const char *const with_tanh[] = { "gelu_new", "gelu_fast", "gelu_pytorch_tanh" };
    const char *name = json_string_value(v);

    *member = is_absent(v) ? k->fallback != 0 : name && strcmp(name, "gelu") == 0;
    if (is_absent(v) || *member)
        return;
    for (size_t i = 0; name && i < sizeof with_tanh / sizeof *with_tanh; i++)
        if (strcmp(name, with_tanh[i]) == 0)
            return;
    config_key_untrained(r, m, "\"%s\" of \"%.60s\" (only kinds of GELU are implemented)", k->key,
                         name ? name : "?");
}

/* Whether the values are equal; 0 and 0.0 are. */
static bool is_equal(json_t *a, json_t *b)
{
    if (json_is_number(a) && json_is_number(b))
        return json_number_value(a) == json_number_value(b);
    return json_equal(a, b);
}

/* Whether the key is absent or has the only value that is known. */
static bool has_only(struct config_key_reader *r, const struct family_key *k, json_t *v)
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

static void refuse_other(struct config_key_reader *r, const struct family_key *k, json_t *v)
{
    char expected[128];

    snprintf(expected, sizeof expected, "%s%s%s%s", k->only, k->other ? " (" : "",
             k->other ? k->other : "", k->other ? ")" : "");
    config_key_fail(r, k->key, expected, v);
}

static void keep_other(struct config_key_reader *r, const struct family_key *k, json_t *v,
                       struct model *m)
{
    char *text = json_dumps(v, JSON_ENCODE_ANY | JSON_COMPACT);

    config_key_untrained(r, m, "\"%s\" of %.60s (only %s is implemented)", k->key,
                         text ? text : "?", k->only);
    free(text);
}

/* The value of a key; "a or b": of the first that is there. */
static json_t *value_of(json_t *root, const char *key)
{
    const char *end = strstr(key, " or ");
    json_t *v = json_object_getn(root, key, end ? (size_t)(end - key) : strlen(key));

    return end && is_absent(v) ? value_of(root, end + strlen(" or ")) : v;
}

void config_key_read(struct config_key_reader *r, const struct family_key *k, struct model *m)
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
    case FAMILY_VALUE_NOPE:
        read_nope(r, k, v, m, member);
        break;
    case FAMILY_VALUE_CAP:
        read_cap(r, k, v, member);
        break;
    case FAMILY_VALUE_WINDOW:
        read_window(r, k, v, member);
        break;
    case FAMILY_VALUE_GELU:
        read_gelu(r, k, v, m, member);
        break;
    case FAMILY_VALUE_FIXED:
        *(bool *)member = k->fallback != 0;
        break;
    case FAMILY_VALUE_CONSTANT:
        *(double *)member = k->fallback;
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
