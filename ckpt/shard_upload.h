/*
 * ckpt/shard_upload.h - the bytes of a shard on their way to a store. Inside ckpt/ only, for the
 * writing half of ckpt/shard.h.
 *
 * An upload consists of parts, and a part is sent when all of its payload has arrived
 * (storage/upload_sender.h). Only parts that have begun, wait or are being sent are in memory. What
 * is outside payloads (the structure and /index) is in a small file in memory, the writer's
 * descriptor. Parts with /index are sent at the end, because its checksums are known then.
 */
#ifndef CKPT_SHARD_UPLOAD_H
#define CKPT_SHARD_UPLOAD_H

#include <stdint.h>

#include "ckpt/shard_writer.h"
#include "core/err.h"

struct shard_upload;

/* Begin the upload of a shard whose structure is complete. w is borrowed. */
tp_status shard_upload_begin(struct shard_upload **out, const struct shard_writer *w,
                             struct tp_err *err);

/* Payload of the file. Each byte once. Thread safe. */
tp_status shard_upload_write(struct shard_upload *u, int64_t offset, const void *data, int64_t n,
                             struct tp_err *err);

/* Begin to send what is left; and wait until all is sent. The object is not visible yet. */
tp_status shard_upload_finish(struct shard_upload *u, struct tp_err *err);
tp_status shard_upload_wait(struct shard_upload *u, struct tp_err *err);

/* Make the object appear; as upload_complete. */
tp_status shard_upload_complete(struct shard_upload *u, struct tp_err *err);

/* Remove the object if it has appeared. */
void shard_upload_remove(struct shard_upload *u);

/* Free; u may be NULL. An object that has not appeared never does. */
void shard_upload_end(struct shard_upload *u);

#endif
