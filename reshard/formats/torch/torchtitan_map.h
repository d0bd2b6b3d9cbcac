/*
 * reshard/formats/torch/torchtitan_map.h - what torchtitan calls the tensors of a Llama, and the
 * order of rows of its queries and keys.
 *
 * torchtitan has the names of Meta's Llama. Its rotary embedding turns elements 2 i and 2 i + 1 of
 * a head together, Hugging Face's elements i and i + head_dim / 2. So where Hugging Face has the
 * rows of a head as (half, pair), torchtitan has them as (pair, half).
 */
#ifndef RESHARD_FORMATS_TORCH_TORCHTITAN_MAP_H
#define RESHARD_FORMATS_TORCH_TORCHTITAN_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"

/* Some tensors have two names: torchtitan renamed them in 2026. */
enum { TORCHTITAN_NAMES = 2 };

/* A tensor's name in the other convention. */
struct torchtitan_map_name {
    const char *name; /* NULL: memory is out */
    bool pairs;       /* its rows are in torchtitan's order */
};

/* "layers.3.attention.wq.weight" is "model.layers.3.self_attn.q_proj.weight" here; all names of a
 * tensor are known. False: it has no such tensor. */
bool torchtitan_map_ours(struct torchtitan_map_name *out, const char *name, struct arena *arena);

/* The other way; `which` is below TORCHTITAN_NAMES. False: there is no such name. */
bool torchtitan_map_theirs(struct torchtitan_map_name *out, const char *name, int which,
                           struct arena *arena);

/* Whether it is state of the program that is not part of the model or its optimizer:
 * "train_state.step". */
bool torchtitan_map_is_other(const char *name);

/* Rows of a head that lie in one order: row `row` + i of the tensor here is torchtitan's row `at` +
 * 2 i, for i < n. */
struct torchtitan_map_part {
    int64_t row, n, at;
};

/* Those of half 0 or 1 of a head that are rows begin .. end - 1 of torchtitan's tensor. */
struct torchtitan_map_part torchtitan_map_rows(int64_t head_dim, int64_t head, int half,
                                               int64_t begin, int64_t end);

#endif
