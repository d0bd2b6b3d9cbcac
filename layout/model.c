/* layout/model.c - see layout/model.h. */
#include "layout/model.h"

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH_MAX = 1 << 20, LAYERS_MAX = 10000, VOCAB_MAX = 1 << 28 };

/* What the field readers share: the first failure sticks, later reads are skipped. */
struct reader {
    json_t *root;
    const char *path;
    struct tp_err *err;
    tp_status st;
};

static void fail(struct reader *r, const char *key, const char *expected, json_t *found)
{
    char *text = found ? json_dumps(found, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;

    r->st = tp_fail(r->err, TP_E_USAGE, "%s: \"%s\" is %.60s, expected %s", r->path, key,
                    text ? text : "missing", expected);
    free(text);
}

static bool absent(json_t *v)
{
    return !v || json_is_null(v);
}

/* An integer from 1 to max; `fallback` when it is absent and fallback > 0. */
static int64_t read_count(struct reader *r, const char *key, int64_t max, int64_t fallback)
{
    json_t *v = json_object_get(r->root, key);

    if (r->st)
        return 1;
    if (absent(v) && fallback > 0)
        return fallback;
    if (!json_is_integer(v) || json_integer_value(v) < 1 || json_integer_value(v) > max) {
        char expected[64];

        snprintf(expected, sizeof expected, "a whole number from 1 to %lld", (long long)max);
        fail(r, key, expected, v);
        return 1;
    }
    return json_integer_value(v);
}

static double read_positive(struct reader *r, json_t *from, const char *key, double fallback)
{
    json_t *v = json_object_get(from, key);

    if (r->st || absent(v))
        return fallback;
    if (!json_is_number(v) || !(json_number_value(v) > 0) || !isfinite(json_number_value(v))) {
        fail(r, key, "a number above 0", v);
        return fallback;
    }
    return json_number_value(v);
}

static bool read_flag(struct reader *r, const char *key, bool fallback)
{
    json_t *v = json_object_get(r->root, key);

    if (r->st || absent(v))
        return fallback;
    if (!json_is_boolean(v))
        fail(r, key, "true or false", v);
    return json_is_true(v);
}

/* Options that change the mathematics and are not implemented: only their neutral value is read. */
static void refuse_unsupported(struct reader *r)
{
    static const char *const flags[] = { "attention_bias", "mlp_bias" };
    json_t *act = json_object_get(r->root, "hidden_act");
    json_t *dropout = json_object_get(r->root, "attention_dropout");

    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; i++)
        if (read_flag(r, flags[i], false) && !r->st)
            fail(r, flags[i], "false (biases are not supported)",
                 json_object_get(r->root, flags[i]));
    if (!r->st && !absent(act) &&
        (!json_is_string(act) || strcmp(json_string_value(act), "silu") != 0))
        fail(r, "hidden_act", "\"silu\"", act);
    if (!r->st && !absent(dropout) && !(json_is_number(dropout) && json_number_value(dropout) == 0))
        fail(r, "attention_dropout", "0 (there is no dropout)", dropout);
}

/* transformers 5 writes rope_parameters.rope_theta, older ones rope_theta and rope_scaling. */
static double read_rope(struct reader *r)
{
    json_t *parameters = json_object_get(r->root, "rope_parameters");
    json_t *scaling = json_object_get(r->root, "rope_scaling");
    json_t *type;

    if (r->st)
        return 1;
    if (!absent(scaling)) {
        type = json_object_get(scaling, "rope_type");
        if (!type)
            type = json_object_get(scaling, "type");
        if (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0) {
            fail(r, "rope_scaling", "null (scaled rotary embedding is not supported)", scaling);
            return 1;
        }
    }
    if (absent(parameters))
        return read_positive(r, r->root, "rope_theta", 10000.0);
    type = json_object_get(parameters, "rope_type");
    if (!absent(type) &&
        (!json_is_string(type) || strcmp(json_string_value(type), "default") != 0)) {
        fail(r, "rope_parameters", "rope_type \"default\"", parameters);
        return 1;
    }
    return read_positive(r, parameters, "rope_theta",
                         read_positive(r, r->root, "rope_theta", 10000.0));
}

static const struct {
    const char *name, *type;
} archs[] = {
    [MODEL_LLAMA] = { "LlamaForCausalLM", "llama" },
    [MODEL_GPT2] = { "GPT2LMHeadModel", "gpt2" },
};

const char *model_arch_name(enum model_arch arch)
{
    return archs[arch].name;
}

static void read_architecture(struct reader *r, struct model *m)
{
    static const char supported[] = "[\"LlamaForCausalLM\"] or [\"GPT2LMHeadModel\"]";
    json_t *list = json_object_get(r->root, "architectures");
    json_t *type = json_object_get(r->root, "model_type");
    json_t *first = json_array_get(list, 0);
    const char *name = json_string_value(first), *kind = json_string_value(type);

    for (size_t i = 0; i < sizeof archs / sizeof archs[0]; i++)
        if (name ? strcmp(name, archs[i].name) == 0 : kind && strcmp(kind, archs[i].type) == 0) {
            m->arch = (enum model_arch)i;
            return;
        }
    fail(r, "architectures", supported, list || !type ? list : type);
}

static void read_heads(struct reader *r, struct model *m)
{
    m->heads = (int)read_count(r, "num_attention_heads", WIDTH_MAX, 0);
    m->kv_heads = (int)read_count(r, "num_key_value_heads", WIDTH_MAX, m->heads);
    m->head_dim =
        read_count(r, "head_dim", WIDTH_MAX, m->hidden >= m->heads ? m->hidden / m->heads : 1);
    if (r->st)
        return;
    if (m->heads % m->kv_heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: num_key_value_heads %d does not divide num_attention_heads %d",
                        r->path, m->kv_heads, m->heads);
    else if (absent(json_object_get(r->root, "head_dim")) && m->hidden % m->heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: num_attention_heads %d does not divide hidden_size %lld, and there "
                        "is no head_dim",
                        r->path, m->heads, (long long)m->hidden);
    else if (m->head_dim % 2 != 0)
        r->st = tp_fail(r->err, TP_E_USAGE,
                        "%s: head_dim %lld is odd, rotary embedding needs an even one", r->path,
                        (long long)m->head_dim);
    else if (m->head_dim * m->heads > WIDTH_MAX)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: %d heads of head_dim %lld are wider than %d",
                        r->path, m->heads, (long long)m->head_dim, WIDTH_MAX);
}

static void read_llama(struct reader *r, struct model *m)
{
    m->hidden = read_count(r, "hidden_size", WIDTH_MAX, 0);
    m->ffn = read_count(r, "intermediate_size", WIDTH_MAX, 0);
    m->layers = (int)read_count(r, "num_hidden_layers", LAYERS_MAX, 0);
    m->max_positions = read_count(r, "max_position_embeddings", INT64_C(1) << 40, 2048);
    if (!r->st)
        read_heads(r, m);
    m->norm_eps = read_positive(r, r->root, "rms_norm_eps", 1e-6);
    m->rope_theta = read_rope(r);
    m->tied = read_flag(r, "tie_word_embeddings", false);
    refuse_unsupported(r);
}

/* A flag of GPT-2 that has to be as its only implemented value. */
static void need_flag(struct reader *r, const char *key, bool value, const char *why)
{
    if (read_flag(r, key, value) != value && !r->st)
        fail(r, key, why, json_object_get(r->root, key));
}

/* Dropout is noise of a training run, not part of what the weights mean: it is noted, not refused.
 */
static double read_dropout(struct reader *r)
{
    static const char *const keys[] = { "attn_pdrop", "embd_pdrop", "resid_pdrop" };
    double most = 0;

    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        json_t *v = json_object_get(r->root, keys[i]);
        double p = absent(v) ? 0.1 : json_number_value(v);

        if (!r->st && !absent(v) && (!json_is_number(v) || !(p >= 0 && p < 1)))
            fail(r, keys[i], "a number from 0 to 1", v);
        most = p > most ? p : most;
    }
    return most;
}

static void read_gpt2(struct reader *r, struct model *m)
{
    json_t *act = json_object_get(r->root, "activation_function");

    m->hidden = read_count(r, "n_embd", WIDTH_MAX, 768);
    m->layers = (int)read_count(r, "n_layer", LAYERS_MAX, 12);
    m->heads = (int)read_count(r, "n_head", WIDTH_MAX, 12);
    m->ffn = read_count(r, "n_inner", WIDTH_MAX, 4 * m->hidden);
    m->max_positions = read_count(r, "n_positions", WIDTH_MAX, 1024);
    m->norm_eps = read_positive(r, r->root, "layer_norm_epsilon", 1e-5);
    m->kv_heads = m->heads;
    m->tied = true;
    need_flag(r, "tie_word_embeddings", true, "true (a head of its own is not supported)");
    need_flag(r, "scale_attn_weights", true, "true");
    need_flag(r, "scale_attn_by_inverse_layer_idx", false, "false");
    need_flag(r, "add_cross_attention", false, "false");
    m->dropout = read_dropout(r);
    if (!r->st && !absent(act) &&
        (!json_is_string(act) || strcmp(json_string_value(act), "gelu_new") != 0))
        fail(r, "activation_function", "\"gelu_new\"", act);
    if (!r->st && m->hidden % m->heads != 0)
        r->st = tp_fail(r->err, TP_E_USAGE, "%s: n_head %d does not divide n_embd %lld", r->path,
                        m->heads, (long long)m->hidden);
    m->head_dim = m->hidden / m->heads;
}

tp_status model_parse(struct model *out, const char *text, size_t size, const char *path,
                      struct arena *arena, struct tp_err *err)
{
    struct model m = { 0 };
    struct reader r = { .path = path, .err = err };
    json_error_t json_err;
    char *copy;

    r.root = json_loadb(text, size, JSON_REJECT_DUPLICATES, &json_err);
    if (!r.root || !json_is_object(r.root)) {
        r.st = tp_fail(err, TP_E_USAGE, "%s: is not a JSON object (line %d: %.200s)", path,
                       json_err.line, r.root ? "another kind of value" : json_err.text);
        goto done;
    }
    read_architecture(&r, &m);
    m.vocab = read_count(&r, "vocab_size", VOCAB_MAX, 0);
    m.init_std = read_positive(&r, r.root, "initializer_range", 0.02);
    if (m.arch == MODEL_GPT2)
        read_gpt2(&r, &m);
    else
        read_llama(&r, &m);
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

int64_t model_matmul_params(const struct model *m)
{
    int64_t attention = 2 * m->hidden * m->head_dim * (m->heads + m->kv_heads);
    int64_t mlp = (m->arch == MODEL_GPT2 ? 2 : 3) * m->hidden * m->ffn;

    return m->layers * (attention + mlp) + m->hidden * m->vocab;
}

double model_step_flops(const struct model *m, int64_t tokens, int64_t seq)
{
    double attention = 12.0 * m->layers * m->heads * (double)m->head_dim * (double)seq;

    return (double)tokens * (6.0 * (double)model_matmul_params(m) + attention);
}
