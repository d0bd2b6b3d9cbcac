/* reshard/formats/gguf/gguf_model.c - see reshard/formats/gguf/gguf_model.h. */
#include "reshard/formats/gguf/gguf_model.h"

#include <jansson.h>
#include <math.h>
#include <string.h>

#include "layout/family.h"
#include "layout/rope_config.h"

enum { GEMMA2_27B_LAYERS = 46, GEMMA3_27B_LAYERS = 62, SMOLLM3_NOPE_PERIOD = 4 };

static const struct gguf_arch archs[] = {
    { .family = MODEL_LLAMA, .name = "llama", .rope_pairs = true },
    { .family = MODEL_MISTRAL, .name = "llama", .rope_pairs = true },
    { .family = MODEL_MIXTRAL, .name = "llama", .rope_pairs = true },
    { .family = MODEL_GRANITE, .name = "granite", .rope_pairs = true },
    { .family = MODEL_QWEN2, .name = "qwen2" },
    { .family = MODEL_QWEN3, .name = "qwen3" },
    { .family = MODEL_QWEN3_MOE, .name = "qwen3moe" },
    { .family = MODEL_GEMMA, .name = "gemma", .norms_plus_one = true },
    { .family = MODEL_GEMMA2, .name = "gemma2", .norms_plus_one = true },
    { .family = MODEL_GEMMA3, .name = "gemma3", .norms_plus_one = true },
    { .family = MODEL_PHI3, .name = "phi3" },
    { .family = MODEL_OLMO2, .name = "olmo2" },
    { .family = MODEL_OLMO3, .name = "olmo2" },
    { .family = MODEL_SMOLLM3, .name = "smollm3", .rope_pairs = true },
    { .family = MODEL_GPT2, .name = "gpt2", .transposed = true },
    { .family = MODEL_GPT_NEOX, .name = "gptneox", .qkv_by_head = true },
};

tp_status gguf_model_arch(const struct gguf_arch **out, const struct model *m, const char *path,
                          struct tp_err *err)
{
    for (size_t i = 0; i < sizeof archs / sizeof *archs; i++)
        if (archs[i].family == m->family) {
            *out = &archs[i];
            return TP_OK;
        }
    return tp_fail(err, TP_E_USAGE,
                   "%s: GGUF has no architecture for %s; export as safetensors instead", path,
                   m->family == MODEL_OF_RULES ? "a model of --rules" : family_of(m)->architecture);
}

/* ---- values that only config.json has ---- */

static double number_of(json_t *config, const char *key, double fallback)
{
    json_t *v = json_object_get(config, key);

    return json_is_number(v) ? json_number_value(v) : fallback;
}

static json_t *rope_object(json_t *config)
{
    json_t *rope = json_object_get(config, "rope_scaling"), *full;

    if (!json_is_object(rope))
        rope = json_object_get(config, "rope_parameters");
    full = json_object_get(rope, "full_attention");
    return json_is_object(full) ? full : rope;
}

/* The part of each head that is rotated. */
static double rotary_part(json_t *config)
{
    const double part =
        number_of(config, "rotary_pct", number_of(config, "partial_rotary_factor", 1));

    return number_of(rope_object(config), "partial_rotary_factor", part);
}

static tp_status refuse(const char *path, const char *key, const char *why, struct tp_err *err)
{
    return tp_fail(err, TP_E_USAGE, "%s: its config.json has %s, %s; export as safetensors instead",
                   path, key, why);
}

/* The period of layers that have no sliding window in llama.cpp; 1: none has one. */
static int window_period(const struct model *m)
{
    switch (m->family) {
    case MODEL_GEMMA2:
        return 2;
    case MODEL_GEMMA3:
        return 6;
    case MODEL_OLMO3:
        return 4;
    default:
        return 1;
    }
}

/* Whether the layers that llama.cpp gives a sliding window are those of the model. Mistral has none
 * there, and a note says so. */
static bool has_known_windows(const struct model *m)
{
    const int period = window_period(m);

    if (m->family == MODEL_MISTRAL)
        return true;
    for (int i = 0; m->full_layers && i < m->layers; i++)
        if (m->full_layers[i] != ((i + 1) % period == 0))
            return false;
    return true;
}

static bool has_known_nope_layers(const struct model *m)
{
    for (int i = 0; m->nope_layers && i < m->layers; i++)
        if (m->nope_layers[i] != ((i + 1) % SMOLLM3_NOPE_PERIOD == 0))
            return false;
    return true;
}

/* In llama.cpp OLMo 3's layers with a window have the theta of the others, and no scaling. */
static tp_status check_olmo3_rope(json_t *config, const struct model *m, const char *path,
                                  struct tp_err *err)
{
    double theta;
    bool is_scaled;
    tp_status st =
        rope_config_read_local(&theta, &is_scaled, config, m->rope_theta, m->rope_theta, path, err);

    if (!st && (is_scaled || theta != m->rope_theta))
        st = refuse(path, "rope_parameters for sliding_attention with another theta or a type",
                    "but llama.cpp has the theta of full_attention there", err);
    return st;
}

static tp_status check_rope(json_t *config, const struct model *m, const char *path,
                            struct tp_err *err)
{
    json_t *rope = rope_object(config), *type = json_object_get(rope, "rope_type");
    const char *kind = json_string_value(type ? type : json_object_get(rope, "type"));
    const bool takes_factors =
        m->family != MODEL_OLMO2 && m->family != MODEL_OLMO3 && m->family != MODEL_SMOLLM3;

    if (kind && strcmp(kind, "default") != 0 && strcmp(kind, "dynamic") != 0 &&
        (m->rope_scaling.type == ROPE_SCALING_NONE ||
         m->rope_scaling.type == ROPE_SCALING_LONGROPE))
        return refuse(path, "another rotary embedding than linear, yarn or llama3",
                      "which is not supported in GGUF here", err);
    if (gguf_model_has_rope_factors(m) && !takes_factors)
        return refuse(path, "a rotary embedding of type llama3",
                      "which llama.cpp does not compute for this architecture", err);
    if (m->family == MODEL_GEMMA3 && m->local_rope_theta != 10000)
        return refuse(path, "a rope_local_base_freq", "but llama.cpp's Gemma 3 has 10000", err);
    if (!has_known_nope_layers(m))
        return refuse(path, "no_rope_layers",
                      "but llama.cpp's SmolLM3 has no rotary embedding in every fourth layer", err);
    return m->family == MODEL_OLMO3 ? check_olmo3_rope(config, m, path, err) : TP_OK;
}

/* llama.cpp does not read the name of an activation. It has one GELU for all of its forms. */
static bool has_known_activation(json_t *config, const struct model *m)
{
    static const char *const keys[] = { "hidden_activation", "hidden_act", "activation_function" };
    const char *name = NULL;

    for (size_t i = 0; i < sizeof keys / sizeof *keys && !name; i++)
        name = json_string_value(json_object_get(config, keys[i]));
    return !name || (family_of(m)->mlp == FAMILY_SWIGLU ? strcmp(name, "silu") == 0
                                                        : strncmp(name, "gelu", 4) == 0);
}

/* Flags that llama.cpp does not read. */
static tp_status check_flags(json_t *config, const char *path, struct tp_err *err)
{
    static const struct {
        const char *key;
        bool computed; /* what llama.cpp computes, and transformers where the key is absent */
        const char *text;
    } flags[] = {
        { "is_causal", true, "is_causal false" },
        { "use_bidirectional_attention", false, "use_bidirectional_attention true" },
        { "use_sliding_window", false, "use_sliding_window true" },
        { "scale_attn_weights", true, "scale_attn_weights false" },
        { "scale_attn_by_inverse_layer_idx", false, "scale_attn_by_inverse_layer_idx true" },
    };

    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        const json_t *v = json_object_get(config, flags[i].key);

        if (json_is_boolean(v) && json_is_true(v) != flags[i].computed)
            return refuse(path, flags[i].text, "but llama.cpp computes attention without it", err);
    }
    return TP_OK;
}

/* What llama.cpp computes in one way only. */
static tp_status check_config(json_t *config, const struct model *m, const char *path,
                              struct tp_err *err)
{
    const double scalar = number_of(config, "query_pre_attn_scalar", (double)m->head_dim);
    const bool is_27b = (m->family == MODEL_GEMMA2 && m->layers == GEMMA2_27B_LAYERS) ||
                        (m->family == MODEL_GEMMA3 && m->layers == GEMMA3_27B_LAYERS);
    const double computed = is_27b ? (double)m->hidden / m->heads : (double)m->head_dim;
    tp_status st = check_rope(config, m, path, err);

    if (st)
        return st;
    if ((m->family == MODEL_GEMMA2 || m->family == MODEL_GEMMA3) && scalar != computed)
        return refuse(path, "a query_pre_attn_scalar",
                      "for which llama.cpp computes another scale of attention", err);
    if (!has_known_windows(m))
        return refuse(path, "layer_types",
                      "but in llama.cpp other layers, or none, have a sliding window", err);
    if ((m->family == MODEL_GEMMA || m->family == MODEL_GEMMA2) && !m->tied)
        return refuse(path, "tie_word_embeddings false", "but llama.cpp's Gemma has no head", err);
    if (m->qkv_bias && m->family != MODEL_LLAMA && m->family != MODEL_QWEN2 &&
        m->family != MODEL_GPT_NEOX && m->family != MODEL_GPT2)
        return refuse(path, "attention_bias true", "but llama.cpp has no biases there", err);
    if (m->mlp_bias && m->family == MODEL_SMOLLM3)
        return refuse(path, "mlp_bias true", "but llama.cpp has no biases there", err);
    if (m->family == MODEL_QWEN3_MOE && !json_is_true(json_object_get(config, "norm_topk_prob")))
        return refuse(path, "norm_topk_prob false", "but llama.cpp always divides by the sum", err);
    if (m->family == MODEL_GPT_NEOX && (!m->qkv_bias || !m->out_bias))
        return refuse(path, "attention_bias false", "but llama.cpp's gptneox needs biases", err);
    if (!has_known_activation(config, m))
        return refuse(path, "another activation function", "but llama.cpp has one for a family",
                      err);
    return check_flags(config, path, err);
}

/* ---- keys ---- */

static void add_rope(struct gguf_bytes *b, const struct gguf_arch *a, const struct model *m,
                     json_t *config)
{
    const struct rope_scaling *s = &m->rope_scaling;

    gguf_key_u32(b, a->name, "rope.dimension_count",
                 (int64_t)(rotary_part(config) * (double)m->head_dim));
    gguf_key_f32(b, a->name, "rope.freq_base", m->rope_theta);
    if (s->type != ROPE_SCALING_LINEAR && s->type != ROPE_SCALING_YARN)
        return;
    gguf_key_string(b, a->name, "rope.scaling.type", rope_scaling_name(s->type));
    gguf_key_f32(b, a->name, "rope.scaling.factor", s->factor);
    if (s->type == ROPE_SCALING_LINEAR)
        return;
    gguf_key_u32(b, a->name, "rope.scaling.original_context_length",
                 (int64_t)s->original_positions);
    gguf_key_f32(b, a->name, "rope.scaling.yarn_beta_fast", s->beta_fast);
    gguf_key_f32(b, a->name, "rope.scaling.yarn_beta_slow", s->beta_slow);
    /* llama.cpp multiplies by its own factor for yarn */
    gguf_key_f32(b, a->name, "rope.scaling.attn_factor",
                 rope_scaling_attention_factor(s) / (0.1 * log(s->factor) + 1));
}

static void add_experts(struct gguf_bytes *b, const struct gguf_arch *a, const struct model *m)
{
    if (m->experts == 0)
        return;
    gguf_key_u32(b, a->name, "expert_count", m->experts);
    gguf_key_u32(b, a->name, "expert_used_count", m->experts_per_token);
    if (m->expert_ffn)
        gguf_key_u32(b, a->name, "expert_feed_forward_length", m->expert_ffn);
}

/* Those that config.json leaves out are 1, as in transformers. */
static void add_granite(struct gguf_bytes *b, const struct gguf_arch *a, json_t *config)
{
    gguf_key_f32(b, a->name, "attention.scale", number_of(config, "attention_multiplier", 1));
    gguf_key_f32(b, a->name, "embedding_scale", number_of(config, "embedding_multiplier", 1));
    gguf_key_f32(b, a->name, "residual_scale", number_of(config, "residual_multiplier", 1));
    gguf_key_f32(b, a->name, "logit_scale", number_of(config, "logits_scaling", 1));
}

/* Keys that one family has. */
static void add_own(struct gguf_bytes *b, const struct gguf_arch *a, const struct model *m,
                    json_t *config)
{
    json_t *parallel = json_object_get(config, "use_parallel_residual");

    switch (m->family) {
    case MODEL_GEMMA2:
        gguf_key_f32(b, a->name, "attn_logit_softcapping",
                     number_of(config, "attn_logit_softcapping", 50));
        gguf_key_f32(b, a->name, "final_logit_softcapping",
                     number_of(config, "final_logit_softcapping", 30));
        break;
    case MODEL_GEMMA3:
        if (number_of(config, "final_logit_softcapping", 0) > 0)
            gguf_key_f32(b, a->name, "final_logit_softcapping",
                         number_of(config, "final_logit_softcapping", 0));
        break;
    case MODEL_GPT_NEOX:
        gguf_key_bool(b, a->name, "use_parallel_residual", !json_is_false(parallel));
        break;
    case MODEL_GRANITE:
        add_granite(b, a, config);
        break;
    default:
        break;
    }
    if (m->sliding_window > 0 && m->family != MODEL_MISTRAL && m->family != MODEL_SMOLLM3)
        gguf_key_u32(b, a->name, "attention.sliding_window", m->sliding_window);
}

tp_status gguf_model_keys(struct gguf_bytes *b, const struct gguf_arch *a, const struct model *m,
                          const char *path, struct tp_err *err)
{
    const struct family *f = family_of(m);
    json_t *config = m->config ? json_loads(m->config, 0, NULL) : NULL;
    tp_status st = check_config(config, m, path, err);

    if (st)
        goto done;
    gguf_key_u32(b, a->name, "block_count", m->layers);
    gguf_key_u32(b, a->name, "context_length", m->max_positions);
    gguf_key_u32(b, a->name, "embedding_length", m->hidden);
    gguf_key_u32(b, a->name, "feed_forward_length", m->ffn);
    gguf_key_u32(b, a->name, "attention.head_count", m->heads);
    gguf_key_u32(b, a->name, "attention.head_count_kv", m->kv_heads);
    gguf_key_u32(b, a->name, "attention.key_length", m->head_dim);
    gguf_key_u32(b, a->name, "attention.value_length", m->head_dim);
    gguf_key_f32(b, a->name,
                 f->norm == FAMILY_LAYER_NORM ? "attention.layer_norm_epsilon"
                                              : "attention.layer_norm_rms_epsilon",
                 m->norm_eps);
    gguf_key_u32(b, a->name, "vocab_size", m->vocab);
    if (f->position == FAMILY_ROTARY)
        add_rope(b, a, m, config);
    add_experts(b, a, m);
    add_own(b, a, m, config);
done:
    json_decref(config);
    return st;
}

/* ---- factors of llama3 ---- */

bool gguf_model_has_rope_factors(const struct model *m)
{
    return m->rope_scaling.type == ROPE_SCALING_LLAMA3;
}

float gguf_model_rope_factor(const struct model *m, int64_t i)
{
    struct rope_scaling_embedding plain = { m->head_dim,
                                            m->rope_theta,
                                            { .type = ROPE_SCALING_NONE },
                                            0 },
                                  scaled = plain;

    scaled.scaling = m->rope_scaling;
    return (float)(rope_scaling_frequency(&plain, i) / rope_scaling_frequency(&scaled, i));
}
