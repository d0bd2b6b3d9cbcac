/*
 * reshard/export_source.h - what an export reads: a checkpoint, or a checkpoint of another
 * framework; and the tensors that are written of it. Inside reshard/ only.
 */
#ifndef RESHARD_EXPORT_SOURCE_H
#define RESHARD_EXPORT_SOURCE_H

#include <limits.h>

#include "ckpt/root.h"
#include "reshard/export_request.h"
#include "reshard/formats/checkpoint/checkpoint.h"
#include "reshard/formats/export_format.h"
#include "reshard/import_source.h"

struct export_source {
    char path[PATH_MAX]; /* step directory, or folder */
    struct model model;
    struct layout layout; /* to write; its tensors are those of the transfer, in this order */
    struct reshard_tensor *transferred;
    const struct reshard_endpoint *endpoint;
    int64_t step, optimizer_step; /* of the run; that AdamW has counted */
    bool has_step;                /* the request or the source names it */
    struct export_adamw adamw;
    bool checksums;                      /* of everything that is read */
    char left_out[UNKNOWN_TENSORS_TEXT]; /* what is not written, "" when that is nothing */

    struct ckpt_found found; /* of a checkpoint */
    struct checkpoint_source *checkpoint;
    struct import_request request; /* of another framework */
    struct import_source import;
    struct piece_source *extras; /* whose extras are written; NULL: none are */
    bool distributed;  /* it has Megatron's distributed optimizer, and the format has a place for it
                        */
    bool torch_adam;   /* it has Megatron's ordinary one, which is torch.optim.AdamW, and so on */
    bool module_names; /* it has those of transformers 5 */
    struct export_modules modules; /* of Megatron-LM, if it is that */
};

/* Open the request's source for a format. Close also after a failure. TP_E_CORRUPT: a tensor of the
 * model is missing. TP_E_USAGE: there is no model, or options do not fit the source. TP_E_LAYOUT:
 * the layout to write does not fit. */
tp_status export_source_open(struct export_source *s, const struct export_request *q,
                             const struct export_format *format, struct arena *arena,
                             struct tp_err *err);
/* Add what is read to the identity of a job (reshard/job_identity.h). */
tp_status export_source_identify(const struct export_source *s, const struct export_request *q,
                                 struct sha256 *h, struct tp_err *err);
void export_source_close(struct export_source *s);

#endif
