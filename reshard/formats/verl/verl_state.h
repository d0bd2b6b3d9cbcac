/*
 * reshard/formats/verl/verl_state.h - what a folder of verl says about its ranks and parameters:
 * inside reshard/formats/verl/ only. verl_folder.c finds the files, verl.c reads the weights,
 * verl_optimizer.c the optimizer, verl_extra.c the schedule.
 */
#ifndef RESHARD_FORMATS_VERL_VERL_STATE_H
#define RESHARD_FORMATS_VERL_VERL_STATE_H

#include <limits.h>

#include "reshard/formats/verl/verl_tensor.h"

/* A parameter, in the order of model.state_dict(), which is that of model.parameters(). */
struct verl_param {
    const char *name, *plain; /* as it is stored, and without what torch.compile adds */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
    bool distributed; /* each rank has a part of it; buffers are not */
    int64_t done[2];  /* elements that the ranks before have had of its flat moments (FSDP1) */
};

struct verl_state {
    struct piece_source *source;
    const struct model *model; /* NULL: it is not known */
    char dir[PATH_MAX];
    int world;  /* ranks */
    int shards; /* ranks that have a tensor together: less than all of HSDP */
    struct verl_param *params;
    int n_params;
};

enum { VERL_NAME_BYTES = 80 };

/* Of a rank's files the kinds "model", "optim" and "extra_state". */
void verl_file_name(char name[VERL_NAME_BYTES], const char *kind, int world, int rank);

/* Find the folder with the files at or below `path`. */
tp_status verl_folder_find(char dir[PATH_MAX], const char *path, struct tp_err *err);

/* How many ranks have saved it. TP_E_CORRUPT: fsdp_config.json and names of files differ. */
tp_status verl_folder_world(int *world, const char *dir, struct tp_err *err);

/* *has: the files of this kind are there; of some ranks only is TP_E_CORRUPT, which names those
 * that are missing. */
tp_status verl_folder_has(bool *has, const struct verl_state *d, const char *kind,
                          struct tp_err *err);

/* Open a rank's file. Close r->x with torch_pieces_close, also after a failure. */
tp_status verl_rank_open(struct verl_rank *r, const struct verl_state *d, const char *kind,
                         int rank, struct tp_err *err);

/* Add the optimizer of all ranks, if there is one; after the weights. */
tp_status verl_optimizer_add(struct verl_state *d, struct tp_err *err);

/* Note what else there is, and compare it between ranks. */
tp_status verl_extra_add(const struct verl_state *d, struct tp_err *err);

#endif
