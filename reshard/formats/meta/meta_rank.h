/*
 * reshard/formats/meta/meta_rank.h - the tensors in the file of one rank: inside
 * reshard/formats/meta/ only.
 */
#ifndef RESHARD_FORMATS_META_META_RANK_H
#define RESHARD_FORMATS_META_META_RANK_H

#include <limits.h>

#include "reshard/formats/pieces/piece.h"

#define META_FIRST       "consolidated.00.pth"
#define META_SAFETENSORS "consolidated.safetensors"

enum { META_RANKS_MAX = 100, META_NAME_BYTES = 32 }; /* the names of files have two digits */

struct meta_rank_tensor {
    struct piece piece; /* whole, as the file has it, by Meta's name */
    uint32_t crc;       /* of its bytes, which are a storage alone; 0: not known */
};

struct meta_rank {
    const char *path; /* of the file */
    struct meta_rank_tensor *tensors;
    int n;
};

/* "consolidated.07.pth" */
void meta_rank_file(char name[META_NAME_BYTES], int rank);

/* Add the first rank's file to s, whose files begin with it, and read it. Everything lives as long
 * as s. TP_E_NOTFOUND: there is none. TP_E_USAGE: it is of a model that is not read: one with
 * experts or vision, or a quantized one. */
tp_status meta_rank_first(struct meta_rank *out, struct piece_source *s, struct tp_err *err);

/* Read file number `file` of s, which is that of another rank. */
tp_status meta_rank_read(struct meta_rank *out, struct piece_source *s, int file,
                         struct tp_err *err);

/* The tensor of a name; NULL: there is none. */
const struct meta_rank_tensor *meta_rank_find(const struct meta_rank *r, const char *name);

/* How many ranks there are, if all have as many columns of layers.0.attention.wo.weight as the
 * first one, and `columns` together. `where` has that number. TP_E_CORRUPT: no whole number fits.
 */
tp_status meta_rank_count(int *n, const struct meta_rank *first, int64_t columns, const char *where,
                          struct tp_err *err);

#endif
