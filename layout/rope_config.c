/* layout/rope_config.c - see layout/rope_config.h. */
#include "layout/rope_config.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* An object with values. */
struct rope_object {
    json_t *object;
    const char *name, *path; /* for messages */
};

static tp_status fail(const struct rope_object *o, const char *key, json_t *found,
                      const char *expected, struct tp_err *err)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    tp_status st = tp_fail(err, TP_E_USAGE, "%s: \"%s%s%s\" is %.60s, expected %s", o->path,
                           o->name, *o->name ? "." : "", key, text ? text : "missing", expected);

    free(text);
    return st;
}

static bool is_absent(json_t *v)
{
    return !v || json_is_null(v);
}

/* A number above 0; *out stays when it is absent. */
static tp_status read_optional(double *out, const struct rope_object *o, const char *key,
                               struct tp_err *err)
{
    json_t *v = json_object_get(o->object, key);
    double x = json_number_value(v);

    if (is_absent(v))
        return TP_OK;
    if (!json_is_number(v) || !(x > 0) || !isfinite(x))
        return fail(o, key, v, "a number above 0", err);
    *out = x;
    return TP_OK;
}

static tp_status read_needed(double *out, const struct rope_object *o, const char *key,
                             struct tp_err *err)
{
    if (is_absent(json_object_get(o->object, key)))
        return fail(o, key, NULL, "a number above 0", err);
    return read_optional(out, o, key, err);
}

/* "type" is an older name of "rope_type". */
static json_t *type_of(json_t *object)
{
    json_t *type = json_object_get(object, "rope_type");

    return is_absent(type) ? json_object_get(object, "type") : type;
}

/* Early files of Phi-3 call longrope "su" or "yarn". No other type has factors of their own for
 * short sequences. */
static const char *word_of(const struct rope_object *o, json_t *type)
{
    bool is_longrope = json_is_array(json_object_get(o->object, "short_factor"));

    return is_longrope ? "longrope" : json_string_value(type);
}

static tp_status read_type(struct rope_config *out, const struct rope_object *o, struct tp_err *err)
{
    json_t *type = type_of(o->object);

    if (is_absent(type))
        return TP_OK;
    if (!json_is_string(type))
        return fail(o, "rope_type", type, "a word", err);
    for (int i = 0; i < ROPE_SCALING_COUNT; i++)
        if (strcmp(word_of(o, type), rope_scaling_name((enum rope_scaling_type)i)) == 0) {
            out->scaling.type = (enum rope_scaling_type)i;
            return TP_OK;
        }
    snprintf(out->unknown, sizeof out->unknown, "%s", word_of(o, type));
    return TP_OK;
}

static tp_status read_yarn(struct rope_scaling *s, const struct rope_object *o, struct tp_err *err)
{
    json_t *truncate = json_object_get(o->object, "truncate");
    tp_status st;

    s->beta_fast = 32;
    s->beta_slow = 1;
    s->truncate = is_absent(truncate) || json_is_true(truncate);
    TP_TRY(read_optional(&s->beta_fast, o, "beta_fast", err));
    TP_TRY(read_optional(&s->beta_slow, o, "beta_slow", err));
    TP_TRY(read_optional(&s->attention_factor, o, "attention_factor", err));
    TP_TRY(read_optional(&s->mscale, o, "mscale", err));
    TP_TRY(read_optional(&s->mscale_all_dim, o, "mscale_all_dim", err));
done:
    return st;
}

/* Read a list of numbers above 0. With anything else *n stays 0: the model can be moved, though not
 * trained. */
static tp_status read_factors(const double **out, int *n, const struct rope_object *o,
                              const char *key, struct arena *arena, struct tp_err *err)
{
    json_t *list = json_object_get(o->object, key);
    const size_t length = json_array_size(list);
    double *factors = arena_array(arena, length, sizeof *factors);

    if (!factors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", o->path);
    for (size_t i = 0; i < length; i++) {
        factors[i] = json_number_value(json_array_get(list, i));
        if (!(factors[i] > 0) || !isfinite(factors[i]))
            return TP_OK;
    }
    *out = factors;
    *n = (int)length;
    return TP_OK;
}

static tp_status read_longrope(struct rope_scaling *s, const struct rope_object *o,
                               struct arena *arena, struct tp_err *err)
{
    tp_status st;

    TP_TRY(read_optional(&s->factor, o, "factor", err));
    TP_TRY(read_optional(&s->attention_factor, o, "attention_factor", err));
    TP_TRY(read_factors(&s->short_factor, &s->n_short, o, "short_factor", arena, err));
    TP_TRY(read_factors(&s->long_factor, &s->n_long, o, "long_factor", arena, err));
done:
    return st;
}

static tp_status read_scaling(struct rope_scaling *s, const struct rope_object *o,
                              struct arena *arena, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (s->type == ROPE_SCALING_NONE)
        return TP_OK;
    if (s->type == ROPE_SCALING_LONGROPE)
        return read_longrope(s, o, arena, err);
    TP_TRY(read_needed(&s->factor, o, "factor", err));
    if (s->type == ROPE_SCALING_YARN)
        TP_TRY(read_yarn(s, o, err));
    if (s->type == ROPE_SCALING_LLAMA3) {
        TP_TRY(read_needed(&s->low_freq_factor, o, "low_freq_factor", err));
        TP_TRY(read_needed(&s->high_freq_factor, o, "high_freq_factor", err));
        if (s->high_freq_factor <= s->low_freq_factor)
            st = fail(o, "high_freq_factor", json_object_get(o->object, "high_freq_factor"),
                      "more than low_freq_factor", err);
    }
done:
    return st;
}

/* transformers looks for it beside the object first, then in it; without either, scaling stretches
 * max_position_embeddings. */
static tp_status read_original(struct rope_scaling *s, const struct rope_object *top,
                               const struct rope_object *o, struct tp_err *err)
{
    tp_status st;

    TP_TRY(read_optional(&s->original_positions, top, "max_position_embeddings", err));
    TP_TRY(read_optional(&s->original_positions, o, "original_max_position_embeddings", err));
    TP_TRY(read_optional(&s->original_positions, top, "original_max_position_embeddings", err));
done:
    return st;
}

/* Change *o, rope_parameters, to its object for a type of layer, if it has such objects. */
static void select_type(struct rope_object *o, const char *type, const char *name)
{
    json_t *object = json_object_get(o->object, type);

    if (json_is_object(object)) {
        o->object = object;
        o->name = name;
    }
}

/* Whether types of layers have objects of their own. */
static bool has_types(json_t *parameters)
{
    return json_is_object(json_object_get(parameters, "full_attention")) ||
           json_is_object(json_object_get(parameters, "sliding_attention"));
}

tp_status rope_config_read_local(double *theta, bool *is_scaled, json_t *root, double fallback,
                                 double common, const char *path, struct tp_err *err)
{
    const struct rope_object top = { root, "", path };
    struct rope_object o = { json_object_get(root, "rope_parameters"), "rope_parameters", path };
    json_t *parameters = o.object;
    struct rope_config c = { .theta = has_types(parameters) ? fallback : common };
    tp_status st;

    TP_TRY(read_optional(&c.theta, &top, "rope_local_base_freq", err));
    select_type(&o, "sliding_attention", "rope_parameters.sliding_attention");
    if (o.object != parameters) {
        TP_TRY(read_optional(&c.theta, &o, "rope_theta", err));
        TP_TRY(read_type(&c, &o, err));
    }
    *theta = c.theta;
    *is_scaled = c.scaling.type != ROPE_SCALING_NONE || *c.unknown;
    st = TP_OK;
done:
    return st;
}

tp_status rope_config_read(struct rope_config *out, json_t *root, double fallback, const char *path,
                           struct arena *arena, struct tp_err *err)
{
    const struct rope_object top = { root, "", path };
    struct rope_object o = { json_object_get(root, "rope_scaling"), "rope_scaling", path };
    struct rope_config c = { .theta = fallback };
    tp_status st;

    if (is_absent(o.object))
        o = (struct rope_object){ json_object_get(root, "rope_parameters"), "rope_parameters",
                                  path };
    if (!is_absent(o.object) && !json_is_object(o.object))
        return tp_fail(err, TP_E_USAGE, "%s: \"%s\" is not an object", path, o.name);
    select_type(&o, "full_attention", "rope_parameters.full_attention");
    TP_TRY(read_type(&c, &o, err));
    TP_TRY(read_optional(&c.theta, &top, "rope_theta", err));
    TP_TRY(read_optional(&c.theta, &top, "rotary_emb_base", err));
    TP_TRY(read_optional(&c.theta, &o, "rope_theta", err));
    TP_TRY(read_optional(&c.part, &top, "partial_rotary_factor", err));
    TP_TRY(read_optional(&c.part, &top, "rotary_pct", err));
    TP_TRY(read_optional(&c.part, &o, "partial_rotary_factor", err));
    TP_TRY(read_scaling(&c.scaling, &o, arena, err));
    TP_TRY(read_original(&c.scaling, &top, &o, err));
    *out = c;
done:
    return st;
}
