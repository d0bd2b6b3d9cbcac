/*
 * reshard/formats/torch/module_param.h - the parameters of a program, made of the tensors of a
 * transfer, as they are written to files of torch.save. A tensor is one parameter, or with names of
 * transformers 5's modules one of those that are stacked in it
 * (layout/module_name.h). Inside reshard/formats/ only.
 */
#ifndef RESHARD_FORMATS_TORCH_MODULE_PARAM_H
#define RESHARD_FORMATS_TORCH_MODULE_PARAM_H

#include "reshard/formats/export_writer.h"
#include "reshard/formats/torch/torch_target.h"

/* A weight of the transfer, and where it is in its parameter. */
struct module_param_part {
    int tensor;
    int64_t expert, row; /* of stacked experts; else 0 */
};

struct module_param {
    const struct export_contents *q; /* whose weights it is made of */
    const char *name;
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    struct module_param_part *parts;
    int n;
};

struct module_param_list {
    const struct export_contents *q;
    struct module_param *params; /* in the order of the first part of each */
    int n;
    int *of; /* [q->n] the parameter that a weight is a part of */
};

/* List the parameters that the weights of q are, by the names that q->module_names chooses. They
 * live in the arena. TP_E_USAGE: parts of one have different types. */
tp_status module_param_list(struct module_param_list *out, const struct export_contents *q,
                            struct arena *arena, struct tp_err *err);

/* The parameter of this name; NULL: there is none. */
const struct module_param *module_param_find(const struct module_param_list *l, const char *name);

/* The tensor of a group that a part is; -1: there is none. */
int module_param_tensor(const struct module_param *p, int part, const char *group);

/* The first part that a group does not have; -1: it has all. */
int module_param_missing(const struct module_param *p, const char *group);

/* The type that a group has of it, whose parts are all there. */
enum dtype module_param_dtype(const struct module_param *p, const char *group);

/* What `group` has of a box of a parameter lies in a storage from byte `at` on, row-major and
 * without gaps. All parts are there. */
tp_status module_param_add(struct torch_target *x, const struct module_param *p, const char *group,
                           int storage, const struct box *box, int64_t at, struct tp_err *err);

/* Push a tensor that is exactly this box. */
tp_status module_param_push(struct torch_target *x, const struct module_param *p, const char *group,
                            const struct box *box, struct tp_err *err);

#endif
