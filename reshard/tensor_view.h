/*
 * reshard/tensor_view.h - the tensors of a checkpoint of any format, and any box of their values:
 * what tp-ckpt diff compares.
 */
#ifndef RESHARD_TENSOR_VIEW_H
#define RESHARD_TENSOR_VIEW_H

#include <limits.h>

#include "core/err.h"
#include "layout/tensor.h"
#include "reshard/foreign_contents.h"

struct tensor_view;

/* Open the checkpoint of a request: a root (its newest complete step, or that of the request), a
 * step directory, or one of another framework, for which the rest of the request is; its format is
 * looked for. */
tp_status tensor_view_open(struct tensor_view **out, const struct foreign_contents_request *q,
                           struct tp_err *err);
void tensor_view_close(struct tensor_view *v);

/* What was opened; and a sentence for people, or "". Borrowed. */
const char *tensor_view_path(const struct tensor_view *v);
const char *tensor_view_note(const struct tensor_view *v);

int tensor_view_count(const struct tensor_view *v);
const struct tensor *tensor_view_tensor(const struct tensor_view *v, int i);

/* The tensor of a group and a name; -1: there is none. */
int tensor_view_find(const struct tensor_view *v, const char *group, const char *name);

/* The tensor that is compared with t, of another checkpoint: that of the same group and name. Where
 * there is none: for a master the weight in f32, which is its own master; for a weight the master
 * that it is made of, so tensor_view_read_as rounds it; in a checkpoint of this project, for a tied
 * head the embedding. -1: there is none of these. */
int tensor_view_find_like(const struct tensor_view *v, const struct tensor *t);

/* Fill buf with a box of tensor i, row-major. TP_E_CORRUPT: damage, or elements that are stored
 * nowhere or twice. Not thread safe. */
tp_status tensor_view_read(struct tensor_view *v, int i, const struct box *box, void *buf,
                           struct tp_err *err);

/* The same with each element cast. buf needs room for the box in both types, and 8 bytes. */
tp_status tensor_view_read_as(struct tensor_view *v, int i, enum dtype dtype, const struct box *box,
                              void *buf, struct tp_err *err);

/* After all reads: compare the checksums of other frameworks' files. */
tp_status tensor_view_check(struct tensor_view *v, struct tp_err *err);

/* Where an element is stored. */
struct tensor_view_place {
    char file[PATH_MAX];
    int rank; /* that wrote it; -1: the format does not say */
};
void tensor_view_locate(struct tensor_view_place *out, const struct tensor_view *v, int i,
                        const int64_t *at);

#endif
