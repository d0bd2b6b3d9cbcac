/*
 * reshard/formats/torch/torchtitan_map.h - what torchtitan calls the tensors of a model, and in
 * which order their rows are.
 *
 * torchtitan has the names of Meta's Llama, for Qwen3 too, and has renamed some. All experts of a
 * layer are one tensor. A Llama's rotary embedding turns elements 2 i and 2 i + 1 of a head
 * together, Hugging Face's elements i and i + head_dim / 2. So where Hugging Face has the rows of a
 * head as (half, pair), torchtitan has them as (pair, half). Its Qwen3 turns what Hugging Face's
 * does.
 *
 * Query, key and value may be one parameter. Since June 2026 the model's state dict has three
 * tensors nevertheless, but the optimizer's state is that of the one: of each key-value head the
 * rows of its query heads, of the key and of the value.
 */
#ifndef RESHARD_FORMATS_TORCH_TORCHTITAN_MAP_H
#define RESHARD_FORMATS_TORCH_TORCHTITAN_MAP_H

#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/module_name.h"
#include "layout/tensor.h"

/* Some tensors have several names. Those of released versions, which are written, come first:
 * number 0 is that of 0.2, and number 1 that of 0.3 where it is another one. */
enum { TORCHTITAN_NAMES = 2 };

/* Whether torchtitan has models of this family. */
bool torchtitan_map_has_family(const struct model *m);

/* What a tensor of torchtitan is. */
struct torchtitan_map_tensor {
    enum tensor_role role; /* ROLE_QKV: query, key and value as one parameter */
    int layer;             /* 0 where it has none */
};

/* "layers.3.attention.wq.weight" is ROLE_Q of layer 3; all names of a tensor are known. False: the
 * model has no such tensor. */
bool torchtitan_map_ours(struct torchtitan_map_tensor *out, const struct model *m,
                         const char *name);

/* Whether the bytes of one may be those of the other, by another name. */
bool torchtitan_map_is_same(const struct torchtitan_map_tensor *a,
                            const struct torchtitan_map_tensor *b);

/* The other way: where a tensor of the model is in torchtitan's of name number `which`.
 * out->module.name NULL: there is no such name. */
struct torchtitan_map_name {
    struct module_name module;
    struct torchtitan_map_tensor tensor;
};
tp_status torchtitan_map_theirs(struct torchtitan_map_name *out, const struct model *m,
                                const struct tensor *t, int which, struct arena *arena,
                                struct tp_err *err);

/* The name of the parameter that is the query, key and value of a layer. NULL: memory is out. */
const char *torchtitan_map_fused(int layer, struct arena *arena);

/* Whether it is state of the program that is not part of the model or its optimizer:
 * "train_state.step". */
bool torchtitan_map_is_other(const char *name);

/* The name of what balances the experts of a layer, and is in no other framework's model: f32, one
 * number for each. torchtitan adds them to the scores that choose experts. NULL: memory is out. */
const char *torchtitan_map_bias(int layer, int which, struct arena *arena);

/* Whether a name is such a one, or that of a counter that an early version saved. */
bool torchtitan_map_is_balance(const char *name);

/* ---- rows ---- */

/* Whether the rows of a tensor's heads are in torchtitan's order, which is that of Meta's Llama and
 * of Mistral's own files. */
bool torchtitan_map_has_pairs(const struct model *m, enum tensor_role role);

/* Rows of a head that lie in one order: row `row` + i of the tensor here is torchtitan's row `at` +
 * 2 i, for i < n. */
struct torchtitan_map_part {
    int64_t row, n, at;
};

/* Those of half 0 or 1 of a head that are rows begin .. end - 1 of torchtitan's tensor. */
struct torchtitan_map_part torchtitan_map_rows(int64_t head_dim, int64_t head, int half,
                                               int64_t begin, int64_t end);

/* Rows of the query, key or value that belong to key-value head number `head`: row `row` + i is row
 * `at` + i of the one parameter, for i < n. */
struct torchtitan_map_part torchtitan_map_fused_rows(const struct model *m, enum tensor_role role,
                                                     int64_t head);

/* The rows of the one parameter. */
int64_t torchtitan_map_fused_count(const struct model *m);

#endif
