/*
 * reshard/import_source.h - what an import reads: a model's tensors in some format, and the tensors
 * that the checkpoint gets of them. Inside reshard/ only.
 */
#ifndef RESHARD_IMPORT_SOURCE_H
#define RESHARD_IMPORT_SOURCE_H

#include "reshard/formats/pieces/piece.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/import_request.h"
#include "reshard/job_identity.h"

struct import_source {
    struct safetensors_source *safetensors; /* one of these two */
    struct piece_source *pieces;
    const struct reshard_endpoint *endpoint; /* tensor i is tensors[i] */
    const char *name, *title;                /* of the format */
    struct tensor *tensors;                  /* of the checkpoint, in the arena */
    struct reshard_tensor *transferred;      /* the same, for the engine */
    int n_tensors;
    int n_params;           /* of one group of them; of safetensors 0 */
    int decoded;            /* how many of them were quantized */
    int layers;             /* that rules found in the names; without rules 0 */
    int64_t step;           /* of the run: the request's, else the optimizer's, else 0 */
    bool has_step;          /* the request or the source names it */
    int64_t optimizer_step; /* that AdamW has counted; without its state: step */
    bool checksums;         /* the source has a checksum of everything that is read */
    struct unknown_tensors left_out;
};

/* Read the model of the request's source: its config.json, or one that the format makes from the
 * checkpoint, which the request's progress says. Errors as foreign_model_read. With rules it must
 * be of no family, else TP_E_USAGE. TP_E_NOTFOUND: there is no such folder. */
tp_status import_source_model(struct model *out, const struct import_request *q,
                              struct arena *arena, struct tp_err *err);

/* Open the request's source. If weights are decoded, the model's config no longer says that they
 * are quantized. TP_E_NOTFOUND: it is not a folder. TP_E_USAGE: it has no known format, or the
 * rules do not fit. */
tp_status import_source_open(struct import_source *s, const struct import_request *q,
                             struct model *m, struct arena *arena, struct tp_err *err);
void import_source_close(struct import_source *s);

/* Add what is read, and from which files, to the identity of a job (reshard/job_identity.h). */
tp_status import_source_identify(const struct import_source *s, const struct import_request *q,
                                 struct sha256 *h, struct tp_err *err);

#endif
