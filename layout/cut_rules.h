/*
 * layout/cut_rules.h - how the tensors of a model are cut whose architecture has no table in
 * layout/family/: a file that people write.
 *
 * A line is a tensor's name and the axis that tensor parallelism cuts, or `-` where every rank has
 * the whole tensor. `*` stands for a number; the first one of a name is the layer's. `#` begins a
 * comment.
 *
 *     embed.weight                  0   pad
 *     blocks.*.attention.wq.weight  0   unit=128
 *     blocks.*.attention.wk.weight  0   unit=128 share
 *     blocks.*.attention.wk.bias    0   unit=128 share optional
 *     blocks.*.mlp.w13.weight       0   blocks=2
 *     blocks.*.experts.*.w2.weight  1   expert
 *     blocks.*.norm.weight          -
 *     head.weight                   0   pad
 *
 * Options that are members of struct placement (layout/tensor.h): unit=N, blocks=N, first=N,
 * share (replicate), pad (uneven), expert (the last `*` is the number of the expert). `optional`:
 * the model may have no such tensor. Lines are in the order of the model: those without a layer's
 * `*` before the first layer's are on the first pipeline stage, and those after it on the last.
 * `last`: the tensor is on the last stage, and no `*` of its name is a layer's.
 */
#ifndef LAYOUT_CUT_RULES_H
#define LAYOUT_CUT_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/tensor.h"

enum {
    CUT_RULES_MAX = 4096,
    CUT_RULES_BYTES_MAX = 1 << 20,
    CUT_RULES_LAYERS_MAX = 10000,
    CUT_RULES_EXPERTS_MAX = 4096,
};

struct cut_rule {
    const char *pattern;
    int line; /* in the file */
    struct placement placement;
    int layer; /* LAYER_FIRST or LAYER_LAST, or 0: the pattern has the layer's number */
    bool is_optional, is_last, is_expert;
    bool is_used;
};

struct cut_rules {
    const char *path;
    int n;
    struct cut_rule *list;
};

/* Read a file. TP_E_NOTFOUND: there is no such file; TP_E_USAGE: as cut_rules_parse, or the file is
 * too long. */
tp_status cut_rules_read(struct cut_rules *out, const char *path, struct arena *arena,
                         struct tp_err *err);

/* Read rules from memory: `size` bytes of any content; `path` is for messages. Everything lives in
 * the arena. TP_E_USAGE: the message names the line. */
tp_status cut_rules_parse(struct cut_rules *out, const char *text, size_t size, const char *path,
                          struct arena *arena, struct tp_err *err);

/* Set the placement and the layer of a tensor, whose name and shape are set. TP_E_USAGE: no rule or
 * two rules have its name, or the rule does not fit its shape; the message names the tensor. */
tp_status cut_rules_apply(const struct cut_rules *r, struct tensor *t, struct tp_err *err);

/* After all tensors: tell those of experts how many there are, one more than the largest number. */
void cut_rules_count_experts(struct tensor *tensors, int n);

/* After all tensors: TP_E_USAGE: a rule that is not optional is of no tensor. */
tp_status cut_rules_check_used(const struct cut_rules *r, struct tp_err *err);

#endif
