/*
 * reshard/foreign_contents.h - what a checkpoint of another framework contains, and whether it is
 * intact: for tp-ckpt ls, show, verify and digest. It may be on a web server or in a store.
 */
#ifndef RESHARD_FOREIGN_CONTENTS_H
#define RESHARD_FOREIGN_CONTENTS_H

#include "core/arena.h"
#include "core/progress.h"
#include "layout/tensor.h"
#include "reshard/formats/foreign.h"

struct foreign_contents {
    struct arena arena;
    const struct foreign_format *format;
    struct piece_source *source;
    struct tensor *tensors; /* those of supported types, ascending by group and name */
    int n_tensors;
    const char *note;   /* what to tell people of the model that was chosen; NULL: nothing */
    int n_unread;       /* tensors of other types, which are not read */
    const char *unread; /* the first of them, with its group */
    const struct tp_err *refused; /* why the optimizer's state is not read; NULL: it is, or none is
                                     there */
    bool weights;                 /* as in the request */
    bool incomplete; /* it was not opened, because a file of the checkpoint is missing */
};

/* What is opened, and how. */
struct foreign_contents_request {
    const char *path; /* a folder, or its URL */
    /* config.json or its URL; NULL: that of the folder, or one that is made from the checkpoint
     * (foreign_model.h). Formats that need none are read without if this is NULL and the model is
     * not known. */
    const char *config;
    const struct foreign_format *format; /* what foreign_contents_find found */
    int64_t step;                        /* it must be this one, if it has a number; -1: any */
    int64_t memory_bytes;                /* the most that may be resident */
    bool weights;                        /* nothing else is looked at: an optimizer's state that is
                                            not read is no obstacle */
    int64_t buffer_bytes;                /* of it, what the caller needs for buffers later */
};

/* What of another framework is at `path`; *format is NULL: nothing, so it is a checkpoint of this
 * project or none. Steps of this project in the folder come first, because programs train from
 * them and save to them, whatever files are beside them. A URL that ends in the name of a step is
 * this project's if it has a manifest, a folder of this name also if it has no known format.
 * TP_E_NOTFOUND: neither is there, and for a local path the message says where one is
 * (foreign_place_check). Other errors are of URLs only, as object_exists. A server that forbids to
 * look for steps (403) is asked for the formats where it has a config.json. `step` is the one that
 * people name, or -1: a web server without a link to the newest step is asked for it. */
tp_status foreign_contents_find(const struct foreign_format **format, const char *path,
                                int64_t step, struct tp_err *err);

/* Whether there are steps of this project at `path`, or it is one. False also when a server does
 * not say it. */
bool foreign_contents_has_steps(const char *path);

/* Open it. Close also after a failure. TP_E_BUDGET: memory_bytes is too little. TP_E_NOTFOUND: a
 * file is missing, or it is another step. */
tp_status foreign_contents_open(struct foreign_contents *out,
                                const struct foreign_contents_request *q, struct tp_err *err);
void foreign_contents_close(struct foreign_contents *c);

/* Prove that the pieces hold each element of each tensor once, and that the bytes of all ranges
 * that have a checksum agree with it. *unchecked is the number of bytes without one. TP_E_CORRUPT
 * is the first finding. TP_E_USAGE: no tensor is of a type that is read. */
tp_status foreign_contents_verify(struct foreign_contents *c, int64_t *checked, int64_t *unchecked,
                                  struct tp_err *err);

/* TP_E_CORRUPT: there are tensors that are not read, or state of an optimizer and the request is
 * not for weights alone, so its values cannot be compared. */
tp_status foreign_contents_need_all(const struct foreign_contents *c, struct tp_err *err);

/* Read everything: digests[i] is that of tensors[i]. TP_E_CORRUPT: as foreign_contents_verify, and
 * foreign_contents_need_all. */
tp_status foreign_contents_digest(struct foreign_contents *c, struct digest *digests,
                                  struct progress *progress, struct tp_err *err);

#endif
