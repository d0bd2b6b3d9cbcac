/*
 * reshard/formats/checkpoint/chunk_cache.h - compressed chunks of which parts are read.
 *
 * A chunk is decompressed as a whole, and readers take parts of it, at different times and on
 * different threads. The cache keeps it until every byte of it has been read once, or until others
 * need the memory.
 */
#ifndef RESHARD_FORMATS_CHECKPOINT_CHUNK_CACHE_H
#define RESHARD_FORMATS_CHECKPOINT_CHUNK_CACHE_H

#include "ckpt/shard.h"

struct chunk_cache;

/* A cache of this many bytes of chunks. Besides these, each thread that reads may need a chunk of
 * CHUNK_BYTES_MAX and a decoder. */
tp_status chunk_cache_new(struct chunk_cache **out, int64_t most_bytes, struct tp_err *err);
void chunk_cache_free(struct chunk_cache *c);

/* What it needs at most with this many threads, if no chunk has more than chunk_bytes. */
int64_t chunk_cache_bytes(int64_t most_bytes, int64_t chunk_bytes, int threads);

/* Read n bytes at offset `skip` of a compressed chunk, which is checked. The reader must live as
 * long as the cache. Thread safe. */
tp_status chunk_cache_read(struct chunk_cache *c, const struct shard_reader *r, int64_t chunk,
                           int64_t skip, void *buf, int64_t n, struct tp_err *err);

#endif
