/* reshard/formats/deepspeed/layer_name.c - see reshard/formats/deepspeed/layer_name.h. */
#include "reshard/formats/deepspeed/layer_name.h"

#include <stdlib.h>
#include <string.h>

#include "core/text.h"
#include "reshard/formats/pieces/compiled_name.h"

#define QKV "query_key_value.weight"

enum { MODULE_MAX = 1 << 20 };

static const struct known_module {
    const char *name, *core;
    bool of_layer, is_neox;
} modules[] = {
    { "input_layernorm", "input_layernorm", true, false },
    { "attention.query_key_value", "self_attention.linear_qkv", true, true },
    { "self_attention.query_key_value", "self_attention.linear_qkv", true, false },
    { "attention.dense", "self_attention.linear_proj", true, true },
    { "self_attention.dense", "self_attention.linear_proj", true, false },
    { "post_attention_layernorm", "pre_mlp_layernorm", true, false },
    { "mlp.linear1", "mlp.linear_fc1", true, true },
    { "mlp.dense_h_to_4h", "mlp.linear_fc1", true, false },
    { "mlp.linear2", "mlp.linear_fc2", true, true },
    { "mlp.dense_4h_to_h", "mlp.linear_fc2", true, false },
    { "word_embeddings", "embedding.word_embeddings", false, false },
    { "position_embeddings", "embedding.position_embeddings", false, false },
    { "norm", "decoder.final_layernorm", false, true },
    { "final_layernorm", "decoder.final_layernorm", false, false },
    { "", "decoder.final_layernorm", false, false }, /* a module without modules in it */
    { "final_linear", "output_layer", false, true },
    { "lm_head", "output_layer", false, false },
    { "output_layer", "output_layer", false, false },
};

enum { MODULES = sizeof modules / sizeof *modules };

static bool take(const char **name, const char *head)
{
    const size_t n = strlen(head);

    if (strncmp(*name, head, n) != 0)
        return false;
    *name += n;
    return true;
}

/* Take "12." off. */
static bool take_number(const char **name, int *number)
{
    char *end;
    long n;

    if (**name < '0' || **name > '9')
        return false;
    n = strtol(*name, &end, 10);
    if (*end != '.' || n > MODULE_MAX)
        return false;
    *number = (int)n;
    *name = end + 1;
    return true;
}

/* Take off what is before the name of a module. *encoder: numbers are those of layers. */
static bool take_head(const char **name, int *number, bool *encoder)
{
    *number = -1;
    *encoder = false;
    take(name, "module.");
    if (take(name, "tied_modules.")) {
        const char *dot = strchr(*name, '.');

        *name = dot ? dot + 1 : *name;
        return dot != NULL;
    }
    if (!take(name, "language_model."))
        return (take(name, "sequential."), take_number(name, number));
    if (take(name, "encoder.") || take(name, "transformer."))
        *encoder = take(name, "layers.") && take_number(name, number);
    else
        take(name, "embedding.");
    return true;
}

bool layer_name_parse(struct layer_name *out, const char *name, struct arena *arena)
{
    static const char *const kinds[][2] = { { "weight", "weight" },
                                            { "bias", "bias" },
                                            { "scale", "weight" } }; /* of GPT-NeoX's RMSNorm */
    const struct known_module *found = NULL;
    const char *dot, *kind = NULL;
    bool encoder;
    size_t n;

    *out = (struct layer_name){ .core = NULL };
    name = compiled_name_plain(arena, name);
    if (!name || !take_head(&name, &out->module, &encoder))
        return false;
    dot = strrchr(name, '.');
    n = dot ? (size_t)(dot - name) : 0;
    for (int i = 0; i < 3 && !kind; i++)
        if (strcmp(dot ? dot + 1 : name, kinds[i][0]) == 0)
            kind = kinds[i][1];
    for (int i = 0; i < MODULES && kind && !found; i++)
        if (strlen(modules[i].name) == n && strncmp(modules[i].name, name, n) == 0)
            found = &modules[i];
    if (!found || (found->of_layer && out->module < 0) || (encoder && !found->of_layer))
        return false;
    out->core = arena_printf(arena, "%s.%s", found->core, kind);
    out->of_layer = found->of_layer;
    out->is_neox = found->is_neox;
    return out->core != NULL;
}

bool layer_name_is_qkv(const char *name)
{
    int number;
    bool encoder;

    return take_head(&name, &number, &encoder) && number >= 0 && text_ends_with(name, QKV);
}
