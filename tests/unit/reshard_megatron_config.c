/* tests/unit/reshard_megatron_config.c - a config.json from the arguments of Megatron-LM.
 *
 * covers: reshard/formats/megatron/megatron_config reshard/formats/megatron/config_maker
 */
#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "layout/model_config.h"
#include "reshard/formats/megatron/megatron_config.h"
#include "torch/pickle_writer.h"

enum { ARGS_TEXT = 2048 };

/* A small Llama as Megatron-LM records it, vocabulary 35 padded to 40 for tp 2. */
#define LLAMA                                                                                  \
    "num_layers=4 hidden_size=32 ffn_hidden_size=16 num_attention_heads=8 kv_channels=4 "      \
    "group_query_attention=True num_query_groups=4 max_position_embeddings=256 "               \
    "norm_epsilon=1e-05 normalization=RMSNorm position_embedding_type=rope rotary_base=10000 " \
    "rotary_percent=1.0 swiglu=True add_bias_linear=False add_qkv_bias=False "                 \
    "untie_embeddings_and_output_weights=True vocab_size=35 padded_vocab_size=40 "             \
    "make_vocab_size_divisible_by=4 tensor_model_parallel_size=2 num_experts=None "            \
    "softmax_type=vanilla mtp_num_layers=0 tokenizer_type=HuggingFaceTokenizer "

#define EXPERTS                                                               \
    "num_experts=4 moe_router_topk=2 moe_ffn_hidden_size=8 moe_layer_freq=1 " \
    "moe_aux_loss_coeff=0.02 "

#define GPT2                                                                                     \
    "num_layers=2 hidden_size=32 ffn_hidden_size=128 num_attention_heads=4 kv_channels=8 "       \
    "group_query_attention=False num_query_groups=1 max_position_embeddings=64 "                 \
    "norm_epsilon=1e-05 normalization=LayerNorm position_embedding_type=learned_absolute "       \
    "swiglu=False add_bias_linear=True untie_embeddings_and_output_weights=False vocab_size=35 " \
    "hidden_dropout=0.1 attention_dropout=0.0 "

/* What Megatron-DeepSpeed says in other words. */
#define DEEPSPEED_OF(heads)                                                                \
    "group_query_attention=None num_query_groups=None position_embedding_type=None "       \
    "norm_epsilon=None layernorm_epsilon=1e-06 num_experts=(1) num_key_value_heads=" heads \
    " rotary_base=None rope_theta=500000 vocab_size=35 padded_vocab_size=40 "              \
    "make_vocab_size_divisible_by=4 tensor_model_parallel_size=2 "
#define DEEPSPEED_LLAMA                                                                  \
    LLAMA DEEPSPEED_OF("4") "normalization=rmsnorm use_rotary_position_embeddings=True " \
                            "add_position_embedding=False "
#define DEEPSPEED_GPT2                                                                     \
    GPT2 DEEPSPEED_OF("4") "normalization=layernorm use_rotary_position_embeddings=False " \
                           "add_position_embedding=True "

/* ---- arguments as text: "a=1 b=True c=text d=(3,0) e=(1)"; a later one replaces an earlier one
 * ---- */

static void push_value(struct pickle_writer *w, const char *v)
{
    int64_t pair[2] = { 0 };
    char *end;

    if (strcmp(v, "None") == 0) {
        pickle_write_op(w, PICKLE_OP_NONE);
    } else if (strcmp(v, "True") == 0 || strcmp(v, "False") == 0) {
        pickle_write_op(w, *v == 'T' ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
    } else if (*v == '(') {
        pair[0] = strtoll(v + 1, &end, 10);
        if (*end == ',')
            pair[1] = strtoll(end + 1, NULL, 10);
        pickle_write_ints(w, pair, strchr(v, ',') ? 2 : 1);
    } else if (strtoll(v, &end, 10) || !*end) {
        if (*end)
            pickle_write_float(w, strtod(v, NULL));
        else
            pickle_write_int(w, strtoll(v, NULL, 10));
    } else if (strcmp(v, "nan") == 0) {
        pickle_write_float(w, strtod("nan", NULL));
    } else {
        (void)strtod(v, &end);
        if (*end)
            pickle_write_text(w, v);
        else
            pickle_write_float(w, strtod(v, NULL));
    }
}

static const struct pickle_value *make_args(struct arena *arena, const char *text)
{
    struct pickle_writer w = { 0 };
    const struct pickle_value *v = NULL;
    struct tp_err err = { 0 };
    char copy[ARGS_TEXT], *rest = copy, *word;

    snprintf(copy, sizeof copy, "%s", text);
    pickle_write_begin(&w);
    pickle_write_op(&w, PICKLE_OP_EMPTY_DICT);
    pickle_write_op(&w, PICKLE_OP_MARK);
    while ((word = strtok_r(rest, " ", &rest))) {
        char *value = strchr(word, '=');

        *value++ = 0;
        pickle_write_text(&w, word);
        push_value(&w, value);
    }
    pickle_write_op(&w, PICKLE_OP_SETITEMS);
    pickle_write_op(&w, PICKLE_OP_STOP);
    cr_assert(!w.failed);
    cr_assert_eq(pickle_read(&v, w.data, w.n, "args", arena, &err), TP_OK, "%s", err.msg);
    pickle_writer_free(&w);
    return v;
}

struct made {
    struct arena arena;
    const char *text, *note;
    struct model model;
    struct tp_err err;
    tp_status st;
};

/* The config of these arguments, read as a model. */
static struct made *make(const char *args)
{
    struct made *m = calloc(1, sizeof *m);

    cr_assert(m);
    m->st = megatron_config_make(&m->text, &m->note, make_args(&m->arena, args), "FILE", &m->arena,
                                 &m->err);
    if (m->st == TP_OK) {
        tp_status st =
            model_config_parse(&m->model, m->text, strlen(m->text), "made", &m->arena, &m->err);

        cr_assert_eq(st, TP_OK, "%s", m->err.msg);
    }
    return m;
}

static void done(struct made *m)
{
    arena_free(&m->arena);
    free(m);
}

/* ---- families ---- */

Test(megatron_config, a_llama_has_the_sizes_of_the_arguments)
{
    struct made *m = make(LLAMA);

    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect_eq(m->model.family, MODEL_LLAMA);
    cr_expect(m->model.layers == 4 && m->model.hidden == 32 && m->model.ffn == 16);
    cr_expect(m->model.heads == 8 && m->model.kv_heads == 4 && m->model.head_dim == 4);
    cr_expect(m->model.vocab == 35 && m->model.max_positions == 256 && !m->model.tied);
    cr_expect(m->model.norm_eps == 1e-5 && m->model.rope_theta == 10000);
    cr_expect(!m->model.qkv_bias && !m->model.out_bias && !m->model.mlp_bias);
    cr_expect_null(m->model.untrained);
    cr_expect(strstr(m->note, "FILE") && strstr(m->note, "LlamaForCausalLM") &&
                  strstr(m->note, "vocabulary of 35, without the 5 rows of padding") &&
                  strstr(m->note, "--config"),
              "%s", m->note);
    done(m);
}

Test(megatron_config, the_epsilon_of_norms_is_found_by_its_older_and_its_newer_name)
{
    static const char *const args[] = { "norm_epsilon=1e-06",
                                        "norm_epsilon=None layernorm_epsilon=1e-06",
                                        "norm_epsilon=1e-06 layernorm_epsilon=1e-06" };

    for (size_t i = 0; i < 2 * sizeof args / sizeof *args; i++) {
        char text[ARGS_TEXT];
        struct made *m;

        snprintf(text, sizeof text, "%s%s%s", LLAMA, i % 2 ? GPT2 : "", args[i / 2]);
        m = make(text);
        cr_assert_eq(m->st, TP_OK, "%s: %s", text, m->err.msg);
        cr_expect_eq(m->model.norm_eps, 1e-6, "%s", text);
        done(m);
    }
}

Test(megatron_config, biases_norms_and_windows_choose_the_family)
{
    static const struct {
        const char *more;
        enum model_family family;
    } cases[] = {
        { "add_bias_linear=True", MODEL_LLAMA },
        { "add_qkv_bias=True", MODEL_QWEN2 },
        { "qk_layernorm=True", MODEL_QWEN3 },
        { "window_size=(127,0)", MODEL_MISTRAL },
        { "window_size=(-1,-1)", MODEL_LLAMA },
        { "position_embedding_type=learned_absolute use_rotary_position_embeddings=True",
          MODEL_LLAMA },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[ARGS_TEXT];
        struct made *m;

        snprintf(args, sizeof args, "%s%s", LLAMA, cases[i].more);
        m = make(args);
        cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
        cr_expect_eq(m->model.family, cases[i].family, "%s", cases[i].more);
        cr_expect(m->model.qkv_bias == (strstr(cases[i].more, "bias") != NULL));
        cr_expect(m->model.mlp_bias == (strstr(cases[i].more, "add_bias_linear") != NULL) &&
                  m->model.out_bias == m->model.mlp_bias);
        cr_expect_eq(m->model.sliding_window, cases[i].family == MODEL_MISTRAL ? 128 : 0);
        cr_expect_eq(m->model.head_norms, cases[i].family == MODEL_QWEN3);
        done(m);
    }
}

Test(megatron_config, experts_make_a_mixtral_or_a_qwen3_moe)
{
    struct made *m = make(LLAMA EXPERTS "window_size=(127,0)");

    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect_eq(m->model.family, MODEL_MIXTRAL);
    cr_expect(m->model.experts == 4 && m->model.experts_per_token == 2 && m->model.ffn == 8);
    cr_expect(m->model.normalized_experts && m->model.sliding_window == 128);
    done(m);
    for (int before = 0; before < 2; before++) {
        m = before ? make(LLAMA EXPERTS "qk_layernorm=True moe_router_pre_softmax=True")
                   : make(LLAMA EXPERTS "qk_layernorm=True");
        cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
        cr_expect_eq(m->model.family, MODEL_QWEN3_MOE);
        cr_expect(m->model.experts == 4 && m->model.expert_ffn == 8 && m->model.ffn == 16);
        cr_expect_eq(m->model.normalized_experts, !before);
        done(m);
    }
}

Test(megatron_config, heads_without_groups_have_their_own_keys)
{
    struct made *m = make(LLAMA "group_query_attention=False num_query_groups=1 "
                                "untie_embeddings_and_output_weights=False");

    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect(m->model.kv_heads == 8 && m->model.tied);
    done(m);
}

Test(megatron_config, rope_scaling_is_that_of_llama_3_or_linear)
{
    struct made *m =
        make(LLAMA "use_rope_scaling=True rope_scaling_factor=32.0 rotary_base=500000");
    const struct rope_scaling *s = &m->model.rope_scaling;

    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect(s->type == ROPE_SCALING_LLAMA3 && s->factor == 32 && s->low_freq_factor == 1 &&
              s->high_freq_factor == 4 && s->original_positions == 8192);
    cr_expect(m->model.rope_theta == 500000);
    done(m);
    m = make(LLAMA "rotary_seq_len_interpolation_factor=4");
    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect(m->model.rope_scaling.type == ROPE_SCALING_LINEAR &&
              m->model.rope_scaling.factor == 4);
    done(m);
}

Test(megatron_config, megatron_deepspeed_says_it_in_other_words)
{
    static const char *const llamas[] = {
        "", "ds_sequence_parallel_fpdt=False ds_sequence_parallel_size=2",
        "ds_sequence_parallel_fpdt=False force_ds_sequence_parallel=True"
    };
    struct made *m;

    for (size_t i = 0; i < sizeof llamas / sizeof *llamas; i++) {
        char args[ARGS_TEXT];

        snprintf(args, sizeof args, "%s%s", DEEPSPEED_LLAMA, llamas[i]);
        m = make(args);
        cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
        cr_expect_eq(m->model.family, MODEL_LLAMA);
        cr_expect(m->model.kv_heads == 4 && m->model.heads == 8 && m->model.experts == 0);
        cr_expect(m->model.rope_theta == 500000 && m->model.norm_eps == 1e-6);
        cr_expect(m->model.vocab == 35 && !m->model.tied);
        done(m);
    }
    m = make(DEEPSPEED_GPT2 "ds_sequence_parallel_fpdt=False ds_sequence_parallel_size=1");
    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect_eq(m->model.family, MODEL_GPT2);
    cr_expect(m->model.heads == 4 && m->model.vocab == 35 && m->model.tied);
    done(m);
}

Test(megatron_config, learned_positions_make_a_gpt2)
{
    struct made *m = make(GPT2);

    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect_eq(m->model.family, MODEL_GPT2);
    cr_expect(m->model.layers == 2 && m->model.hidden == 32 && m->model.ffn == 128);
    cr_expect(m->model.heads == 4 && m->model.max_positions == 64 && m->model.tied);
    cr_expect(m->model.dropout == 0.1 && m->model.norm_eps == 1e-5);
    cr_expect_null(m->model.untrained, "%s", m->model.untrained);
    done(m);
    m = make(GPT2 "bias_gelu_fusion=False");
    cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
    cr_expect(m->model.untrained && strstr(m->model.untrained, "gelu"), "exact GELU");
    done(m);
}

/* ---- the vocabulary ---- */

Test(megatron_config, the_vocabulary_is_vocab_size_only_where_padding_proves_it)
{
    static const struct {
        const char *more;
        int64_t vocab;
        const char *note;
    } cases[] = {
        { "vocab_size=40", 40, "without padding" },
        { "vocab_size=None", 40, "padding included" },
        { "vocab_size=20", 40, "padding included" }, /* 20 would be padded to 24 */
        { "vocab_size=41", 40, "padding included" },
        { "make_vocab_size_divisible_by=None", 40, "padding included" },
        { "make_vocab_size_divisible_by=0", 40, "padding included" },
        { "padded_vocab_size=None", 35, "as vocab_size says" },
        { "tokenizer_type=NullTokenizer", 36, "end of document" },
        { "tokenizer_type=NullTokenizer vocab_size=40", 40, "padding included" },
        { "tokenizer_type=NullTokenizer vocab_size=39", 40, "without padding" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[ARGS_TEXT];
        struct made *m;

        snprintf(args, sizeof args, "%s%s", LLAMA, cases[i].more);
        m = make(args);
        cr_assert_eq(m->st, TP_OK, "%s", m->err.msg);
        cr_expect_eq(m->model.vocab, cases[i].vocab, "%s: %lld", cases[i].more,
                     (long long)m->model.vocab);
        cr_expect(strstr(m->note, cases[i].note), "%s: %s", cases[i].more, m->note);
        done(m);
    }
}

/* ---- what cannot be expressed ---- */

Test(megatron_config, an_argument_that_no_family_has_is_named)
{
    static const char *const cases[][2] = {
        { "num_experts=8", "no moe_router_topk" },
        { EXPERTS "moe_layer_freq=2", "moe_layer_freq 2" },
        { EXPERTS "moe_shared_expert_intermediate_size=64", "moe_shared_expert" },
        { EXPERTS "moe_router_score_function=sigmoid", "moe_router_score_function sigmoid" },
        { EXPERTS "moe_router_pre_softmax=True", "moe_router_pre_softmax" },
        { EXPERTS "add_qkv_bias=True", "add_qkv_bias" },
        { EXPERTS "add_bias_linear=True", "add_bias_linear" },
        { EXPERTS "qk_layernorm=True window_size=(5,0)", "window_size" },
        { "rotary_percent=0.5", "rotary_percent 0.5" },
        { "rotary_interleaved=True", "rotary_interleaved True" },
        { "apply_layernorm_1p=True", "apply_layernorm_1p" },
        { "layernorm_zero_centered_gamma=True", "layernorm_zero_centered_gamma True" },
        { "enable_mhc_connections=True", "enable_mhc_connections" },
        { "multi_latent_attention=True", "multi_latent_attention" },
        { "softmax_type=learnable", "softmax_type learnable" },
        { "mtp_num_layers=1", "mtp_num_layers 1" },
        { "window_attn_skip_freq=2", "window_attn_skip_freq 2" },
        { "no_rope_freq=4", "no_rope_freq 4" },
        { "squared_relu=True", "squared_relu" },
        { "swiglu=False", "swiglu False" },
        { "normalization=LayerNorm", "normalization LayerNorm" },
        { "position_embedding_type=yarn", "position_embedding_type yarn" },
        { "position_embedding_type=None", "no position_embedding_type" },
        { "position_embedding_type=learned_absolute", "normalization RMSNorm" },
        { "qk_layernorm=True add_qkv_bias=True", "add_qkv_bias True" },
        { "qk_layernorm=True add_bias_linear=True", "add_bias_linear True" },
        { "add_qkv_bias=True window_size=(5,0)", "window_size" },
        { "window_size=(5,5)", "window_size" },
        { "window_size=(9223372036854775807,0)", "window_size" },
        { "window_size=7", "window_size 7" },
        { "use_rope_scaling=True rotary_seq_len_interpolation_factor=2", "interpolation_factor 2" },
        { "num_layers=None", "no num_layers" },
        { "hidden_size=0", "hidden_size 0" },
        { "hidden_size=big", "hidden_size big" },
        { "num_query_groups=None", "no num_query_groups" },
        { "kv_channels=None", "no kv_channels" },
        { "norm_epsilon=nan", "norm_epsilon" },
        { "norm_epsilon=None", "no norm_epsilon" },
        { "layernorm_epsilon=nan", "layernorm_epsilon" },
        { "layernorm_epsilon=1e-06", "norm_epsilon 1e-05, together with another" },
        { "vocab_size=None padded_vocab_size=None", "no vocab_size" },
        { "vocab_size=9223372036854775807 padded_vocab_size=None tokenizer_type=NullTokenizer",
          "vocab_size 9223372036854775807" },
        { "padded_vocab_size=-1", "padded_vocab_size -1" },
        { GPT2 "num_experts=8", "num_experts 8" },
        { DEEPSPEED_LLAMA "num_experts=(8)", "num_experts" },
        { DEEPSPEED_LLAMA "num_experts=(1,4)", "num_experts" },
        { DEEPSPEED_LLAMA "ds_sequence_parallel_fpdt=False ds_sequence_parallel_size=1",
          "use_rotary_position_embeddings True" },
        { DEEPSPEED_GPT2 "num_key_value_heads=2", "num_key_value_heads 2" },
        { DEEPSPEED_GPT2 "add_position_embedding=False", "no position_embedding_type" },
        { GPT2 "kv_channels=16", "kv_channels 16" },
        { GPT2 "untie_embeddings_and_output_weights=True", "untie_embeddings_and_output_weights" },
        { GPT2 "add_bias_linear=False", "add_bias_linear False" },
        { GPT2 "group_query_attention=True num_query_groups=2", "num_query_groups 2" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char args[ARGS_TEXT];
        struct made *m;

        snprintf(args, sizeof args, "%s%s", LLAMA, cases[i][0]);
        m = make(args);
        cr_expect_eq(m->st, TP_E_USAGE, "%s", cases[i][0]);
        cr_expect(strstr(m->err.msg, cases[i][1]) && strstr(m->err.msg, "FILE") &&
                      strstr(m->err.msg, "--config"),
                  "%s: %s", cases[i][0], m->err.msg);
        done(m);
    }
}

Test(megatron_config, no_arguments_are_an_error)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    const char *text, *note;

    cr_expect_eq(megatron_config_make(&text, &note, NULL, "FILE", &arena, &err), TP_E_USAGE);
    cr_expect(strstr(err.msg, "position_embedding_type"), "%s", err.msg);
    arena_free(&arena);
}
