/* ckpt/verify.c - see ckpt/verify.h. */
#include "ckpt/verify.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/chunk_gaps.h"
#include "ckpt/crc.h"
#include "ckpt/shard_opener.h"
#include "ckpt/step.h"
#include "ckpt/tiling.h"
#include "core/file.h"
#include "core/text.h"
#include "core/thread_pool.h"
#include "storage/folder.h"
#include "storage/location.h"

/* What is read and summed at a time. Pieces of 256 KiB, which the kernel's copy and two sums find
 * only in the second-level cache, take 8 % more CPU time. */
enum { PIECE_BYTES = 64 << 10 };

/* What a thread needs to read compressed chunks; NULL until then. */
struct verify_unpacker {
    struct codec_decoder *decoder;
    unsigned char *chunk; /* CHUNK_BYTES_MAX */
};

struct verify_scan {
    struct verify *v;
    struct shard_reader **shards;      /* [n_shards] NULL: could not be opened */
    struct chunk_gaps **gaps;          /* [n_shards] what is outside its payloads */
    int64_t *first;                    /* [n_shards + 1] number of each shard's first chunk */
    unsigned char **buffers;           /* [jobs] */
    struct verify_unpacker *unpackers; /* [jobs] */
    pthread_mutex_t lock;              /* guards v's results */
};

/* Turn a failure that the checkpoint causes into a finding, and return TP_OK; return others. */
static tp_status add_finding(struct verify_scan *s, tp_status st, const struct tp_err *err)
{
    if (st != TP_E_CORRUPT && st != TP_E_NOTFOUND)
        return st;
    pthread_mutex_lock(&s->lock);
    s->v->findings++;
    if (s->v->found)
        s->v->found(s->v->ctx, err->msg);
    pthread_mutex_unlock(&s->lock);
    return TP_OK;
}

static tp_status open_shards(struct verify_scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    struct shard_opener *opener = NULL;
    int64_t total = 0;
    tp_status st = shard_opener_new(&opener, s->v->dir, m, err);

    for (int i = 0; i < m->n_shards && !st; i++) {
        int64_t n = 0;

        st = shard_opener_next(opener, &s->shards[i], err);

        if (!st) {
            const struct chunk_entry *chunks = shard_chunks(s->shards[i], &n);

            for (int64_t r = 0; r < n; r++)
                total += chunks[r].stored_bytes;
            st = shard_begin_meta(&s->gaps[i], s->shards[i], err);
        }
        st = add_finding(s, st, err);
        s->first[i + 1] = s->first[i] + n;
    }
    shard_opener_free(opener);
    progress_total(s->v->progress, total);
    return st;
}

static tp_status check_digest(const struct verify_scan *s, int shard,
                              const struct chunk_entry *chunk, const struct digest *found,
                              struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    char box[BOX_TEXT_MAX], a[DIGEST_TEXT_MAX], b[DIGEST_TEXT_MAX];

    if (memcmp(found, &chunk->digest, sizeof *found) == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT, "%s/%s: tensor %s/%s, box %s: the digest is %s, expected %s",
                   s->v->dir, m->shards[shard].file, m->layout.tensors[chunk->tensor].group,
                   m->layout.tensors[chunk->tensor].name, box_format(box, &chunk->box),
                   digest_format(a, found), digest_format(b, &chunk->digest));
}

/* Read a chunk, check its CRC, and sum its digest: piece by piece, so that a piece is still in the
 * core's cache when it is summed. */
static tp_status read_chunk(struct digest *sum, const struct verify_scan *s, int shard,
                            int64_t item, unsigned char *buf, struct tp_err *err)
{
    int64_t n, at = 0;
    const struct chunk_entry *chunk = &shard_chunks(s->shards[shard], &n)[item];
    const struct tensor *t = &s->v->manifest.layout.tensors[chunk->tensor];
    const int elem = dtype_bytes(t->dtype);
    const int64_t elements = PIECE_BYTES / elem, pieces = box_run_count(&chunk->box, elements);
    uint32_t crc = 0;

    *sum = (struct digest){ { 0, 0 } };
    for (int64_t k = 0; k < pieces; k++) {
        struct box piece;
        struct digest part;
        tp_status st;

        box_run(&piece, &chunk->box, elements, k);
        n = box_elements(&piece) * elem;
        st = shard_read_part(s->shards[shard], item, at, buf, n, err);
        if (st)
            return st;
        at += n;
        crc ^= crc32c_part(buf, (size_t)n, (uint64_t)(chunk->raw_bytes - at));
        part = digest_box(buf, &piece, t->ndim, t->shape, elem);
        digest_add(sum, &part);
    }
    crc = crc32c_whole(crc, (uint64_t)chunk->raw_bytes);
    return crc == chunk->crc32c ? TP_OK : shard_crc_error(s->shards[shard], item, crc, err);
}

/* Read and check a compressed chunk, its digest too. */
static tp_status unpack_chunk(struct verify_scan *s, int shard, int64_t item, int worker,
                              struct tp_err *err)
{
    struct verify_unpacker *u = &s->unpackers[worker];

    if (!u->chunk && !(u->chunk = malloc(CHUNK_BYTES_MAX)))
        return tp_fail(err, TP_E_NOMEM, "no memory to read compressed chunks");
    return shard_unpack_chunk(s->shards[shard], item, &u->decoder, u->chunk, err);
}

/* Read and check one chunk. */
static tp_status scan_chunk(struct verify_scan *s, int shard, int64_t item, int worker,
                            struct tp_err *err)
{
    int64_t n;
    const struct chunk_entry *chunk = &shard_chunks(s->shards[shard], &n)[item];
    struct digest found = chunk->digest;
    tp_status st = chunk->codec == CODEC_RAW
                       ? read_chunk(&found, s, shard, item, s->buffers[worker], err)
                       : unpack_chunk(s, shard, item, worker, err);

    if (st)
        return add_finding(s, st, err);
    progress_add(s->v->progress, chunk->stored_bytes);
    pthread_mutex_lock(&s->lock);
    s->v->bytes += chunk->stored_bytes;
    digest_add(&s->v->digests[chunk->tensor], &found);
    pthread_mutex_unlock(&s->lock);
    return add_finding(s, check_digest(s, shard, chunk, &found, err), err);
}

/* The shard that has this chunk of all. */
static int shard_of(const struct verify_scan *s, int64_t item)
{
    int low = 0, high = s->v->manifest.n_shards - 1;

    while (low < high) {
        const int middle = low + (high - low) / 2;

        if (item < s->first[middle + 1])
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

/* A thread_pool_fn: `item` counts chunks over all shards, in the order of the files, so that each
 * file is read once from its beginning to its end. */
static tp_status scan_item(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    struct verify_scan *s = ctx;
    const int shard = shard_of(s, item);
    bool all = false;
    tp_status st;

    item -= s->first[shard];
    TP_TRY(scan_chunk(s, shard, chunk_gaps_chunk(s->gaps[shard], item), worker, err));
    TP_TRY(add_finding(s, chunk_gaps_passed(s->gaps[shard], item, &all, err), err));
    if (all)
        st = add_finding(s, shard_end_meta(s->shards[shard], s->gaps[shard], err), err);
done:
    return st;
}

/* ---- boxes ---- */

static tp_status check_boxes(struct verify_scan *s, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    struct tiling *tiling = NULL;
    tp_status st;

    for (int i = 0; i < m->n_shards; i++)
        if (!s->shards[i])
            return TP_OK; /* it is missing, which was reported; its boxes are unknown */
    TP_TRY(tiling_begin(&tiling, s->v->dir, m, err));
    for (int i = 0; i < m->n_shards; i++) {
        int64_t n = 0;
        const struct chunk_entry *chunks = shard_chunks(s->shards[i], &n);

        TP_TRY(tiling_add(tiling, i, chunks, n, err));
    }
    for (int t = 0; t < m->layout.n_tensors; t++)
        TP_TRY(add_finding(s, tiling_check(tiling, t, err), err));
done:
    tiling_end(tiling);
    return st;
}

/* Find shards that the manifest does not list. */
static tp_status check_extra(struct verify_scan *s, struct arena *arena, struct tp_err *err)
{
    const struct manifest *m = &s->v->manifest;
    struct folder_entry *entries = NULL;
    const size_t n_files = (size_t)m->n_shards;
    const char **files;
    int n = 0;
    tp_status st;

    if (location_kind(s->v->dir) == LOCATION_HTTP) /* it has no listings */
        return TP_OK;
    st = folder_list(&entries, &n, s->v->dir, err);
    if (st)
        return st == TP_E_NOTFOUND ? step_fail_removed(s->v->dir, err) : st;
    files = arena_array(arena, n_files + 1, sizeof *files);
    if (!files)
        st = tp_fail(err, TP_E_NOMEM, "no memory to verify %s", s->v->dir);
    for (size_t i = 0; i < n_files && !st; i++)
        files[i] = m->shards[i].file;
    if (!st)
        qsort(files, n_files, sizeof *files, text_compare);
    for (int e = 0; e < n && !st; e++) {
        const char *name = entries[e].name, *dot = strrchr(name, '.');

        if (dot && strcmp(dot, ".h5") == 0 &&
            !bsearch(&name, files, n_files, sizeof *files, text_compare))
            st = add_finding(s,
                             tp_fail(err, TP_E_CORRUPT,
                                     "%s/%s: is not a shard of this checkpoint; remove it",
                                     s->v->dir, name),
                             err);
    }
    free(entries);
    return st;
}

/* ---- everything ---- */

static tp_status prepare(struct verify_scan *s, struct arena *arena, struct tp_err *err)
{
    struct verify *v = s->v;
    const size_t n = (size_t)v->manifest.n_shards;

    if (v->jobs < 1)
        v->jobs = 1;
    s->shards = arena_array(arena, n, sizeof(struct shard_reader *));
    s->gaps = arena_array(arena, n, sizeof(struct chunk_gaps *));
    s->first = arena_array(arena, n + 1, sizeof *s->first);
    s->buffers = arena_array(arena, (size_t)v->jobs, sizeof(unsigned char *));
    s->unpackers = arena_array(arena, (size_t)v->jobs, sizeof *s->unpackers);
    v->digests = arena_array(arena, (size_t)v->manifest.layout.n_tensors, sizeof *v->digests);
    if (!s->shards || !s->gaps || !s->first || !s->buffers || !s->unpackers || !v->digests)
        return tp_fail(err, TP_E_NOMEM, "no memory to verify %s", v->dir);
    for (int i = 0; i < v->jobs; i++)
        if (!(s->buffers[i] = malloc(PIECE_BYTES)))
            return tp_fail(err, TP_E_NOMEM, "no memory for %d threads; use fewer --jobs", v->jobs);
    return TP_OK;
}

tp_status ckpt_verify(struct verify *v, struct arena *arena, struct tp_err *err)
{
    struct verify_scan s = { .v = v, .lock = PTHREAD_MUTEX_INITIALIZER };
    tp_status st = step_read_manifest(&v->manifest, v->dir, arena, err);

    v->findings = 0;
    v->bytes = 0;
    if (st == TP_E_NOTFOUND && location_is_remote(v->dir))
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has no " MANIFEST_FILE ", so it is not a complete checkpoint; it is "
                       "being saved or removed, or a save was interrupted",
                       v->dir);
    if (st == TP_E_NOTFOUND && !file_exists(v->dir))
        return step_fail_removed(v->dir, err);
    if (st)
        return add_finding(&s, st, err);
    TP_TRY(prepare(&s, arena, err));
    TP_TRY(open_shards(&s, err));
    TP_TRY(check_extra(&s, arena, err));
    TP_TRY(check_boxes(&s, err));
    TP_TRY(thread_pool_run(scan_item, &s, s.first[v->manifest.n_shards], v->jobs, err));
done:
    for (int i = 0; s.shards && s.gaps && i < v->manifest.n_shards; i++) {
        chunk_gaps_free(s.gaps[i]);
        shard_reader_close(s.shards[i]);
    }
    for (int i = 0; s.buffers && i < v->jobs; i++)
        free(s.buffers[i]);
    for (int i = 0; s.unpackers && i < v->jobs; i++) {
        codec_decoder_free(s.unpackers[i].decoder);
        free(s.unpackers[i].chunk);
    }
    return st;
}
