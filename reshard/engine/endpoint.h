/*
 * reshard/engine/endpoint.h - a format as the source or the target of a transfer.
 *
 * An endpoint has a list of extents, each a box of a tensor that the format stores row-major and
 * without gaps, and a function that reads or writes a run of one. Checkpoint shards, safetensors
 * files and a trainer's memory are endpoints (reshard/formats/).
 */
#ifndef RESHARD_ENGINE_ENDPOINT_H
#define RESHARD_ENGINE_ENDPOINT_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest.h"
#include "ckpt/sha256.h"
#include "core/err.h"
#include "layout/box.h"
#include "layout/dtype.h"

struct comm_control;

/* A tensor that is transferred. Its number is its index in struct transfer. */
struct reshard_tensor {
    const char *name; /* "exp_avg/model.norm.weight", for messages; borrowed */
    int ndim;
    int64_t shape[BOX_NDIM_MAX];
};

struct reshard_extent {
    int tensor;
    struct box box;
};

/* A part of a run that has a checksum of its own, because it belongs to one chunk. */
struct reshard_part {
    int64_t at, n;       /* bytes of the run: the first one, and how many */
    int64_t chunk;       /* the endpoint's number of the chunk */
    int64_t skip, after; /* bytes of the chunk before and after the part */
    struct box box;      /* the elements of the part */
    bool is_checked;     /* reading compares its checksum, so there is nothing to add */
};

/* crc32c_part (ckpt/crc.h) of a part; and its digest, which only targets need. */
struct reshard_part_sums {
    uint32_t crc;
    struct digest digest;
};

/* An endpoint whose checksums are computed elsewhere, by a device. All functions are thread
 * safe. */
struct reshard_unsummed {
    /* As those of struct reshard_endpoint, without checksums. */
    tp_status (*read)(void *ctx, int extent, const struct box *run, void *buf, struct tp_err *err);
    tp_status (*write)(void *ctx, int extent, const struct box *run, const void *buf,
                       struct tp_err *err);
    /* The part that contains byte `at` of a run, from that byte on. */
    void (*part)(const void *ctx, int extent, const struct box *run, int64_t at,
                 struct reshard_part *out);
    /* What was read or written has these checksums. Not for a part that is checked. */
    void (*add)(void *ctx, int extent, const struct reshard_part *part,
                const struct reshard_part_sums *sums);
};

/* Running checksums of an endpoint, as an array of words. A journal saves them, so that a later
 * process can continue an interrupted transfer. Borrowed. */
struct reshard_sums {
    uint64_t *words;
    int64_t n;
};

/* What a later process needs to continue a transfer that was interrupted (reshard/resume.h). All
 * functions get the endpoint's ctx. */
struct reshard_resumable {
    /* The running checksums. `sums` has room for all arrays or is NULL. Returns how many there
     * are. */
    int (*sums)(const void *ctx, struct reshard_sums *sums);
    /* Source: a journal has filled in the sums, so this process does not know which parts were read
     * before. NULL: it need not know. */
    void (*resumed)(void *ctx);
    /* The others are of a target. SHA-256 of which boxes are where in its files. */
    tp_status (*layout_sha256)(const void *ctx, char sha256[SHA256_TEXT], struct tp_err *err);
    /* Return when everything that was written so far is on disk. */
    tp_status (*sync)(const void *ctx, struct tp_err *err);
    /* Suspect everything that was written according to the sums, which the caller has filled in:
     * the endpoint's `suspects` and `read` then work. */
    tp_status (*suspect)(void *ctx, struct tp_err *err);
    /* After all suspect runs have been read: what is equal is no longer suspect. Returns how many
     * parts of the files differ from what was written; their runs can be read again. */
    int64_t (*compare)(void *ctx);
    /* Suspect nothing any more. */
    void (*trust)(void *ctx);
};

struct reshard_endpoint {
    const char *name; /* "runs/ckpt/step-00000500", for messages; borrowed */
    int n_extents;
    const struct reshard_extent *extents; /* borrowed */
    const enum dtype *dtypes;             /* [tensors] how elements are stored here; borrowed */
    void *ctx;
    /* Copy `run`, which is contiguous in extent number `extent`, to or from the row-major buf.
     * Thread safe. A source has read, a target has write. A target that has `suspects` has a read
     * too: it reads back what was written, and adds it to checksums of its own. */
    tp_status (*read)(void *ctx, int extent, const struct box *run, void *buf, struct tp_err *err);
    tp_status (*write)(void *ctx, int extent, const struct box *run, const void *buf,
                       struct tp_err *err);
    /* Target in memory: the address of a run, which is contiguous there too. What is gathered is
     * gathered right there, and `write` gets this address as buf, so it has nothing to copy. When
     * the transfer has a device, it is memory of the device: the device's kernels write to it, and
     * `write` copies to it from ordinary memory what they do not. NULL: the target is not
     * memory. */
    void *(*place)(const void *ctx, int extent, const struct box *run);
    /* The digest of a run that is written as it was read, in the same box, is computed once: the
     * source reads without it, the target computes the digest of what it wrote, and passes it to
     * the source. NULL: the endpoint keeps no digests of what it reads or writes, or cannot do
     * this. Thread safe. */
    tp_status (*read_undigested)(void *ctx, int extent, const struct box *run, void *buf,
                                 struct tp_err *err);
    void (*add_digest)(void *ctx, int tensor, const struct digest *part);
    tp_status (*write_digested)(void *ctx, int extent, const struct box *run, const void *buf,
                                struct digest *written, struct tp_err *err);
    /* As `read`, but adds to no checksum: of several processes that read a run, another one counts
     * it. NULL: `read` may be called for a run by any number of processes. Thread safe. */
    tp_status (*read_uncounted)(void *ctx, int extent, const struct box *run, void *buf,
                                struct tp_err *err);
    /* Source: a run will be read, after those that were named before; about ahead_bytes are named
     * ahead of what is read. NULL: it need not know, because its files are local. Thread safe. */
    void (*will_read)(void *ctx, int extent, const struct box *run);
    int64_t ahead_bytes;
    /* Runs that are far apart in a tensor cost as little as neighbours, one after another: local
     * files that are not compressed. If both ends say so, threads work far apart, and so write
     * different files. */
    bool any_order;
    /* NULL: the endpoint has no checksums, or cannot let others compute them. */
    const struct reshard_unsummed *unsummed;
    /* NULL: an interrupted transfer with this endpoint starts over. */
    const struct reshard_resumable *resumable;
    /* Target: whether a run, which an earlier process wrote, has bytes that have not been proved to
     * be what that process wrote. NULL: nothing is suspect. Thread safe. */
    bool (*suspects)(const void *ctx, int extent, const struct box *run);
    /* Target: finish what was written so far. It is called after about flush_bytes were written,
     * and after the last write, while no thread writes. NULL: never. */
    tp_status (*flush)(void *ctx, struct tp_err *err);
    int64_t flush_bytes;
    /* Several processes, each of which adds up checksums of what it read or wrote: the sums of all
     * become those of rank 0, and a source's also those of the others where `check` needs them.
     * Called once, after all tiles and before `check`, by every process. NULL: there are none, or
     * they are combined elsewhere. Collective. */
    tp_status (*combine)(void *ctx, struct comm_control *control, struct tp_err *err);
    /* Source: compare the checksums of what was read. Called once, after all reads, by every
     * process of the transfer. NULL: there are no checksums. */
    tp_status (*check)(void *ctx, struct tp_err *err);
    /* The digest of a tensor: as the source states it or read it, as the target wrote it. Valid
     * when the transfer is complete. NULL: the endpoint keeps no digests. */
    struct digest (*digest)(const void *ctx, int tensor);
};

#endif
