/*
 * ckpt/shard.h - one HDF5 file of a checkpoint: boxes of tensors and a table that says where.
 *
 * Writing: libhdf5 lays out an empty file (all datasets allocated early, contiguous, 4 KiB-aligned,
 * never filled) through a virtual file driver of ours; then the payload goes with pwrite to the
 * offsets that H5Dget_offset gave, from any number of threads and processes; shard_finish writes
 * the table /index and fsyncs. Reading: one pread of /index where the manifest says it lies,
 * checked, then preads of payload; libhdf5 never sees bytes that might be damaged.
 * The bytes are specified in docs/FORMAT.md.
 */
#ifndef CKPT_SHARD_H
#define CKPT_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/digest.h"
#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"
#include "layout/stored_box.h"

enum {
    SHARD_SHA_TEXT = 65,
    SHARD_NAME_MAX = 32,
    SHARD_CHUNK_BYTES = 4 << 20, /* raw bytes of a row, at most */
    SHARD_ROW_BYTES = 160,       /* of a row of /index in the file */
    SHARD_ROWS_MAX = 1 << 22,    /* rows of a shard: 16 TiB of chunks */
    SHARD_PARTS_MAX = 64,        /* boxes of one tensor in one shard */
};

/* What the manifest says of a shard. */
struct shard_info {
    char file[SHARD_NAME_MAX]; /* "rank-00000.h5" */
    int rank;
    int64_t size_bytes;
    int64_t index_offset, index_rows; /* rows of SHARD_ROW_BYTES bytes */
    char index_sha256[SHARD_SHA_TEXT];
    char meta_sha256[SHARD_SHA_TEXT]; /* all bytes outside payloads, /index among them */
};

/* A row of /index: a stored extent. A box is cut into chunks of at most SHARD_CHUNK_BYTES raw
 * bytes, each with a checksum of its own, so that a reader of a part can check what it reads. */
struct shard_row {
    int tensor; /* id: index in the manifest's tensors */
    int part;   /* dataset /GROUP/NAME@part (no suffix for 0) */
    struct box box;
    int64_t offset, stored_bytes, raw_bytes;
    int codec;       /* 0: raw */
    uint32_t crc32c; /* of the stored bytes */
    struct digest digest;
};

/* Elements of a chunk of b, a box of t: the writer cuts b by box_run with that number. Small
 * tensors are cut so that the edges of likely cuts of their rows (to 2, 4, 8, 16 ranks) are edges
 * of chunks: who reads a part reads little else. Readers take any cut. */
int64_t shard_chunk_elements(const struct tensor *t, const struct box *b);

/* ---- writing ---- */

struct shard_writer;

/* Create dir/rank-NNNNN.h5 for those of `extents` whose rank is `rank`; the whole list is given,
 * their numbers in it are what shard_write takes. The file must not exist.
 * Only one of several processes that write the same file creates; the others `join` it: same
 * arguments, after the creator has returned from shard_create. */
tp_status shard_create(struct shard_writer **out, const char *dir, int rank,
                       const struct layout *layout, const struct stored_box *extents, int n_extents,
                       struct tp_err *err);
tp_status shard_join(struct shard_writer **out, const char *dir, int rank,
                     const struct layout *layout, const struct stored_box *extents, int n_extents,
                     struct tp_err *err);

/* Go on with a file that shard_create made for a process that died: what libhdf5 lays out is laid
 * out anew, payload stays as it is, shard_sums are to be filled in by the caller. TP_E_CORRUPT: the
 * file has another length than it should have. */
tp_status shard_recreate(struct shard_writer **out, const char *dir, int rank,
                         const struct layout *layout, const struct stored_box *extents,
                         int n_extents, struct tp_err *err);

/* SHA-256 of which boxes lie where in the file, known before anything is written. Only of a writer
 * that was created or recreated. Borrowed. */
const char *shard_places_sha256(const struct shard_writer *w);

/* Return when all that was written so far lasts. */
tp_status shard_sync(struct shard_writer *w, struct tp_err *err);

/* Write `run`, a box that is contiguous in extent number `extent`, from row-major data. Its
 * checksums are added up on the way. Each byte is written once. Thread safe. */
tp_status shard_write(struct shard_writer *w, int extent, const struct box *run, const void *data,
                      struct tp_err *err);

/* Checksums gathered so far, to be combined over processes by row_sums_add (ckpt/row_sums.h).
 * Borrowed. */
uint64_t *shard_sums(struct shard_writer *w, int64_t *n_words);

/* Write /index, fsync, and say what the manifest has to know. By the creator alone, after all
 * writing. TP_E_INTERNAL when a byte of payload was never written, or twice. */
tp_status shard_finish(struct shard_writer *w, struct shard_info *info, struct tp_err *err);

/* Close and free; w may be NULL. The file stays: who made the directory removes it. */
void shard_close(struct shard_writer *w);

/* ---- reading ---- */

struct shard_reader;

/* Open dir/info->file: its size and index must be what the info says, every row must lie inside the
 * file, fit its tensor and not overlap others. `n_tensors` and `tensors` are the manifest's. */
tp_status shard_open(struct shard_reader **out, const char *dir, const struct shard_info *info,
                     const struct tensor *tensors, int n_tensors, struct tp_err *err);
void shard_reader_close(struct shard_reader *r);

const struct shard_row *shard_rows(const struct shard_reader *r, int64_t *n);

/* Read n raw bytes at `skip` of a row's payload. Not checked against the row's checksum: the caller
 * adds up crc32c_part and compares (or reads with shard_read_row). Thread safe. */
tp_status shard_read(const struct shard_reader *r, int64_t row, int64_t skip, void *buf, int64_t n,
                     struct tp_err *err);

/* Read a whole row and check it. TP_E_CORRUPT names file, tensor, box and both checksums. */
tp_status shard_read_row(const struct shard_reader *r, int64_t row, void *buf, struct tp_err *err);

/* The sentence for a row whose CRC is not what the index says. */
tp_status shard_fail_crc(const struct shard_reader *r, int64_t row, uint32_t found,
                         struct tp_err *err);

/* Read all bytes outside payloads and compare with meta_sha256. */
tp_status shard_check_meta(const struct shard_reader *r, struct tp_err *err);

#endif
