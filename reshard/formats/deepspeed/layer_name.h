/*
 * reshard/formats/deepspeed/layer_name.h - names of parameters in EleutherAI's GPT-NeoX and in
 * Megatron-DeepSpeed, as names of Megatron-core, which megatron_map.h knows.
 *
 *     2.attention.query_key_value.weight                       GPT-NeoX; module 2 of the pipeline
 *     sequential.2.mlp.linear1.bias                            GPT-NeoX without a pipeline
 *     2.self_attention.query_key_value.weight                  Megatron-DeepSpeed
 *     language_model.encoder.layers.0.input_layernorm.weight   Megatron-DeepSpeed without one
 *     tied_modules.embed.word_embeddings.weight                what two modules share
 */
#ifndef RESHARD_FORMATS_DEEPSPEED_LAYER_NAME_H
#define RESHARD_FORMATS_DEEPSPEED_LAYER_NAME_H

#include <stdbool.h>

#include "core/arena.h"

struct layer_name {
    const char *core; /* "self_attention.linear_qkv.weight", without the layer; in the arena */
    int module;       /* of the pipeline, or the layer; -1: it has no number */
    bool of_layer;    /* of a transformer layer, so that module counts these */
    bool is_neox;     /* only GPT-NeoX has this name */
};

/* False: it is none of these names, or memory is out. */
bool layer_name_parse(struct layer_name *out, const char *name, struct arena *arena);

/* Whether a name is that of the weights of query, key and value, which both have. */
bool layer_name_is_qkv(const char *name);

#endif
