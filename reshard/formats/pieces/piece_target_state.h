/*
 * reshard/formats/pieces/piece_target_state.h - what a target of pieces contains: inside
 * reshard/formats/pieces/ only. piece_target.c writes the pieces, piece_upload.c sends them to a
 * store, piece_resume.c continues what an interrupted run wrote, piece_share.c lets several
 * processes write them.
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_TARGET_STATE_H
#define RESHARD_FORMATS_PIECES_PIECE_TARGET_STATE_H

#include <pthread.h>

#include "core/arena.h"
#include "layout/tensor.h"
#include "reshard/engine/tensor_digests.h"
#include "reshard/formats/pieces/file_table.h"
#include "reshard/formats/pieces/piece_place.h"

struct upload_set;

enum { PIECE_CRC_BYTES = 4 };

/* What piece_target.h describes. */
struct piece_target {
    struct reshard_endpoint endpoint;
    struct arena arena;
    const char *dir;
    const struct tensor *tensors;
    int n_tensors;
    struct file_table *files;
    int n_files;
    struct piece_place *places; /* ordered by tensor and box after piece_target_plan */
    int n_places, places_room;
    int *first; /* [n_extents + 1] the places of extent i begin at first[i] */
    struct piece_target_sum *sums;
    uint64_t *parts; /* [n_sums] exclusive or of the parts that were written */
    int n_sums, sums_room;
    struct upload_set *uploads; /* the tensors go to a store; NULL: into the files */
    int64_t *sum_left;          /* [n_sums] then: bytes that were not written */
    struct tensor_digests digests;

    /* of tensors that an interrupted run wrote; NULL: nothing is suspect */
    bool *suspect;       /* [n_tensors] */
    bool *unlike;        /* [n_tensors] a box does not have the same bytes in all its places */
    struct digest *back; /* [n_tensors] of what was read back */

    pthread_mutex_t lock; /* guards parts, sum_left, unlike and back */
};

/* Write the CRC-32 of all that was written of a sum. */
tp_status piece_target_write_sum(struct piece_target *t, int number, struct tp_err *err);

#endif
