/*
 * ckpt/verify.h - read every byte of a checkpoint and compare it with every checksum.
 *
 * Checked: the manifest; of every shard its length, its index and the bytes outside payloads; of
 * every row the CRC32C and the digest; that the boxes of every tensor hold each element once; that
 * no shard lies there that the manifest does not know.
 */
#ifndef CKPT_VERIFY_H
#define CKPT_VERIFY_H

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "core/err.h"
#include "core/progress.h"

struct verify {
    const char *dir;           /* a step directory (ckpt_locate) */
    int jobs;                  /* threads, >= 1; each needs SHARD_CHUNK_BYTES */
    struct progress *progress; /* bytes of payload; NULL: none. Its total is set here */
    /* Told of every finding, a sentence; one call at a time. */
    void (*found)(void *ctx, const char *sentence);
    void *ctx;

    /* Results. Memory is the arena's. */
    struct manifest manifest; /* all zeroes when it cannot be read */
    struct digest *digests;   /* [n_tensors], from the bytes */
    int64_t bytes;            /* of payload that were read */
    int findings;
};

/* Verify v->dir. TP_OK: it was done, and v->findings says how much is wrong. TP_E_NOMEM, and
 * TP_E_IO when a file cannot be read for reasons of the machine. */
tp_status ckpt_verify(struct verify *v, struct arena *arena, struct tp_err *err);

#endif
