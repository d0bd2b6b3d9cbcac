/*
 * layout/module_name.h - where a tensor of a model is in the state dict of a program of
 * transformers 5 (struct family_module, layout/family.h).
 */
#ifndef LAYOUT_MODULE_NAME_H
#define LAYOUT_MODULE_NAME_H

#include "core/arena.h"
#include "core/err.h"
#include "layout/family.h"
#include "layout/model.h"
#include "layout/tensor.h"

/* The tensor of a module, and what of it a tensor of the model is. */
struct module_name {
    const char *name;
    bool is_first; /* of the tensors that are in it: a program has one step for all of them */
    bool is_stacked;
    int64_t shape[BOX_NDIM_MAX]; /* of stacked experts: experts, rows, columns */
    int64_t expert, row;         /* where it begins there */
};

/* Whether the modules of a model have other names than its files. */
bool module_names_differ(const struct model *m);

/* Whether a name is a pattern with numbers for its stars, of which it has at most two. */
bool module_name_matches(int numbers[2], const char *pattern, const char *name);

/* The pattern that a role's names have here. The family has the role. */
const char *module_name_pattern(const struct model *m, enum tensor_role role);

/* Find it. A tensor that has the same name there is its own module's tensor. TP_E_NOMEM. */
tp_status module_name_of(struct module_name *out, const struct model *m, const struct tensor *t,
                         struct arena *arena, struct tp_err *err);

/* The same by a row of another framework's names, of which it is role number `which`; numbers are
 * those of its layer and expert. */
tp_status module_name_of_row(struct module_name *out, const struct model *m,
                             const struct family_module *row, int which, const int numbers[2],
                             const struct tensor *t, struct arena *arena, struct tp_err *err);

/* Where a box of a stacked tensor is in its module's tensor. */
struct box module_name_box(const struct module_name *n, const struct box *b);

#endif
