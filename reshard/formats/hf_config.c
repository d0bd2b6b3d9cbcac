/* reshard/formats/hf_config.c - see reshard/formats/hf_config.h. */
#include "reshard/formats/hf_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "layout/family.h"

static const char *torch_name(enum dtype dtype)
{
    switch (dtype) {
    case DTYPE_BF16:
        return "bfloat16";
    case DTYPE_F16:
        return "float16";
    case DTYPE_F64:
        return "float64";
    default:
        return "float32";
    }
}

/* The parameters of a type of layer; added if they are not there. NULL: no memory. */
static json_t *type_parameters(json_t *parameters, const char *type, json_t *otherwise)
{
    json_t *rope = json_object_get(parameters, type);

    if (json_is_object(rope))
        return rope;
    rope = json_is_object(otherwise) ? json_deep_copy(otherwise)
                                     : json_pack("{s:s}", "rope_type", "default");
    return json_object_set_new(parameters, type, rope) == 0 ? rope : NULL;
}

/* Whether something scales the rotary embedding that is written for transformers 4 as for 5. */
static bool is_scaled(const struct model *m)
{
    return m->rope_scaling.type != ROPE_SCALING_NONE &&
           m->rope_scaling.type != ROPE_SCALING_LONGROPE;
}

/* Set what transformers 4 reads of longrope: a type and two lists, and no more. Where there is
 * more, it cannot have it, and transformers 5 would not look for it elsewhere. */
static int set_old_longrope(json_t *root, json_t *rope)
{
    json_t *shorter = json_object_get(rope, "short_factor");
    json_t *longer = json_object_get(rope, "long_factor");

    if (!shorter || !longer || json_object_get(rope, "factor") ||
        json_object_get(rope, "attention_factor"))
        return 0;
    return json_object_set_new(root, "rope_scaling",
                               json_pack("{s:s,s:O,s:O}", "type", "longrope", "short_factor",
                                         shorter, "long_factor", longer));
}

/* Set both rotary embeddings of a model whose layers with a sliding window have their own. */
static int set_two_ropes(json_t *root, const struct model *m)
{
    json_t *parameters = json_object_get(root, "rope_parameters"), *full, *local;

    if (!json_is_object(json_object_get(parameters, "full_attention"))) {
        parameters = json_object();
        if (json_object_set_new(root, "rope_parameters", parameters) != 0)
            return -1;
    }
    full = type_parameters(parameters, "full_attention", json_object_get(root, "rope_scaling"));
    local = type_parameters(parameters, "sliding_attention", NULL);
    if (!full || !local)
        return -1;
    if (is_scaled(m) && json_object_set_new(root, "rope_scaling", json_deep_copy(full)) != 0)
        return -1;
    return json_object_set_new(full, "rope_theta", json_real(m->rope_theta)) |
           json_object_set_new(local, "rope_theta", json_real(m->local_rope_theta)) |
           json_object_set_new(root, "rope_theta", json_real(m->rope_theta)) |
           json_object_set_new(root, "rope_local_base_freq", json_real(m->local_rope_theta));
}

/* The part of each head that is rotated: transformers 4 reads it from the top level, and has names
 * of its own in GPT-NeoX. */
static int set_rotary_part(json_t *root, json_t *rope, const struct model *m)
{
    if (m->family == MODEL_GPT_NEOX)
        return json_object_set_new(rope, "partial_rotary_factor", json_real(m->rotary_part)) |
               json_object_set_new(root, "rotary_pct", json_real(m->rotary_part)) |
               json_object_set_new(root, "rotary_emb_base", json_real(m->rope_theta));
    if (m->rotary_part == 1 || !(family_of(m)->rotary_part > 0))
        return 0;
    return json_object_set_new(rope, "partial_rotary_factor", json_real(m->rotary_part)) |
           json_object_set_new(root, "partial_rotary_factor", json_real(m->rotary_part));
}

/* Set rope_theta both at the top level and in rope_parameters, whose other members stay. What
 * scales it is in both rope_parameters and rope_scaling. Nothing is read of GPT-2, so nothing is
 * set; nor is anything for a family that keeps what it has. */
static int set_rope(json_t *root, const struct model *m)
{
    json_t *rope = json_object_get(root, "rope_parameters");
    json_t *scaling = json_object_get(root, "rope_scaling");

    if (!(m->rope_theta > 0) || family_of(m)->keeps_rope)
        return 0;
    if (m->local_rope_theta > 0)
        return set_two_ropes(root, m);
    if (json_is_object(scaling)) {
        rope = json_copy(scaling);
        if (json_object_set_new(root, "rope_parameters", rope) != 0)
            return -1;
    } else if (json_is_object(rope) && m->rope_scaling.type == ROPE_SCALING_LONGROPE) {
        if (set_old_longrope(root, rope) != 0)
            return -1;
    } else if (json_is_object(rope) && is_scaled(m)) {
        if (json_object_set_new(root, "rope_scaling", json_deep_copy(rope)) != 0)
            return -1;
    } else if (!json_is_object(rope)) {
        rope = json_pack("{s:s}", "rope_type", "default");
        if (json_object_set_new(root, "rope_parameters", rope) != 0)
            return -1;
    }
    return set_rotary_part(root, rope, m) |
           json_object_set_new(rope, "rope_theta", json_real(m->rope_theta)) |
           json_object_set_new(root, "rope_theta", json_real(m->rope_theta));
}

/* Print with the fewest digits that read back as the same numbers: 1e-05, not
 * 1.0000000000000001e-05. */
static char *dump(const json_t *root)
{
    char *text = NULL;
    json_t *again;

    for (int digits = 15; digits <= 17; digits++) {
        free(text);
        text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION((size_t)digits));
        again = text ? json_loads(text, 0, NULL) : NULL;
        if (!again || json_equal(root, again)) {
            json_decref(again);
            break;
        }
        json_decref(again);
    }
    return text;
}

/* Parse a model's config.json. */
static tp_status load(json_t **root, const struct model *m, struct tp_err *err)
{
    json_error_t why;

    *root = json_loads(m->config, JSON_REJECT_DUPLICATES, &why);
    if (json_is_object(*root))
        return TP_OK;
    json_decref(*root);
    return tp_fail(err, TP_E_CORRUPT, "the config.json in the checkpoint is not a JSON object");
}

tp_status hf_config_remove(struct model *m, const char *key, struct arena *arena,
                           struct tp_err *err)
{
    json_t *root;
    char *text;
    tp_status st = load(&root, m, err);

    if (st)
        return st;
    json_object_del(root, key);
    text = dump(root);
    json_decref(root);
    m->config = text ? arena_strdup(arena, text) : NULL;
    free(text);
    return m->config ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for config.json");
}

tp_status hf_config_make(char **text, const struct model *m, enum dtype dtype, struct tp_err *err)
{
    json_t *root;
    int failed;
    tp_status st = load(&root, m, err);

    if (st)
        return st;
    failed = json_object_set_new(root, "dtype", json_string(torch_name(dtype)));
    failed |= json_object_set_new(root, "torch_dtype", json_string(torch_name(dtype)));
    failed |= set_rope(root, m);
    *text = failed ? NULL : dump(root);
    json_decref(root);
    return *text ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for config.json");
}
