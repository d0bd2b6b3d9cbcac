/*
 * ckpt/shard_upload.h - a shard on its way to a store (storage/upload_file.h), for the writing half
 * of ckpt/shard.h.
 *
 * What is outside payloads (the structure and /index) is in a small file in memory, the writer's
 * descriptor. Parts with /index are sent at the end, because its checksums are known then. So are,
 * of a file of compressed chunks, the first part and those after the last chunk: its structure is
 * created when all chunks are compressed (ckpt/shard_pack.h).
 */
#ifndef CKPT_SHARD_UPLOAD_H
#define CKPT_SHARD_UPLOAD_H

#include "core/err.h"
#include "storage/upload_file.h"

struct shard_writer;

/* Begin the upload of a shard whose structure is complete, or whose chunks are compressed; or join
 * the one with this id, which another process has begun. w is borrowed. */
tp_status shard_upload_begin(struct upload_file **out, const struct shard_writer *w, const char *id,
                             struct tp_err *err);

/* Begin to send what is left (upload_file_finish). */
tp_status shard_upload_finish(struct upload_file *u, const struct shard_writer *w,
                              struct tp_err *err);

#endif
