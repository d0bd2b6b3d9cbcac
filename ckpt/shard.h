/*
 * ckpt/shard.h - one HDF5 file of a checkpoint: boxes of tensors, and the table /index that says
 * where they are. docs/FORMAT.md specifies the bytes.
 *
 * Writing: libhdf5 creates the structure of the file (datasets that are contiguous, allocated
 * early, never filled, 4 KiB-aligned) through our own virtual file driver. The payload is then
 * written with pwrite at the offsets that libhdf5 chose, by any number of threads and processes.
 * shard_finish writes /index, and shard_wait calls fsync. Reading: /index is read where the
 * manifest says it is, checked, and then payload is read. libhdf5 never sees bytes that may be
 * damaged. A shard with compressed chunks is written in another way: ckpt/shard_pack.h.
 */
#ifndef CKPT_SHARD_H
#define CKPT_SHARD_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/chunk.h"
#include "ckpt/chunk_sums.h"
#include "core/arena.h"
#include "core/err.h"
#include "layout/layout.h"
#include "layout/stored_box.h"

enum {
    SHARD_NAME_MAX = 32,
    SHARD_CHUNKS_MAX = 1 << 22, /* chunks of a shard: 16 TiB */
    SHARD_PARTS_MAX = 64,       /* boxes of one tensor in one shard */
};

/* What the manifest says about a shard. */
struct shard_info {
    char file[SHARD_NAME_MAX]; /* "rank-00000.h5" */
    int rank;
    int64_t size_bytes;
    int64_t index_offset, index_rows; /* a row of the table /index is a chunk entry */
    char index_sha256[SHA256_TEXT];
    char meta_sha256[SHA256_TEXT]; /* of all bytes outside payloads, /index included */
    bool chunked;                  /* its datasets are chunked, and chunks may be compressed */
};

/* ---- writing ---- */

/* What to write: those of `boxes` whose rank is `rank`. shard_write takes indices of `boxes`.
 * Everything is borrowed until the writer is closed. */
struct shard_plan {
    const char *dir;
    int rank;
    const struct layout *layout;
    const struct stored_box *boxes; /* of all ranks, grouped by rank */
    int n_boxes;
    const char *upload_id; /* to join a shard in a store: upload_file_id of its creator */
    int zstd; /* level of compression; 0: none. Such a file cannot be joined, and ckpt/shard_pack.h
                 says how it is written */
    struct page_pool *pool; /* of chunks that are collected to be compressed: shards that are
                               written together share one, so that memory which one of them gives
                               back serves the next. Borrowed; NULL: the shard has its own */
};

struct shard_writer;
struct upload_file;

/* Create plan->dir/rank-NNNNN.h5, which must not exist. In a store (s3://) payload is uploaded
 * while it is written, and the object appears by shard_appear. When several processes write the
 * same file, one of them creates it; the others join it with the same plan, after shard_create has
 * returned. In a store they combine what they have (storage/upload_file.h) before shard_finish. */
tp_status shard_create(struct shard_writer **out, const struct shard_plan *plan,
                       struct tp_err *err);
tp_status shard_join(struct shard_writer **out, const struct shard_plan *plan, struct tp_err *err);

/* Continue a file that shard_create made for a process that died. The structure is created anew;
 * payload stays. The caller fills in shard_sums; of a compressed shard, also what
 * ckpt/shard_pack_resume.h says. TP_E_CORRUPT: the file has another length than it
 * should have, or is a hard link to a file that belongs to another step, too. */
tp_status shard_recreate(struct shard_writer **out, const struct shard_plan *plan,
                         struct tp_err *err);

/* SHA-256 of which boxes are where in the file; known before anything is written. Only for a writer
 * that was created or recreated. Borrowed. */
const char *shard_layout_sha256(const struct shard_writer *w);

/* Write `run`, a box that is contiguous in box number `box`, from row-major data, and add to its
 * checksums. Each byte must be written once. Thread safe. */
tp_status shard_write(struct shard_writer *w, int box, const struct box *run, const void *data,
                      struct tp_err *err);

/* The same; *written is the digest of what was written. */
tp_status shard_write_digested(struct shard_writer *w, int box, const struct box *run,
                               const void *data, struct digest *written, struct tp_err *err);

/* The same without checksums, which the caller computes and adds. */
tp_status shard_write_unsummed(struct shard_writer *w, int box, const struct box *run,
                               const void *data, struct tp_err *err);

/* The chunk that contains byte `at` of a run, and the part of it that the run has from there on.
 * `part` has no data and no digest. `overlap`: the elements of the run in the chunk. Returns the
 * bytes of the chunk after the part. */
int64_t shard_part_at(const struct shard_writer *w, int box, const struct box *run, int64_t at,
                      int64_t *chunk, struct chunk_part *part, struct box *overlap);

/* Add the checksums of a part that was written: its digest, and its crc32c_part. Thread safe. */
void shard_add_sums(struct shard_writer *w, int64_t chunk, const struct chunk_part *part,
                    uint32_t crc_part);

/* fdatasync: return when everything that was written so far is on disk. Of several shards, several
 * threads can do this at the same time. */
tp_status shard_sync(struct shard_writer *w, struct tp_err *err);

/* The checksums so far, which processes combine by chunk_sums_add (ckpt/chunk_sums.h). Borrowed. */
uint64_t *shard_sums(struct shard_writer *w, int64_t *n_words);

/* Write /index, and fill in what the manifest says. Only by the creator, after all writing.
 * TP_E_INTERNAL: a byte of payload was not written, or was written twice. */
tp_status shard_finish(struct shard_writer *w, struct shard_info *info, struct tp_err *err);

/* After shard_finish: return when the disk has all of the shard (fsync), or the store. Of local
 * shards, several threads can wait at the same time. */
tp_status shard_wait(struct shard_writer *w, struct tp_err *err);

/* After shard_wait, of a shard in a store: make the object appear, if there is none yet
 * (TP_E_EXISTS). Local files are there already. */
tp_status shard_appear(struct shard_writer *w, struct tp_err *err);

/* Remove an object that shard_appear made to appear, as far as the store answers. */
void shard_remove(const struct shard_writer *w);

/* The upload of a shard in a store; NULL: a local file. Borrowed. */
struct upload_file *shard_upload_of(const struct shard_writer *w);

/* Close and free; w may be NULL. An object that has not appeared never does. The file stays; the
 * owner of the directory removes it. */
void shard_close(struct shard_writer *w);

/* ---- reading ---- */

struct shard_reader;

/* Open dir/info->file, a shard of a checkpoint that has this layout. Size and index must be what
 * the info says; every chunk must lie inside the file, fit its tensor, and not overlap another.
 * info is copied, layout is borrowed. */
tp_status shard_open(struct shard_reader **out, const char *dir, const struct shard_info *info,
                     const struct layout *layout, struct tp_err *err);
void shard_reader_close(struct shard_reader *r);

/* The entries of /index, in its order. Borrowed. */
const struct chunk_entry *shard_chunks(const struct shard_reader *r, int64_t *n);

/* Read n of the stored bytes at offset `skip` of a chunk's payload. They are not checked: the
 * caller adds up crc32c_part and compares, or calls shard_read_chunk. Thread safe. */
tp_status shard_read_part(const struct shard_reader *r, int64_t chunk, int64_t skip, void *buf,
                          int64_t n, struct tp_err *err);

/* Say that this part of a payload will be read (object_will_read). */
void shard_will_read_part(const struct shard_reader *r, int64_t chunk, int64_t skip, int64_t n);

/* Read a whole chunk, check it, and decompress it: raw_bytes. Of a compressed chunk, the digest is
 * checked too. TP_E_CORRUPT names file, tensor, box and both checksums. */
tp_status shard_read_chunk(const struct shard_reader *r, int64_t chunk, void *buf,
                           struct tp_err *err);

/* The same with a decoder that the caller keeps: *d is NULL, or of an earlier call by this
 * thread. */
tp_status shard_unpack_chunk(const struct shard_reader *r, int64_t chunk, struct codec_decoder **d,
                             void *buf, struct tp_err *err);

/* TP_E_CORRUPT for a chunk whose CRC32C is `found` and not what the index says. */
tp_status shard_crc_error(const struct shard_reader *r, int64_t chunk, uint32_t found,
                          struct tp_err *err);

/* TP_E_CORRUPT for a chunk: file, tensor, box and place, then `what` ("is damaged"). */
tp_status shard_chunk_error(const struct shard_reader *r, int64_t chunk, const char *what,
                            struct tp_err *err);

/* The tensor of a chunk. */
const struct tensor *shard_chunk_tensor(const struct shard_reader *r, int64_t chunk);

/* Whether the datasets are chunked: then chunks may be compressed, and lie anywhere in the file. */
bool shard_is_chunked(const struct shard_reader *r);

/* The descriptor of the file, which belongs to the reader. */
int shard_reader_fd(const struct shard_reader *r);

/* Check the bytes outside payloads: the HDF5 signature at the start of the file, and meta_sha256.
 * TP_E_CORRUPT says which. */
tp_status shard_check_meta(const struct shard_reader *r, struct tp_err *err);

/* The same while all payloads are read, in the order of the file: the first function says that they
 * will be, and after each one chunk_gaps_passed is called; the second one compares. */
struct chunk_gaps;
tp_status shard_begin_meta(struct chunk_gaps **out, const struct shard_reader *r,
                           struct tp_err *err);
tp_status shard_end_meta(const struct shard_reader *r, struct chunk_gaps *g, struct tp_err *err);

#endif
