/* reshard/formats/hf_config.c - see reshard/formats/hf_config.h. */
#include "reshard/formats/hf_config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

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

/* Set rope_theta both at the top level and in rope_parameters, whose other members stay. What
 * scales it is in both rope_parameters and rope_scaling. Gemma 3 has two rotary embeddings, and
 * GPT-2 none: nothing of them is read, so nothing is set. */
static int set_rope(json_t *root, const struct model *m)
{
    json_t *rope = json_object_get(root, "rope_parameters");
    json_t *scaling = json_object_get(root, "rope_scaling");

    if (!(m->rope_theta > 0))
        return 0;
    if (json_is_object(scaling)) {
        rope = json_copy(scaling);
        if (json_object_set_new(root, "rope_parameters", rope) != 0)
            return -1;
    } else if (json_is_object(rope) && m->rope_scaling.type != ROPE_SCALING_NONE) {
        if (json_object_set_new(root, "rope_scaling", json_deep_copy(rope)) != 0)
            return -1;
    } else if (!json_is_object(rope)) {
        rope = json_pack("{s:s}", "rope_type", "default");
        if (json_object_set_new(root, "rope_parameters", rope) != 0)
            return -1;
    }
    return json_object_set_new(rope, "rope_theta", json_real(m->rope_theta)) |
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

tp_status hf_config_make(char **text, const struct model *m, enum dtype dtype, struct tp_err *err)
{
    json_error_t why;
    json_t *root = json_loads(m->config, JSON_REJECT_DUPLICATES, &why);
    int failed;

    if (!json_is_object(root)) {
        json_decref(root);
        return tp_fail(err, TP_E_CORRUPT, "the config.json in the checkpoint is not a JSON object");
    }
    failed = json_object_set_new(root, "dtype", json_string(torch_name(dtype)));
    failed |= json_object_set_new(root, "torch_dtype", json_string(torch_name(dtype)));
    failed |= set_rope(root, m);
    *text = failed ? NULL : dump(root);
    json_decref(root);
    return *text ? TP_OK : tp_fail(err, TP_E_NOMEM, "no memory for config.json");
}
