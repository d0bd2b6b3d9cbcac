/*
 * ckpt/shard_pack.h - writes a shard of which the chunks are compressed.
 *
 * shard_write collects the bytes of a chunk in memory. shard_pack_flush compresses the chunks that
 * are complete, on several threads, and appends them to the file. Their order in the file does not
 * depend on threads or on the calls of shard_write: chunks ascend by tensor, then by the position
 * of their last element in the tensor, then by part. A chunk is appended when all before it are
 * complete, so with writes in this order few chunks wait. shard_finish has libhdf5 create the
 * structure around the chunks.
 */
#ifndef CKPT_SHARD_PACK_H
#define CKPT_SHARD_PACK_H

#include "ckpt/shard.h"

/* Threads that compress, with an encoder each. */
struct shard_packer {
    int level, threads;
    struct codec_encoder **encoders; /* [threads] made when they are needed */
};

/* level of zstd, 1 .. 19. The packer serves any number of shards. TP_E_NOMEM. Close also after a
 * failure. */
tp_status shard_packer_open(struct shard_packer *p, int level, int threads, struct tp_err *err);
void shard_packer_close(struct shard_packer *p);

/* Upper estimate of its memory with chunks of at most chunk_bytes, without those that the writers
 * have. */
int64_t shard_packer_bytes(const struct shard_packer *p, int64_t chunk_bytes);

/* Compress and append the chunks of these writers that are complete; NULL among them is ignored.
 * All bytes that were written must be flushed before shard_finish. Not while another thread
 * writes. */
tp_status shard_pack_flush(struct shard_packer *p, struct shard_writer *const *writers, int n,
                           struct tp_err *err);

/* Chunk number i in the order of the file: a run of box number *box. False: there are no more. */
bool shard_pack_chunk(const struct shard_writer *w, int64_t i, int *box, struct box *run);

/* Bytes of the payload of a writer as far as it is in the file. */
int64_t shard_pack_stored_bytes(const struct shard_writer *w);

#endif
