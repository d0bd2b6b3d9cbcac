/*
 * ckpt/shard_clone.h - gives a new shard the bytes of a box that another shard has, without reading
 * them, where the file system can share blocks between files (FICLONERANGE: XFS, btrfs).
 *
 * The checksums of the new chunks are composed of those that the other shard's index states. So the
 * other box's chunks must each lie within one chunk of the new box.
 */
#ifndef CKPT_SHARD_CLONE_H
#define CKPT_SHARD_CLONE_H

#include "ckpt/shard.h"

/* The chunks first .. first + n - 1 of a shard: all of one dataset, in order. */
struct shard_clone {
    const struct shard_reader *from;
    int64_t first, n;
    struct box box; /* that they make up */
};

/* Whether the chunks can be part of box `to` of tensor t: their box is contiguous in it, and each
 * of them lies within one chunk. */
bool shard_clone_fits(const struct shard_clone *c, const struct tensor *t, const struct box *to);

/* Make them part of box number `box` of a writer. *cloned: the blocks are shared. Else the file
 * system cannot do that, and the bytes were read, checked and written. Thread safe.
 * TP_E_CORRUPT: bytes that were read are damaged. */
tp_status shard_clone(struct shard_writer *w, int box, const struct shard_clone *c, bool *cloned,
                      struct tp_err *err);

#endif
