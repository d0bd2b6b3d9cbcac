/*
 * reshard/formats/foreign_model.h - the model of a checkpoint of another framework.
 */
#ifndef RESHARD_FORMATS_FOREIGN_MODEL_H
#define RESHARD_FORMATS_FOREIGN_MODEL_H

#include "layout/model.h"
#include "reshard/formats/foreign.h"

struct foreign_model_request {
    const char *path;                    /* the checkpoint */
    const char *config;                  /* config.json, or a folder that has one; NULL: that of
                                            foreign_model_folder, or one that is made */
    const struct foreign_format *format; /* of the checkpoint; NULL: safetensors */
    int64_t memory_bytes;                /* the most for what is read; 0: no limit */
    bool takes_any;                      /* the model may be of no family */
};

/* The folder with the config.json of the checkpoint at `path`: that folder itself, or the one above
 * it if a tracker file is there, and none in `path`, which is one of its steps then (iter_0000100,
 * global_step100). False: neither has one, and `dir` is `path`. */
bool foreign_model_folder(char dir[PATH_MAX], const char *path);

/* Read the config.json that is named, else that of foreign_model_folder, else one that the format
 * makes from the checkpoint. *note is what to tell people then; else NULL. Strings live in the
 * arena. TP_E_NOTFOUND: there is none, and the format makes none. Other errors as
 * model_config_read. */
tp_status foreign_model_read(struct model *out, const char **note,
                             const struct foreign_model_request *q, struct arena *arena,
                             struct tp_err *err);

/* Read a config.json, or that of a folder, wherever it is. takes_any: the model may be of no family
 * (model_config_read_any). Errors as model_config_read. */
tp_status foreign_model_config(struct model *out, const char *path, bool takes_any,
                               struct arena *arena, struct tp_err *err);

enum { QUANT_METHOD_MAX = 32 };

/* Whether config.json says that the weights are quantized; how, in `method`. */
bool foreign_model_is_quantized(char method[QUANT_METHOD_MAX], const struct model *m);

/* Weights cannot be read, and none could be decoded: put before err's message that they are
 * quantized, if config.json says so. Return st. */
tp_status foreign_model_explain_quantized(tp_status st, const struct model *m, struct tp_err *err);

/* Whether there is one, of whatever kind. */
bool foreign_model_exists(const struct foreign_model_request *q);

#endif
