/*
 * ckpt/shard_opener.h - open the shards of a step one after another. Where they are remote, the
 * next ones are opened at the same time, because each takes two answers of the server.
 */
#ifndef CKPT_SHARD_OPENER_H
#define CKPT_SHARD_OPENER_H

#include "ckpt/manifest.h"
#include "ckpt/shard.h"

struct shard_opener;

/* dir and m are borrowed. */
tp_status shard_opener_new(struct shard_opener **out, const char *dir, const struct manifest *m,
                           struct tp_err *err);

/* Open the next shard, in the manifest's order; it belongs to the caller. Fails as ckpt_open_shard
 * does, and the call after that is about the shard after it. TP_E_NOMEM: no memory for the threads
 * that open them; the next call is about the same shard. */
tp_status shard_opener_next(struct shard_opener *o, struct shard_reader **out, struct tp_err *err);

void shard_opener_free(struct shard_opener *o);

#endif
