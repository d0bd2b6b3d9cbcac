/*
 * ckpt/tensor_reader.h - reads any box of any tensor of a checkpoint, whatever layout wrote it.
 *
 * For looking and comparing. Whole checkpoints are copied by reshard/engine/.
 */
#ifndef CKPT_TENSOR_READER_H
#define CKPT_TENSOR_READER_H

#include "ckpt/manifest.h"
#include "core/err.h"

struct tensor_reader;

/* Open all shards of the step directory dir, whose manifest is m. Both are borrowed. */
tp_status tensor_reader_open(struct tensor_reader **out, const char *dir, const struct manifest *m,
                             struct tp_err *err);
void tensor_reader_close(struct tensor_reader *r);

/* Fill buf with a box of tensor number `tensor`, row-major. Chunks are read whole and checked.
 * TP_E_CORRUPT: damage, or an element of the box that no shard or several shards hold. Not thread
 * safe. */
tp_status tensor_reader_read(struct tensor_reader *r, int tensor, const struct box *box, void *buf,
                             struct tp_err *err);

/* The shard, by its number in the manifest, that holds the element at `at` of a tensor;
 * -1: none. */
int tensor_reader_shard(const struct tensor_reader *r, int tensor, const int64_t *at);

#endif
