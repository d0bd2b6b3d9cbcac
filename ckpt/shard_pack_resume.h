/*
 * ckpt/shard_pack_resume.h - lets a later process continue shards of compressed chunks
 * (ckpt/shard_pack.h) that were begun by one which died.
 *
 * Such a process needs three things besides shard_sums: how long each chunk in the file is, which
 * are words for a journal; and what was collected of chunks that are not complete, which
 * shard_pack_save writes to a file next to the shards. There are two such files, in turns, so that
 * the journal's last record always has its own.
 */
#ifndef CKPT_SHARD_PACK_RESUME_H
#define CKPT_SHARD_PACK_RESUME_H

#include "ckpt/shard_pack.h"

#define SHARD_PACK_FILE_0 "chunks-0"
#define SHARD_PACK_FILE_1 "chunks-1"

enum {
    SHARD_PACK_SAVED_WORDS = 2,
    SHARD_PACK_CHUNK_WORDS = 1, /* of shard_pack_words, for each chunk */
};

/* What is in the file of a shard, as of the last shard_pack_save. Borrowed; NULL and *n = 0: the
 * shard is not compressed. */
uint64_t *shard_pack_words(struct shard_writer *w, int64_t *n);

/* Before the shards are synced and a journal records all words: update shard_pack_words, and write
 * what is incomplete of these writers (NULL among them is ignored) to a file in dir. `saved` says
 * which one. Returns when it is on disk. Everything that is complete must have been flushed. Not
 * while another thread writes. */
tp_status shard_pack_save(struct shard_writer *const *writers, int n, const char *dir,
                          uint64_t saved[SHARD_PACK_SAVED_WORDS], struct tp_err *err);

/* When the journal has filled in shard_sums, shard_pack_words and `saved` of writers that
 * shard_recreate made: read every chunk back on several threads, and collect what is incomplete.
 * TP_E_CORRUPT: a file does not have what the words say, so the shards cannot be continued.
 * TP_E_STOPPED: a signal asked to stop (core/stop.h). */
tp_status shard_pack_restore(struct shard_writer *const *writers, int n, const char *dir,
                             const uint64_t saved[SHARD_PACK_SAVED_WORDS], int threads,
                             struct tp_err *err);

#endif
