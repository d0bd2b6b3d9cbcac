/* reshard/formats/megatron/megatron_config.c - see reshard/formats/megatron/megatron_config.h. */
#include "reshard/formats/megatron/megatron_config.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reshard/formats/megatron/config_maker.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "reshard/formats/megatron/megatron_rope.h"

enum { NOTE_PART = 128 };

#define WINDOW_MAX (INT64_C(1) << 40)

/* Members of config.json whose names the families do not share. */
struct config_family {
    const char *architecture, *model_type;
};

static const struct config_family llama = { "LlamaForCausalLM", "llama" },
                                  mistral = { "MistralForCausalLM", "mistral" },
                                  qwen2 = { "Qwen2ForCausalLM", "qwen2" },
                                  qwen3 = { "Qwen3ForCausalLM", "qwen3" },
                                  mixtral = { "MixtralForCausalLM", "mixtral" },
                                  qwen3_moe = { "Qwen3MoeForCausalLM", "qwen3_moe" },
                                  gpt2 = { "GPT2LMHeadModel", "gpt2" };

/* Options that change what the layers compute and that no family has, and the value that changes
 * nothing; None never does. */
static void check_options(struct config_maker *m)
{
    static const struct {
        const char *name, *only;
    } options[] = { { "multi_latent_attention", "False" },
                    { "rotary_percent", "1" },
                    { "rotary_interleaved", "False" },
                    { "no_rope_freq", "" },
                    { "apply_layernorm_1p", "False" },
                    { "layernorm_zero_centered_gamma", "False" },
                    { "apply_residual_connection_post_layernorm", "False" },
                    { "squared_relu", "False" },
                    { "activation_func", "" }, /* these three are Megatron-Bridge's */
                    { "gated_activation_func", "" },
                    { "scale_factor", "" },
                    { "quick_geglu", "False" },
                    { "glu_linear_offset", "0" },
                    { "activation_func_clamp_value", "" },
                    { "qk_l2_norm", "False" },
                    { "softmax_type", "vanilla" },
                    { "softmax_scale", "" },
                    { "attention_output_gate", "False" },
                    { "window_attn_skip_freq", "" },
                    { "experimental_attention_variant", "" },
                    { "linear_attention_freq", "" },
                    { "hybrid_override_pattern", "" },
                    { "hybrid_layer_pattern", "" },
                    { "heterogeneous_layers_config_path", "" },
                    { "heterogeneous_layers_config_encoded_json", "" },
                    { "mtp_num_layers", "0" },
                    { "use_mup", "False" },
                    { "moe_layer_freq", "1" },
                    { "moe_shared_expert_intermediate_size", "" },
                    { "moe_latent_size", "" },
                    { "moe_router_score_function", "softmax" },
                    { "moe_router_topk_scaling_factor", "" },
                    { "moe_router_enable_expert_bias", "False" },
                    { "moe_router_num_groups", "" },
                    { "moe_apply_probs_on_input", "False" },
                    { "enable_mhc_connections", "False" } };

    for (size_t i = 0; i < sizeof options / sizeof *options; i++) {
        const struct pickle_value *v = config_maker_get(m, options[i].name);
        char text[CONFIG_MAKER_TEXT];

        if (v && strcmp(config_maker_text(text, v), options[i].only) != 0)
            config_maker_refuse(m, options[i].name, "which no known family of models does");
    }
}

/* ---- members that families share ---- */

/* Rows after padding to a multiple of the divisor and the tensor-parallel size, as Megatron does;
 * 0: the arguments do not say how. */
static int64_t padded(const struct config_maker *m, int64_t vocab)
{
    int64_t divisor, tp;

    if (!pickle_int(&divisor, config_maker_get(m, "make_vocab_size_divisible_by")) || divisor < 1 ||
        !pickle_int(&tp, config_maker_get(m, "tensor_model_parallel_size")) || tp < 1 ||
        divisor > 1 << 20 || tp > 1 << 20 || vocab > INT32_MAX)
        return 0;
    return megatron_args_padded_rows(vocab, divisor, tp);
}

/* vocab_size is what the user gave, and most tokenizers do not need it: it is only the vocabulary
 * if padding it gives the rows that there are. All rows are kept otherwise. */
static int64_t find_vocab(struct config_maker *m, char *note, size_t room)
{
    const int more = megatron_args_added_tokens(m->args);
    int64_t given, rows;

    if (!config_maker_get(m, "padded_vocab_size")) {
        snprintf(note, room, "as vocab_size says");
        return config_maker_count(m, "vocab_size") + more;
    }
    rows = config_maker_count(m, "padded_vocab_size");
    if (m->st || !pickle_int(&given, config_maker_get(m, "vocab_size")) || given < 1 ||
        given > rows - more || (padded(m, given + more) != rows && given + more != rows)) {
        snprintf(note, room,
                 "padding included, because the arguments do not tell the size of the "
                 "tokenizer's");
        return rows;
    }
    if (given + more == rows)
        snprintf(note, room, "without padding");
    else
        snprintf(note, room, "without the %lld rows of padding%s", (long long)(rows - given - more),
                 more ? " and with NullTokenizer's end of document" : "");
    return given + more;
}

/* The epsilon of norms. Megatron-LM called it norm_epsilon until January 2026, and converters of
 * checkpoints may still set that name beside the new one's default. */
static double find_epsilon(struct config_maker *m)
{
    static const char older[] = "norm_epsilon", newer[] = "layernorm_epsilon";
    const char *name = config_maker_get(m, newer) ? newer : older;
    const double found = config_maker_number(m, name, 0);

    config_maker_need(m, name);
    if (config_maker_number(m, older, found) != found)
        config_maker_refuse(m, older, "together with another layernorm_epsilon");
    return found;
}

static void set_family(struct config_maker *m, const struct config_family *f)
{
    char note[NOTE_PART];
    const int64_t vocab = find_vocab(m, note, sizeof note);

    config_maker_set(m, "architectures", json_pack("[s]", f->architecture));
    config_maker_set(m, "model_type", json_string(f->model_type));
    config_maker_set_int(m, "vocab_size", vocab);
    config_maker_set_flag(m, "tie_word_embeddings",
                          !config_maker_is(m, "untie_embeddings_and_output_weights"));
    config_maker_set_number(m, "initializer_range",
                            config_maker_number(m, "init_method_std", 0.02));
    snprintf(m->note, sizeof m->note,
             "%.200s: there is no config.json, so one is made from the arguments in the "
             "checkpoint: %s%s, with a vocabulary of %lld, %s; --config FILE gives another",
             m->path, f->architecture,
             f == &llama ? " (Mistral without a window computes the same)" : "", (long long)vocab,
             note);
}

/* ---- families with a rotary embedding ---- */

static void set_rope(struct config_maker *m)
{
    const double theta = config_maker_number(
                     m, config_maker_get(m, "rope_theta") ? "rope_theta" : "rotary_base", 10000),
                 linear = config_maker_number(m, "rotary_seq_len_interpolation_factor", 0);

    config_maker_set_number(m, "rope_theta", theta);
    if (config_maker_is(m, "use_rope_scaling") && linear > 0)
        config_maker_refuse(m, "rotary_seq_len_interpolation_factor",
                            "together with use_rope_scaling");
    else if (config_maker_is(m, "use_rope_scaling"))
        config_maker_set(
            m, "rope_scaling",
            json_pack("{s:s, s:f, s:f, s:f, s:i}", "rope_type", "llama3", "factor",
                      config_maker_number(m, "rope_scaling_factor", MEGATRON_ROPE_FACTOR),
                      "low_freq_factor", MEGATRON_ROPE_LOW_FREQ, "high_freq_factor",
                      MEGATRON_ROPE_HIGH_FREQ, "original_max_position_embeddings",
                      MEGATRON_ROPE_POSITIONS));
    else if (linear > 0)
        config_maker_set(m, "rope_scaling",
                         json_pack("{s:s, s:f}", "rope_type", "linear", "factor", linear));
}

/* The keys that a token sees, itself included; 0: all before it. */
static int64_t find_window(struct config_maker *m)
{
    const struct pickle_value *v = config_maker_get(m, "window_size");
    int64_t left = -1, right = -1;

    if (!v)
        return 0;
    if (pickle_count(v) != 2 || !pickle_int(&left, pickle_item(v, 0)) ||
        !pickle_int(&right, pickle_item(v, 1)) || right > 0 || left < -1 || left > WINDOW_MAX) {
        config_maker_refuse(m, "window_size", "which is not a window of earlier keys");
        return 0;
    }
    return left + 1;
}

/* Megatron-DeepSpeed has a list of how many, which is [1] for none. */
static bool has_experts(const struct config_maker *m)
{
    const struct pickle_value *v = config_maker_get(m, "num_experts");
    int64_t n = 0;

    return v && (pickle_count(v) != 1 || !pickle_int(&n, pickle_item(v, 0)) || n != 1);
}

/* Heads of keys and values, which Megatron-DeepSpeed always says. */
static int64_t find_kv_heads(struct config_maker *m)
{
    if (config_maker_get(m, "num_key_value_heads"))
        return config_maker_count(m, "num_key_value_heads");
    return config_maker_count(m, config_maker_is(m, "group_query_attention")
                                     ? "num_query_groups"
                                     : "num_attention_heads");
}

/* Since it has FPDT, Megatron-DeepSpeed takes the cosines and sines of angles for the angles,
 * except where ranks have parts of a sequence. */
static void check_rope(struct config_maker *m)
{
    int64_t n = 1;

    if (pickle_get(m->args, "ds_sequence_parallel_fpdt") &&
        !config_maker_is(m, "force_ds_sequence_parallel") &&
        (!pickle_int(&n, config_maker_get(m, "ds_sequence_parallel_size")) || n <= 1))
        config_maker_refuse(m, "use_rotary_position_embeddings",
                            "which this version of Megatron-DeepSpeed computes in a way that no "
                            "model of transformers does");
}

/* Of the families with experts, one has norms of heads, and the other may have a window. */
static const struct config_family *find_experts(struct config_maker *m, int64_t window)
{
    const bool norms = config_maker_is(m, "qk_layernorm");

    if (config_maker_is(m, "add_bias_linear"))
        config_maker_refuse(m, "add_bias_linear", "together with num_experts");
    if (config_maker_is(m, "add_qkv_bias"))
        config_maker_refuse(m, "add_qkv_bias", "together with num_experts");
    if (norms && window)
        config_maker_refuse(m, "window_size", "together with qk_layernorm");
    if (!norms && config_maker_is(m, "moe_router_pre_softmax"))
        config_maker_refuse(m, "moe_router_pre_softmax", "which Mixtral does not do");
    return norms ? &qwen3_moe : &mixtral;
}

/* Biases and norms of heads tell the families apart. */
static const struct config_family *find_rotary(struct config_maker *m, int64_t window)
{
    const bool all_biases = config_maker_is(m, "add_bias_linear"),
               norms = config_maker_is(m, "qk_layernorm"),
               biases = config_maker_is(m, "add_qkv_bias") && !all_biases;

    if (has_experts(m))
        return find_experts(m, window);
    if (norms && all_biases)
        config_maker_refuse(m, "add_bias_linear", "together with qk_layernorm");
    if (norms && biases)
        config_maker_refuse(m, "add_qkv_bias", "together with qk_layernorm");
    if (window && (norms || biases || all_biases))
        config_maker_refuse(m, "window_size", "together with biases or qk_layernorm");
    return norms ? &qwen3 : biases ? &qwen2 : window ? &mistral : &llama;
}

static void set_mlp(struct config_maker *m, const struct config_family *f)
{
    const int64_t ffn = config_maker_count(m, "ffn_hidden_size"),
                  expert = config_maker_get(m, "moe_ffn_hidden_size")
                               ? config_maker_count(m, "moe_ffn_hidden_size")
                               : ffn;

    config_maker_set(m, "hidden_act", json_string("silu"));
    config_maker_set_int(m, "intermediate_size", f == &mixtral ? expert : ffn);
    if (!has_experts(m))
        return;
    config_maker_set_int(m, f == &mixtral ? "num_local_experts" : "num_experts",
                         config_maker_count(m, "num_experts"));
    config_maker_set_int(m, "num_experts_per_tok", config_maker_count(m, "moe_router_topk"));
    if (config_maker_get(m, "moe_aux_loss_coeff"))
        config_maker_set_number(m, "router_aux_loss_coef",
                                config_maker_number(m, "moe_aux_loss_coeff", 0));
    if (f == &qwen3_moe) {
        config_maker_set_int(m, "moe_intermediate_size", expert);
        config_maker_set_flag(m, "norm_topk_prob", !config_maker_is(m, "moe_router_pre_softmax"));
    }
}

static void make_rotary(struct config_maker *m)
{
    const int64_t window = find_window(m);
    const struct config_family *f = find_rotary(m, window);

    set_family(m, f);
    config_maker_set_int(m, "hidden_size", config_maker_count(m, "hidden_size"));
    config_maker_set_int(m, "num_hidden_layers", config_maker_count(m, "num_layers"));
    config_maker_set_int(m, "num_attention_heads", config_maker_count(m, "num_attention_heads"));
    config_maker_set_int(m, "num_key_value_heads", find_kv_heads(m));
    config_maker_set_int(m, "head_dim", config_maker_count(m, "kv_channels"));
    config_maker_set_int(m, "max_position_embeddings",
                         config_maker_count(m, "max_position_embeddings"));
    config_maker_set_number(m, "rms_norm_eps", find_epsilon(m));
    set_mlp(m, f);
    if (window)
        config_maker_set_int(m, "sliding_window", window);
    if (f == &llama) {
        config_maker_set_flag(m, "attention_bias", config_maker_is(m, "add_bias_linear"));
        config_maker_set_flag(m, "mlp_bias", config_maker_is(m, "add_bias_linear"));
    }
    set_rope(m);
}

/* ---- GPT-2 ---- */

static void make_gpt2(struct config_maker *m)
{
    const int64_t heads = config_maker_count(m, "num_attention_heads"),
                  hidden = config_maker_count(m, "hidden_size"),
                  width = config_maker_count(m, "kv_channels");
    const double hidden_dropout = config_maker_number(m, "hidden_dropout", 0);

    if (find_kv_heads(m) != heads)
        config_maker_refuse(m,
                            config_maker_get(m, "num_key_value_heads") ? "num_key_value_heads"
                                                                       : "num_query_groups",
                            "which GPT-2 does not have");
    if (!m->st && (hidden % heads != 0 || hidden / heads != width))
        config_maker_refuse(m, "kv_channels",
                            "which is not GPT-2's hidden_size / num_attention_heads");
    if (config_maker_is(m, "untie_embeddings_and_output_weights"))
        config_maker_refuse(m, "untie_embeddings_and_output_weights", "which GPT-2 does not do");
    if (config_maker_is(m, "qk_layernorm"))
        config_maker_refuse(m, "qk_layernorm", "which GPT-2 does not do");
    if (config_maker_get(m, "window_size"))
        config_maker_refuse(m, "window_size", "which GPT-2 does not have");
    if (has_experts(m))
        config_maker_refuse(m, "num_experts", "which GPT-2 does not have");
    set_family(m, &gpt2);
    config_maker_set_int(m, "n_embd", hidden);
    config_maker_set_int(m, "n_inner", config_maker_count(m, "ffn_hidden_size"));
    config_maker_set_int(m, "n_layer", config_maker_count(m, "num_layers"));
    config_maker_set_int(m, "n_head", heads);
    config_maker_set_int(m, "n_positions", config_maker_count(m, "max_position_embeddings"));
    config_maker_set_number(m, "layer_norm_epsilon", find_epsilon(m));
    config_maker_set_number(m, "attn_pdrop", config_maker_number(m, "attention_dropout", 0));
    config_maker_set_number(m, "embd_pdrop", hidden_dropout);
    config_maker_set_number(m, "resid_pdrop", hidden_dropout);
    /* Megatron's fused bias and GELU, its default, computes the approximation by tanh. */
    config_maker_set(m, "activation_function",
                     json_string(config_maker_is(m, "openai_gelu") ||
                                         !config_maker_get(m, "bias_gelu_fusion") ||
                                         config_maker_is(m, "bias_gelu_fusion")
                                     ? "gelu_new"
                                     : "gelu"));
}

/* ---- which of the two ---- */

static void make(struct config_maker *m)
{
    const char *position = pickle_text(config_maker_get(m, "position_embedding_type"));
    const bool rotary = config_maker_is(m, "use_rotary_position_embeddings") ||
                        (position && strcmp(position, "rope") == 0);

    if (!position && config_maker_is(m, "add_position_embedding"))
        position = "learned_absolute";
    check_options(m);
    if (!rotary && (!position || strcmp(position, "learned_absolute") != 0)) {
        if (position)
            config_maker_refuse(m, "position_embedding_type",
                                "which no known family of models has");
        else
            config_maker_need(m, "position_embedding_type");
    } else if (rotary) {
        if (!config_maker_is_text(m, "normalization", "RMSNorm"))
            config_maker_refuse(m, "normalization", "where families with rope have RMSNorm");
        if (!config_maker_is(m, "swiglu"))
            config_maker_refuse(m, "swiglu", "where families with rope have True");
        check_rope(m);
        make_rotary(m);
    } else {
        if (config_maker_get(m, "normalization") &&
            !config_maker_is_text(m, "normalization", "LayerNorm"))
            config_maker_refuse(m, "normalization",
                                "where families with learned positions have LayerNorm");
        if (config_maker_is(m, "swiglu"))
            config_maker_refuse(m, "swiglu", "where families with learned positions have False");
        if (!config_maker_is(m, "add_bias_linear"))
            config_maker_refuse(m, "add_bias_linear",
                                "where families with learned positions have True");
        make_gpt2(m);
    }
}

tp_status megatron_config_make(const char **text, const char **note,
                               const struct pickle_value *args, const char *path,
                               struct arena *arena, struct tp_err *err)
{
    struct config_maker m = { .args = args, .path = path, .root = json_object(), .err = err };
    char *json = NULL;

    make(&m);
    if (!m.st) {
        json = json_dumps(m.root, JSON_INDENT(2));
        *text = json ? arena_strdup(arena, json) : NULL;
        *note = arena_strdup(arena, m.note);
        if (!*text || !*note)
            m.st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a config.json", path);
    }
    free(json);
    json_decref(m.root);
    return m.st;
}
