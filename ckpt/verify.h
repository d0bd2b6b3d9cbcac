/*
 * ckpt/verify.h - reads every byte of a checkpoint step and compares it with every checksum.
 *
 * Checked are: the manifest; of every shard its length, its index, the HDF5 signature and the bytes
 * outside payloads; of every chunk the CRC32C and the digest; that the boxes of every tensor hold
 * each element exactly once; that there is no shard that the manifest does not list.
 * Not checked is what the HDF5 structures mean: that the datasets have the names and offsets that
 * /index gives. Damage to these structures is found by their checksum; but a writer that names its
 * datasets wrongly is not noticed, because nothing here gives a shard to libhdf5.
 */
#ifndef CKPT_VERIFY_H
#define CKPT_VERIFY_H

#include "ckpt/manifest.h"
#include "core/arena.h"
#include "core/err.h"
#include "core/progress.h"

struct verify {
    const char *dir;           /* a step directory (ckpt_locate) */
    int jobs;                  /* threads, at least 1; each needs CHUNK_BYTES_MAX */
    struct progress *progress; /* counts bytes of payload; NULL: none. Its total is set here */
    /* Called with each finding, a sentence; one call at a time. NULL: only count them. There may be
     * as many findings as chunks. */
    void (*found)(void *ctx, const char *sentence);
    void *ctx;

    /* Results. Memory belongs to the arena. */
    struct manifest manifest; /* all zeroes when it cannot be read */
    struct digest *digests;   /* [n_tensors] computed from the bytes */
    int64_t bytes;            /* of payload that were read */
    int findings;
};

/* Verify v->dir. TP_OK: complete; v->findings counts what is wrong. TP_E_NOMEM, TP_E_IO: it could
 * not be completed, for example because another program removed the step meanwhile. TP_E_NOTFOUND:
 * v->dir is remote and has no manifest, so it is no step. */
tp_status ckpt_verify(struct verify *v, struct arena *arena, struct tp_err *err);

#endif
