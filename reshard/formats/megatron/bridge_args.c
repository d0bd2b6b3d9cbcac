/* reshard/formats/megatron/bridge_args.c - see reshard/formats/megatron/bridge_args.h. */
#include "reshard/formats/megatron/bridge_args.h"

#include <errno.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/megatron/megatron_rope.h"
#include "reshard/formats/megatron/yaml_tree.h"
#include "storage/object.h"
#include "torch/pickle_writer.h"

enum { VALUES_MAX = 10000, NEST_MAX = 4, LAYOUT_BYTES = 8192 };

struct bridge_reader {
    struct yaml_tree tree;
    int root, model, transformer; /* mappings; transformer: 0 where model has all fields */
    bool is_nemo;
    struct pickle_writer w;
    int values; /* that were pushed: lists may contain one list many times */
};

/* ---- values ---- */

/* "silu" of "torch.nn.functional.silu". */
static const char *last_word(const char *name)
{
    const char *dot = name ? strrchr(name, '.') : NULL;

    return dot ? dot + 1 : name;
}

/* A function, a class or a member of an enum is a mapping with the name of what it was. */
static const char *name_of(struct bridge_reader *r, int node)
{
    const char *member = yaml_tree_text(&r->tree, yaml_tree_get(&r->tree, node, "_name_"));

    return member ? member
                  : last_word(yaml_tree_text(&r->tree, yaml_tree_get(&r->tree, node, "_target_")));
}

static bool read_int(int64_t *out, const char *text)
{
    char *end;
    long long v;

    errno = 0;
    v = strtoll(text, &end, 10);
    if (errno || end == text || *end)
        return false;
    *out = v;
    return true;
}

static bool read_real(double *out, const char *text)
{
    char *end;

    if (text[strspn(text, "0123456789+-.eE")])
        return false;
    *out = strtod(text, &end);
    return end != text && !*end && isfinite(*out);
}

static bool read_flag(bool *out, const char *text)
{
    *out = strcmp(text, "true") == 0 || strcmp(text, "True") == 0;
    return *out || strcmp(text, "false") == 0 || strcmp(text, "False") == 0;
}

static void push_scalar(struct bridge_reader *r, int node)
{
    const char *text = yaml_tree_text(&r->tree, node);
    const bool plain = yaml_tree_is_plain(&r->tree, node);
    int64_t n;
    double x;
    bool flag;

    if (!text)
        pickle_write_op(&r->w, PICKLE_OP_NONE);
    else if (plain && read_flag(&flag, text))
        pickle_write_op(&r->w, flag ? PICKLE_OP_TRUE : PICKLE_OP_FALSE);
    else if (plain && read_int(&n, text))
        pickle_write_int(&r->w, n);
    else if (plain && read_real(&x, text))
        pickle_write_float(&r->w, x);
    else
        pickle_write_text(&r->w, text);
}

static void push(struct bridge_reader *r, int node, int nested)
{
    const int n = yaml_tree_count(&r->tree, node);

    if (++r->values > VALUES_MAX || nested > NEST_MAX) {
        pickle_write_op(&r->w, PICKLE_OP_NONE);
    } else if (yaml_tree_entries(&r->tree, node) > 0) {
        pickle_write_text(&r->w, name_of(r, node) ? name_of(r, node) : "a mapping");
    } else if (n > 0) {
        pickle_write_list(&r->w);
        for (int i = 0; i < n && r->values <= VALUES_MAX; i++)
            push(r, yaml_tree_item(&r->tree, node, i), nested + 1);
        pickle_write_op(&r->w, PICKLE_OP_APPENDS);
    } else {
        push_scalar(r, node);
    }
}

/* Whether there is something to push. */
static bool has(struct bridge_reader *r, int node)
{
    return yaml_tree_text(&r->tree, node) || yaml_tree_count(&r->tree, node) > 0 ||
           yaml_tree_entries(&r->tree, node) > 0;
}

static void push_key(struct bridge_reader *r, const char *name, int node)
{
    if (!has(r, node))
        return;
    pickle_write_text(&r->w, name);
    push(r, node, 0);
}

/* A field of the model: of the class around TransformerConfig, or of that. */
static int field(struct bridge_reader *r, const char *name)
{
    const int node = yaml_tree_get(&r->tree, r->model, name);

    return node ? node : yaml_tree_get(&r->tree, r->transformer, name);
}

static bool field_is(struct bridge_reader *r, const char *name, bool fallback)
{
    const char *text = yaml_tree_text(&r->tree, field(r, name));
    bool flag;

    return text && read_flag(&flag, text) ? flag : fallback;
}

static bool field_int(int64_t *out, struct bridge_reader *r, const char *name)
{
    const char *text = yaml_tree_text(&r->tree, field(r, name));

    return text && read_int(out, text);
}

static double field_real(struct bridge_reader *r, const char *name, double fallback)
{
    const char *text = yaml_tree_text(&r->tree, field(r, name));
    double x;

    return text && read_real(&x, text) ? x : fallback;
}

/* ---- fields whose names are Megatron-LM's ---- */

/* In NeMo the strategy has the sizes of the job, and those of the model are defaults. Bridge stores
 * experts without blocks of gate and up, whatever the size of a block is. */
static bool is_left_out(const struct bridge_reader *r, const char *key)
{
    static const char *const never[] = { "_target_",
                                         "_builder_",
                                         "_call_",
                                         "_partial_",
                                         "_args_",
                                         "vocab_size",
                                         "transformer",
                                         "moe_layer_freq",
                                         "activation_func",
                                         "rope_scaling",
                                         "scale_factor",
                                         "moe_mlp_glu_interleave_size",
                                         "pipeline_model_parallel_layout",
                                         NULL },
                             *const of_job[] = { "tensor_model_parallel_size",
                                                 "pipeline_model_parallel_size",
                                                 "virtual_pipeline_model_parallel_size",
                                                 "expert_model_parallel_size",
                                                 "expert_tensor_parallel_size",
                                                 "context_parallel_size",
                                                 NULL };

    return text_is_one_of(key, never) || (r->is_nemo && text_is_one_of(key, of_job));
}

/* Functions, classes and other mappings are no arguments. */
static void push_fields(struct bridge_reader *r, int map)
{
    for (int i = 0; i < yaml_tree_entries(&r->tree, map); i++) {
        const char *key = yaml_tree_text(&r->tree, yaml_tree_key(&r->tree, map, i));

        if (key && !is_left_out(r, key) &&
            !yaml_tree_entries(&r->tree, yaml_tree_entry(&r->tree, map, i)))
            push_key(r, key, yaml_tree_entry(&r->tree, map, i));
    }
}

/* ---- fields with other names ---- */

static void push_renamed(struct bridge_reader *r)
{
    static const char *const fields[][2] = {
        { "num_moe_experts", "num_experts" },
        { "seq_length", "max_position_embeddings" },
        { "seq_len_interpolation_factor", "rotary_seq_len_interpolation_factor" },
        { "num_layers_in_first_pipeline_stage", "decoder_first_pipeline_num_layers" },
        { "num_layers_in_last_pipeline_stage", "decoder_last_pipeline_num_layers" },
        { "bias_activation_fusion", "bias_gelu_fusion" },
    };
    static const char *const of_ddp[][2] = {
        { "overlap_grad_reduce", "overlap_grad_reduce" },
        { "bucket_size", "ddp_bucket_size" },
        { "num_buckets", "ddp_num_buckets" },
        { "grad_reduce_in_fp32", "accumulate_allreduce_grads_in_fp32" },
        { "use_distributed_optimizer", "use_distributed_optimizer" },
    };
    const int ddp = yaml_tree_get(&r->tree, r->root, "ddp");

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        push_key(r, fields[i][1], field(r, fields[i][0]));
    for (size_t i = 0; i < sizeof of_ddp / sizeof *of_ddp; i++)
        push_key(r, of_ddp[i][1], yaml_tree_get(&r->tree, ddp, of_ddp[i][0]));
}

/* What TransformerConfig computes after its construction, which NeMo dumps before. */
static void push_sizes(struct bridge_reader *r)
{
    int64_t hidden = 0, heads = 0, n;

    if (field_int(&hidden, r, "hidden_size") && field_int(&heads, r, "num_attention_heads") &&
        hidden > 0 && heads > 0 && hidden <= INT32_MAX) {
        if (!field_int(&n, r, "kv_channels"))
            pickle_write_key_int(&r->w, "kv_channels", hidden / heads);
        if (!field_int(&n, r, "ffn_hidden_size"))
            pickle_write_key_int(&r->w, "ffn_hidden_size", 4 * hidden);
    }
    pickle_write_key_bool(&r->w, "group_query_attention", field_int(&n, r, "num_query_groups"));
    pickle_write_key_bool(&r->w, "untie_embeddings_and_output_weights",
                          !field_is(r, "share_embeddings_and_output_weights", true));
}

/* One that is not among Megatron-LM's options stays under its own name, which is refused. */
static void push_activation(struct bridge_reader *r)
{
    const int node = field(r, "activation_func");
    const char *text = yaml_tree_text(&r->tree, node),
               *name = text ? last_word(text) : name_of(r, node);
    const bool gated = field_is(r, "gated_linear_unit", false);

    pickle_write_key_bool(&r->w, "swiglu", gated && name && strcmp(name, "silu") == 0);
    if (!name || (!gated && strcmp(name, "gelu") == 0) || (gated && strcmp(name, "silu") == 0))
        return;
    if (!gated && (strcmp(name, "fast_gelu") == 0 || strcmp(name, "openai_gelu") == 0)) {
        pickle_write_key_bool(&r->w, "openai_gelu", true);
        return;
    }
    pickle_write_text(&r->w, gated ? "gated_activation_func" : "activation_func");
    pickle_write_text(&r->w, name);
}

/* Bridge's first versions and NeMo have the numbers of Llama 3.1 and later as fields of the
 * class, instead of rope_scaling. */
static void push_rope(struct bridge_reader *r)
{
    double factor = field_real(r, "scale_factor", 0);

    if (field_is(r, "rope_scaling", false)) {
        pickle_write_key_bool(&r->w, "use_rope_scaling", true);
    } else if (factor > 0) {
        if (field_real(r, "low_freq_factor", 0) == MEGATRON_ROPE_LOW_FREQ &&
            field_real(r, "high_freq_factor", 0) == MEGATRON_ROPE_HIGH_FREQ &&
            field_real(r, "old_context_len", 0) == MEGATRON_ROPE_POSITIONS) {
            pickle_write_key_bool(&r->w, "use_rope_scaling", true);
            pickle_write_key_float(&r->w, "rope_scaling_factor", factor);
        } else {
            pickle_write_key_float(&r->w, "scale_factor", factor);
        }
    }
}

/* A list with 1 for every layer says no more than 1. */
static void push_layer_freq(struct bridge_reader *r)
{
    const int node = field(r, "moe_layer_freq"), n = yaml_tree_count(&r->tree, node);
    bool all = n > 0;

    for (int i = 0; i < n; i++) {
        const char *text = yaml_tree_text(&r->tree, yaml_tree_item(&r->tree, node, i));

        all = all && text && strcmp(text, "1") == 0;
    }
    if (all)
        pickle_write_key_int(&r->w, "moe_layer_freq", 1);
    else
        push_key(r, "moe_layer_freq", node);
}

/* The letter of --pipeline-model-parallel-layout; 0: it has none. */
static char letter_of(const char *layer)
{
    static const char *const names[] = { "embedding", "decoder", "mtp", "loss" };

    for (int i = 0; i < 4; i++)
        if (layer && strcmp(layer, names[i]) == 0)
            return "Etm"
                   "L"[i];
    return 0;
}

/* Stages as lists of their layers are written as the text that Megatron-LM takes: "Ett|ttL". Any
 * other form stays a list, which is refused where it matters. */
static void push_layout(struct bridge_reader *r)
{
    const int node = field(r, "pipeline_model_parallel_layout"),
              n = yaml_tree_count(&r->tree, node);
    char text[LAYOUT_BYTES];
    size_t at = 0;

    for (int s = 0; s < n; s++) {
        const int stage = yaml_tree_item(&r->tree, node, s);

        for (int i = 0; i < yaml_tree_count(&r->tree, stage); i++) {
            const char c = letter_of(yaml_tree_text(&r->tree, yaml_tree_item(&r->tree, stage, i)));

            if (!c || at + 3 > sizeof text) {
                push_key(r, "pipeline_model_parallel_layout", node);
                return;
            }
            text[at++] = c;
        }
        if (s + 1 < n)
            text[at++] = '|';
    }
    text[at] = 0;
    if (n == 0) {
        push_key(r, "pipeline_model_parallel_layout", node);
        return;
    }
    pickle_write_text(&r->w, "pipeline_model_parallel_layout");
    pickle_write_text(&r->w, text);
}

/* The order of a rank's parameters. */
static void push_modules(struct bridge_reader *r)
{
    const char *spec = name_of(r, field(r, "transformer_layer_spec"));

    if (spec && strstr(spec, "local")) {
        pickle_write_text(&r->w, "transformer_impl");
        pickle_write_text(&r->w, "local");
    }
}

static void push_vocab(struct bridge_reader *r, int64_t rows)
{
    push_key(r, "vocab_size", field(r, "vocab_size"));
    if (rows > 0)
        pickle_write_key_int(&r->w, "padded_vocab_size", rows);
}

/* ---- the file ---- */

/* Classes of models that compute nothing but what their fields say. */
static bool is_known_class(const char *name)
{
    static const char *const heads[] = { "GPTModel",
                                         "GPTConfig",
                                         "BridgeGPTModelConfig",
                                         "Llama",
                                         "CodeLlama",
                                         "Mistral",
                                         "Mixtral",
                                         "Qwen2Config",
                                         "Qwen2ModelProvider",
                                         "Qwen25Config",
                                         "Qwen25ModelProvider",
                                         "Qwen3Config",
                                         "Qwen3ModelProvider",
                                         "Qwen3MoE" },
                             *const others[] = { "Llama4", "Nemotron", "Mistral3", "VL" };

    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (!name || strstr(name, others[i]))
            return false;
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++)
        if (strncmp(name, heads[i], strlen(heads[i])) == 0)
            return true;
    return false;
}

/* Layers that the same fields describe; models of one class may have others. NULL: the default. */
static bool is_known_layer(const char *spec)
{
    static const char *const names[] = { "default_layer_spec",
                                         "transformer_engine_layer_spec",
                                         "transformer_engine_full_layer_spec",
                                         "local_layer_spec",
                                         "modelopt_transformer_layer_spec",
                                         "quantization_layer_spec",
                                         "get_gpt_decoder_block_spec",
                                         "get_gpt_layer_with_transformer_engine_spec",
                                         "get_gpt_layer_local_spec",
                                         NULL };

    return !spec || text_is_one_of(spec, names);
}

/* Why no config.json can be made of the model, as the words after "its model is a"; *out NULL: one
 * can. */
static tp_status find_unknown(const char **out, struct bridge_reader *r, struct arena *arena,
                              struct tp_err *err)
{
    const char *class =
        last_word(yaml_tree_text(&r->tree, yaml_tree_get(&r->tree, r->model, "_target_"))),
               *spec = name_of(r, field(r, "transformer_layer_spec"));

    *out = NULL;
    if (is_known_class(class) && is_known_layer(spec))
        return TP_OK;
    *out = is_known_class(class)
               ? arena_printf(arena, "%.60s with layers of %.60s", class, spec)
               : arena_printf(arena, "%.60s", class ? class : "model without a class");
    return *out ? TP_OK : tp_fail(err, TP_E_NOMEM, "%s: no memory", BRIDGE_RUN_CONFIG);
}

/* NeMo's file for the weights in `dir`; false: it is not a folder of NeMo's. */
static bool nemo_file(char file[PATH_MAX], const char *dir)
{
    struct tp_err ignored = { 0 };
    char parent[PATH_MAX];
    size_t n = strlen(dir);
    const size_t tail = strlen("weights");

    while (n > 1 && dir[n - 1] == '/')
        n--;
    if (n < tail || n >= PATH_MAX || strncmp(dir + n - tail, "weights", tail) != 0 ||
        (n > tail && dir[n - tail - 1] != '/'))
        return false;
    snprintf(parent, sizeof parent, "%.*s", n > tail ? (int)(n - tail) : 1, n > tail ? dir : ".");
    return !file_join(file, parent, "context/model.yaml", &ignored) && object_is_there(file);
}

/* *path NULL: there is no file. */
static tp_status find_file(const char **path, bool *is_nemo, const char *dir, struct arena *arena,
                           struct tp_err *err)
{
    char file[PATH_MAX];
    tp_status st;

    *path = NULL;
    *is_nemo = false;
    TP_TRY(file_join(file, dir, BRIDGE_RUN_CONFIG, err));
    if (!object_is_there(file)) {
        *is_nemo = nemo_file(file, dir);
        if (!*is_nemo)
            return TP_OK;
    }
    *path = arena_strdup(arena, file);
    if (!*path)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its path", file);
done:
    return st;
}

static tp_status find_model(struct bridge_reader *r, const char *path, struct tp_err *err)
{
    r->root = yaml_tree_root(&r->tree);
    r->model = yaml_tree_get(&r->tree, r->root, r->is_nemo ? "config" : "model");
    r->transformer = yaml_tree_get(&r->tree, r->model, "transformer");
    if (!yaml_tree_entries(&r->tree, r->model))
        return tp_fail(err, TP_E_CORRUPT, "%s: has no mapping \"%s\"", path,
                       r->is_nemo ? "config" : "model");
    return TP_OK;
}

static void push_all(struct bridge_reader *r, int64_t rows)
{
    pickle_write_begin(&r->w);
    pickle_write_dict(&r->w);
    push_fields(r, r->transformer);
    push_fields(r, r->model);
    push_renamed(r);
    push_sizes(r);
    push_activation(r);
    push_rope(r);
    push_layer_freq(r);
    push_layout(r);
    push_modules(r);
    push_vocab(r, rows);
    pickle_write_op(&r->w, PICKLE_OP_SETITEMS);
    pickle_write_op(&r->w, PICKLE_OP_STOP);
}

/* Where the id of the model is: in the class of Bridge's builders, or a field of its own. */
static const char *hf_id_of(struct bridge_reader *r)
{
    const char *id = yaml_tree_text(
        &r->tree, yaml_tree_get(&r->tree, field(r, "extra_checkpoint_metadata"), "hf_model_id"));

    return id ? id : yaml_tree_text(&r->tree, field(r, "hf_model_id"));
}

static tp_status read_text(char **text, size_t *size, const char *path, struct piece_source *s,
                           struct tp_err *err)
{
    const size_t left = piece_source_memory_left(s);
    tp_status st =
        object_read_any(text, size, path, YAML_TREE_BYTES_MAX, piece_source_arena(s), err);

    if (!st && left && *size > left / YAML_TREE_MEMORY)
        st = tp_fail(err, TP_E_BUDGET, "%s: %zu bytes need more memory than --mem allows", path,
                     *size);
    return st;
}

tp_status bridge_args_read(struct bridge_args *out, const char *dir, int64_t rows,
                           struct piece_source *s, struct tp_err *err)
{
    struct bridge_reader r = { 0 };
    struct arena *arena = piece_source_arena(s);
    const char *id;
    char *text;
    size_t size;
    int64_t block;
    tp_status st;

    *out = (struct bridge_args){ 0 };
    TP_TRY(find_file(&out->path, &r.is_nemo, dir, arena, err));
    if (!out->path)
        return TP_OK;
    TP_TRY(read_text(&text, &size, out->path, s, err));
    TP_TRY(yaml_tree_parse(&r.tree, text, size, out->path, err));
    TP_TRY(find_model(&r, out->path, err));
    push_all(&r, rows);
    if (r.w.failed) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its values", out->path);
        goto done;
    }
    TP_TRY(pickle_read(&out->args, r.w.data, r.w.n, out->path, arena, err));
    id = hf_id_of(&r);
    out->has_blocks = field_int(&block, &r, "moe_mlp_glu_interleave_size") && block > 0;
    out->hf_id = id ? arena_strdup(arena, id) : NULL;
    st = find_unknown(&out->unknown, &r, arena, err);
done:
    yaml_tree_free(&r.tree);
    pickle_writer_free(&r.w);
    return st;
}
