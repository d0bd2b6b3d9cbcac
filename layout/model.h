/*
 * layout/model.h - a transformer's dimensions, from its Hugging Face config.json.
 */
#ifndef LAYOUT_MODEL_H
#define LAYOUT_MODEL_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"

enum model_arch { MODEL_LLAMA, MODEL_GPT2 };

struct parallel_plan; /* layout/parallel_plan.h */

struct model {
    enum model_arch arch;
    int64_t vocab, hidden, ffn; /* rows of the embedding; width; MLP width */
    int layers, heads, kv_heads;
    int64_t head_dim; /* apart from hidden / heads */
    int64_t max_positions;
    double norm_eps, rope_theta, init_std;
    double dropout; /* the largest that config.json asks for; tp-train has none */
    bool tied;      /* lm_head is embed_tokens */
    const struct parallel_plan
        *plan;          /* names and cuts of its tensors; NULL: the architecture's own */
    const char *config; /* config.json as it was, for the checkpoint and the export */
};

/* "LlamaForCausalLM", "GPT2LMHeadModel". */
const char *model_arch_name(enum model_arch arch);

/* Read config.json text (size bytes, any bytes); `path` is for messages.
 * Accepts rope_theta at top level and in rope_parameters. Optional fields have transformers'
 * defaults. TP_E_USAGE: not JSON, a field missing, of the wrong kind or absurd, an architecture or
 * option that is not supported (named). Strings live in the arena. */
tp_status model_parse(struct model *out, const char *text, size_t size, const char *path,
                      struct arena *arena, struct tp_err *err);

/* Matrix elements that a token meets in the forward pass (embedding rows not counted). */
int64_t model_matmul_params(const struct model *m);

/* Floating-point operations of one training step on `tokens` tokens in sequences of `seq`:
 * 6 N + 12 L H Q T a token (Chowdhery et al. 2022, PaLM, appendix B; nothing saved for the mask).
 */
double model_step_flops(const struct model *m, int64_t tokens, int64_t seq);

#endif
