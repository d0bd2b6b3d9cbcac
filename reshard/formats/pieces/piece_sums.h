/*
 * reshard/formats/pieces/piece_sums.h - the CRC-32 of the files' ranges, added up while a transfer
 * reads their pieces, in any order: inside reshard/formats/pieces/ only.
 *
 * A transfer reads each piece once. What no piece has, such as padding, is read at the end. A range
 * of which pieces overlap, or lie apart, is read a second time at the end instead, and so is one of
 * which not everything was read, or of which a decoder reads.
 */
#ifndef RESHARD_FORMATS_PIECES_PIECE_SUMS_H
#define RESHARD_FORMATS_PIECES_PIECE_SUMS_H

#include "comm/control.h"
#include "reshard/formats/pieces/piece.h"

/* Bytes of a file that one extent reads. */
struct piece_sums_range {
    int sum, extent;
    int64_t begin, end;
};

struct piece_sums {
    const struct piece_sum *sums; /* [n]; borrowed */
    struct file_table *files;     /* borrowed */
    int n;
    struct piece_sums_range *ranges; /* [n_ranges] of what is added up; by sum and begin */
    int n_ranges;
    bool *added;     /* [extents] what is read of it is added up */
    bool *wanted;    /* [n] an extent has bytes of it */
    bool *separate;  /* [n] it is read a second time */
    uint64_t *words; /* [2 * n] exclusive or of the parts, and how many bytes they have */
    int first, step; /* of several processes, this one compares every step-th sum; 0: all */
};

/* For these extents. Tables live in the arena. */
tp_status piece_sums_make(struct piece_sums *s, const struct piece *const *extents, int n_extents,
                          struct arena *arena, struct tp_err *err);

/* What n bytes at byte `at` of the piece's file contribute to its sum. */
uint32_t piece_sums_part(const struct piece_sums *s, const struct piece *p, int64_t at,
                         const void *data, int64_t n);

/* Add the exclusive or of parts with n bytes together to a sum. Not thread safe. */
void piece_sums_add(struct piece_sums *s, int sum, uint32_t parts, int64_t n);

/* Several processes, each of which has read a part: all get the words of all, and divide the
 * comparison. Collective. */
tp_status piece_sums_combine(struct piece_sums *s, struct comm_control *control,
                             struct tp_err *err);

/* After all reads: compare the wanted sums. TP_E_CORRUPT: one differs. */
tp_status piece_sums_check(const struct piece_sums *s, struct tp_err *err);

/* Read all bytes of a sum and compare it. */
tp_status piece_sums_separate(const struct piece_sum *sum, struct file_table *files,
                              struct tp_err *err);

#endif
