/*
 * layout/parallel_plan.h - the parallel plan: the names of a model's tensors, and how tensor
 * parallelism cuts each. Megatron-LM has this in its layer classes; here it is a table.
 *
 * As text it has one line for each tensor, and `#` begins a comment:
 *
 *     attention.q    model.layers.*.self_attn.q_proj.weight    column    head
 *
 * The words are the role, the name (`*` stands for the layer's number), the cut (enum tensor_cut),
 * and the unit that stays whole, which may be left out because the role determines it.
 */
#ifndef LAYOUT_PARALLEL_PLAN_H
#define LAYOUT_PARALLEL_PLAN_H

#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/model.h"
#include "layout/tensor.h"

enum { PARALLEL_PLAN_NAME_MAX = 200, PARALLEL_PLAN_BYTES_MAX = 1 << 16 };

struct parallel_plan_entry {
    enum tensor_role role;
    const char *pattern; /* one `*` where each layer has such a tensor, two where each expert of a
                            layer has one, otherwise none */
    enum tensor_cut cut;
};

struct parallel_plan {
    int n;
    struct parallel_plan_entry entries[ROLE_COUNT];
};

/* The plan of a model: its own, or its family's for the tensors that it has, with names as
 * transformers has them and cuts as Megatron-LM has them. */
struct parallel_plan parallel_plan_of(const struct model *m);

/* The name of the head or the embedding of a model. Of a family whose head is always tied, and so
 * has no name: the name that other frameworks give its copy. */
const char *parallel_plan_end_name(const struct model *m, enum tensor_role role);

/* The entry of a role; NULL: the plan has none. */
const struct parallel_plan_entry *parallel_plan_find(const struct parallel_plan *p,
                                                     enum tensor_role r);

/* Read a plan from a file. TP_E_NOTFOUND: there is no such file; TP_E_USAGE: as
 * parallel_plan_parse, or the file is too long. */
tp_status parallel_plan_read(struct parallel_plan *out, const char *path, struct arena *arena,
                             struct tp_err *err);

/* Read a plan from memory: `size` bytes of any content; `path` is for messages. Names live in the
 * arena. TP_E_USAGE: not a plan; the message names the line. Whether the plan fits a model is for
 * parallel_plan_check. */
tp_status parallel_plan_parse(struct parallel_plan *out, const char *text, size_t size,
                              const char *path, struct arena *arena, struct tp_err *err);

/* The plan as text that parallel_plan_parse reads; NULL when memory is out. */
char *parallel_plan_format(const struct parallel_plan *p, struct arena *arena);

/* Check that the plan has each tensor of the model once and that the cuts fit together: what one
 * layer computes in parts, the next must take in parts. `path` is for messages ("the built-in
 * plan"). TP_E_USAGE: the message names the two tensors that do not fit, and what would. */
tp_status parallel_plan_check(const struct parallel_plan *p, const struct model *m,
                              const char *path, struct tp_err *err);

#endif
