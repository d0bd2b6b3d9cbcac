/*
 * layout/model.h - the dimensions of a transformer. They come from Hugging Face's config.json
 * (layout/model_config.h); the tensors follow from them (layout/model_tensors.h).
 */
#ifndef LAYOUT_MODEL_H
#define LAYOUT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

/* Models whose layers compute alike and whose tensors have the same roles (layout/family.h). */
enum model_family { MODEL_LLAMA, MODEL_GPT2, MODEL_FAMILIES };

struct parallel_plan; /* layout/parallel_plan.h */

struct model {
    enum model_family family;
    int64_t vocab, hidden, ffn; /* rows of the embedding; width; width inside the MLP */
    int layers, heads, kv_heads;
    int64_t head_dim; /* may differ from hidden / heads */
    int64_t max_positions;
    double norm_eps, rope_theta, init_std;
    double dropout;                   /* the largest that config.json asks for; tp-train has none */
    bool tied;                        /* the head uses the embedding's weights */
    const struct parallel_plan *plan; /* names and cuts of the tensors; NULL: the family's own */
    const char *config;               /* config.json as read, for the checkpoint and the export */
};

#endif
