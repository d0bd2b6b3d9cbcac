/*
 * reshard/formats/pieces/piece_resume.h - how a target of pieces continues what an interrupted run
 * wrote: inside reshard/formats/pieces/ only.
 */
#ifndef RESHARD_FORMATS_PIECE_RESUME_H
#define RESHARD_FORMATS_PIECE_RESUME_H

#include <pthread.h>

#include "core/arena.h"
#include "layout/tensor.h"
#include "reshard/engine/tensor_digests.h"
#include "reshard/formats/pieces/file_table.h"
#include "reshard/formats/pieces/piece_place.h"

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

/* The functions of its endpoint. */
extern const struct reshard_resumable piece_resumable;
bool piece_resume_suspects(const void *ctx, int extent, const struct box *run);
tp_status piece_resume_read(void *ctx, int extent, const struct box *run, void *buf,
                            struct tp_err *err);

/* As `keep` of reshard/formats/export_format.h. */
tp_status piece_resume_keep(const struct piece_target *t, const char *dir, const char *journal,
                            struct tp_err *err);

#endif
