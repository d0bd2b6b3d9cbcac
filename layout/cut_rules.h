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
 *     blocks.*.mlp.w13.weight       0   blocks=2
 *     blocks.*.norm.weight          -
 *     head.weight                   0   pad
 *
 * The options are the members of struct placement (layout/tensor.h): unit=N, blocks=N, first=N,
 * share (replicate), pad (uneven). Lines are in the order of the model: those without a `*` before
 * the first layer's are on the first pipeline stage, and those after it on the last.
 */
#ifndef LAYOUT_CUT_RULES_H
#define LAYOUT_CUT_RULES_H

#include <stdbool.h>
#include <stddef.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/tensor.h"

enum { CUT_RULES_MAX = 4096, CUT_RULES_BYTES_MAX = 1 << 20, CUT_RULES_LAYERS_MAX = 10000 };

struct cut_rule {
    const char *pattern;
    int line; /* in the file */
    struct placement placement;
    int layer; /* LAYER_FIRST or LAYER_LAST, or 0: the pattern has the layer's number */
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

/* After all tensors: TP_E_USAGE: a rule is of no tensor. */
tp_status cut_rules_check_used(const struct cut_rules *r, struct tp_err *err);

#endif
