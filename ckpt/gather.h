/*
 * ckpt/gather.h - read any box of any tensor of a checkpoint, whatever rank wrote what.
 * For looking and comparing; moving whole checkpoints is the reshard engine's.
 */
#ifndef CKPT_GATHER_H
#define CKPT_GATHER_H

#include "ckpt/manifest.h"
#include "core/err.h"

struct gather;

/* Open every shard of dir. m outlives it. */
tp_status gather_open(struct gather **out, const char *dir, const struct manifest *m,
                      struct tp_err *err);
void gather_close(struct gather *g);

/* Fill buf with a box of tensor number `tensor`, row-major. Chunks are read whole and checked.
 * TP_E_CORRUPT: damage, or elements of the box that no shard or that two shards hold. Not thread
 * safe. */
tp_status gather_read(struct gather *g, int tensor, const struct box *box, void *buf,
                      struct tp_err *err);

#endif
