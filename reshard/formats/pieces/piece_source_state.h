/*
 * reshard/formats/pieces/piece_source_state.h - what a source of pieces contains: inside
 * reshard/formats/ only. piece_source.c collects the pieces, piece_endpoint.c reads them.
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_SOURCE_STATE_H
#define RESHARD_FORMATS_PIECES_PIECE_SOURCE_STATE_H

#include <pthread.h>

#include "reshard/engine/tensor_digests.h"
#include "reshard/formats/pieces/piece_sums.h"

/* What stays behind. */
struct piece_left {
    const char *name;
    struct piece_extra extra; /* without bytes: there is none */
    bool in_adamw;
};

/* A step, and what says it. */
struct piece_number {
    int64_t value; /* -1: none */
    const char *where;
};

struct piece_source {
    struct arena arena;
    const char *path;
    struct file_table *files;
    struct piece *pieces;
    struct piece_sum *sums;
    struct piece_left *left;
    int n_pieces, pieces_room, n_sums, sums_room, n_left, left_room;
    struct piece_number step, iteration; /* of the optimizer, of the program */
    enum dtype weights;                  /* when there are only masters */
    struct export_adamw adamw;
    const char *adamw_owner;
    bool has_adamw;
    bool frozen;           /* weights are only of parameters that are not trained */
    bool distributed;      /* the optimizer's state is of Megatron-LM's distributed optimizer */
    int64_t vocab_rows;    /* 0: it is not known */
    const char *old_form;  /* of that */
    bool tensor_steps;     /* AdamW has counted the steps of each tensor */
    struct tp_err refused; /* state of an optimizer that is not added; its status is TP_OK: none */
    struct export_modules modules; /* of Megatron-LM */
    bool module_names;             /* of transformers 5 */
    struct piece_tensor *tensors;
    int n_tensors;
    void *owned; /* closed with the source; NULL: nothing */
    void (*close_owned)(void *owned);

    /* chosen */
    struct reshard_endpoint endpoint;
    const struct piece **extents; /* [endpoint.n_extents] */
    struct tensor_digests digests;
    struct piece_sums read; /* of what was read */
    pthread_mutex_t lock;   /* guards the words of `read` */
};

#endif
