/*
 * ckpt/shard_writer.h - what a shard that is being written contains, and how a run of it is divided
 * into chunks. Inside ckpt/ only: for shard_create.c, shard_write.c, shard_pack.c and others.
 */
#ifndef CKPT_SHARD_WRITER_H
#define CKPT_SHARD_WRITER_H

#include <pthread.h>

#include "ckpt/chunk_sums.h"
#include "ckpt/shard.h"
#include "core/page_pool.h"

/* A chunk that is compressed. */
struct shard_pack_chunk {
    unsigned char *data; /* what was written of it, then what will be stored; NULL: none */
    int64_t filled;      /* bytes that were written */
    int64_t offset;      /* in the file */
    struct codec_stored stored;
    uint32_t crc32c; /* of what is stored */
};

/* What a writer that compresses has besides. */
struct shard_pack {
    int64_t *order;                   /* [n_chunks] chunks in the order of the file */
    int64_t next;                     /* the first one, in that order, that is not in the file */
    int64_t end;                      /* of what is in the file */
    struct shard_pack_chunk *chunks;  /* [n_chunks] */
    struct page_pool *pool, own_pool; /* of `data`; own_pool where the plan has none */
    uint64_t *words; /* [n_chunks] what a journal records of the chunks, in the order of the file */
    int64_t n_words; /* of them, those that have been filled in */
    bool is_continued; /* an earlier process may have written anything outside of payloads */
};

struct shard_writer {
    char *path;
    char file[SHARD_NAME_MAX];
    int fd;                     /* the file; of an upload, what is outside payloads */
    struct upload_file *upload; /* NULL: the shard is a local file */
    int rank;
    int zstd; /* as in the plan */
    const struct layout *layout;
    const struct stored_box *boxes; /* of all ranks; this rank's are first .. first + n - 1 */
    int first, n;
    int64_t *first_chunk; /* [n + 1] number of the first chunk of each box */
    struct chunk_entry *chunks;
    uint64_t *sums;                  /* [n_chunks * CHUNK_SUM_WORDS] */
    char layout_sha256[SHA256_TEXT]; /* of the index before it has checksums */
    int64_t n_chunks, index_offset, size;
    struct shard_pack *pack; /* NULL: chunks are not compressed */
    pthread_mutex_t lock;    /* guards sums, and the pack's data and counts */
};

/* A run of a box, divided into parts of chunks. */
struct shard_run {
    const struct shard_writer *w;
    const struct box *run;      /* borrowed */
    const unsigned char *bytes; /* the rest of its data */
    int64_t chunk;              /* of the part that is next */
    int64_t at, left;           /* offset in the file, and bytes, of the rest */
};

/* Begin with the first part. TP_E_INTERNAL: the box belongs to another rank, or `run` is not a run
 * of it. An empty run has no parts. */
tp_status shard_run_begin(struct shard_run *r, const struct shard_writer *w, int box,
                          const struct box *run, const void *data, struct tp_err *err);

/* The next part of the run: of chunk *chunk, with the elements *overlap. Its digest is not filled
 * in. False: there are no more. */
bool shard_run_next(struct shard_run *r, int64_t *chunk, struct chunk_part *part,
                    struct box *overlap);

/* The checksums of a part of a chunk; fills in its digest. */
void shard_run_sums(uint64_t sums[CHUNK_SUM_WORDS], const struct shard_writer *w, int64_t chunk,
                    struct chunk_part *part, const struct box *overlap);

/* ---- shard_pack.c ---- */

/* Prepare a new file of compressed chunks. */
tp_status shard_pack_begin(struct shard_writer *w, struct page_pool *pool, struct tp_err *err);
void shard_pack_free(struct shard_writer *w);

/* Copy a part of a chunk. Thread safe. */
tp_status shard_pack_add(struct shard_writer *w, int64_t chunk, const struct chunk_part *part,
                         struct tp_err *err);

/* When all chunks are in the file: take over their places, and create the HDF5 structure. */
tp_status shard_pack_finish(struct shard_writer *w, struct tp_err *err);

/* Write the table /index as the chunks are now; sha is its SHA-256. */
tp_status shard_write_index(const struct shard_writer *w, char sha[SHA256_TEXT],
                            struct tp_err *err);

#endif
