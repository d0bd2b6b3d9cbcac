/*
 * reshard/formats/pieces/piece_place.h - where tensors go in the files of another framework
 * (reshard/formats/pieces/piece_target.h).
 */
#ifndef RESHARD_FORMATS_PIECE_PLACE_H
#define RESHARD_FORMATS_PIECE_PLACE_H

#include <stdint.h>

#include "layout/box.h"

/* Where a box of a tensor goes: row-major and without gaps. */
struct piece_place {
    int tensor; /* of the target */
    struct box box;
    int file;      /* of the target */
    int64_t begin; /* byte of its first element */
    int sum;       /* of the bytes that contain it (piece_target_sum); -1: none */
};

/* Bytes of a file whose CRC-32 the format records. What is not written is zero. */
struct piece_target_sum {
    int file;
    int64_t begin, size;
    int64_t crc_at[2]; /* bytes of the file that get the CRC-32, little-endian */
};

#endif
