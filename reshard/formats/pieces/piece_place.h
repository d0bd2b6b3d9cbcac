/*
 * reshard/formats/pieces/piece_place.h - where tensors go in the files of another framework
 * (reshard/formats/pieces/piece_target.h).
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_PLACE_H
#define RESHARD_FORMATS_PIECES_PIECE_PLACE_H

#include <stdbool.h>
#include <stdint.h>

#include "layout/box.h"

/* Where a box of a tensor goes: row-major, and without gaps but those between rows, or with its two
 * axes exchanged. */
struct piece_place {
    int tensor; /* of the target */
    struct box box;
    int file;          /* of the target */
    int64_t begin;     /* byte of its first element */
    int64_t row_bytes; /* from a row of the first axis to the next one; 0: there are no gaps */
    int sum;           /* of the bytes that contain it (piece_target_sum); 0: none */
    bool transposed;   /* without gaps */
};

/* Elements of a run that lie one after the other in a place, and in the buffer `stride` elements
 * apart. */
struct piece_span {
    int64_t at;            /* byte of the file */
    int64_t n;             /* elements */
    int64_t first, stride; /* elements of the buffer */
};

/* How many spans a run, which is contiguous in the box of a place, has there, and one of them.
 * elem: bytes of an element. */
int64_t piece_place_spans(const struct piece_place *p, const struct box *run);
struct piece_span piece_place_span(const struct piece_place *p, const struct box *run, int64_t i,
                                   int elem);

/* The byte after the last element of the box. */
int64_t piece_place_end(const struct piece_place *p, int elem);

/* Bytes of a file whose CRC-32 the format records. What is not written is zero. */
struct piece_target_sum {
    int file;
    int64_t begin, size;
    int64_t crc_at[2]; /* bytes of the file that get the CRC-32, little-endian */
};

#endif
