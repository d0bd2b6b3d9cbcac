/* trainer/snapshot_shard.c - see trainer/snapshot_shard.h. */
#include "trainer/snapshot_shard.h"

#include <stdlib.h>

#include "ckpt/shard_pack.h"
#include "core/thread_pool.h"
#include "trainer/sizing/buffer_pool.h"

/* Compression collects so many bytes at a time, and takes this many threads of a rank that has
 * them. */
enum { COMPRESS_BYTES = 16 << 20, COMPRESS_THREADS = 4 };

/* Without it, threads write pieces of boxes. A file takes one write at a time, so a few threads
 * suffice: while one writes, others compute checksums. Each is worth its start for so many bytes.
 */
enum { PIECE_BYTES = 4 << 20, WRITE_THREADS = 4, THREAD_BYTES = 16 << 20 };

static int elem_bytes(const struct snapshot_shard *s, int box)
{
    return dtype_bytes(s->layout->tensors[s->boxes[box].tensor].dtype);
}

/* Take the copy of box number i from the pool. */
static void *take_copy(struct buffer_pool *pool, const struct snapshot_shard *s, int i)
{
    const struct stored_box *b = &s->boxes[i];

    return buffer_pool_take(pool, BUFFER_STAGING, box_elements(&b->box), elem_bytes(s, i));
}

tp_status snapshot_shard_plan(struct snapshot_shard *s, int64_t *n_bytes, struct arena *arena,
                              struct tp_err *err)
{
    struct buffer_pool count = { 0 };
    tp_status st = stored_box_list(&s->boxes, &s->n_boxes, s->layout, arena, err);

    if (st)
        return st;
    s->first = stored_box_of_rank(&s->n_own, s->boxes, s->n_boxes, s->rank);
    for (int i = s->first; i < s->first + s->n_own; i++)
        take_copy(&count, s, i);
    *n_bytes = count.used;
    return TP_OK;
}

/* Where the copy of each of this rank's boxes begins; malloc'ed. */
static const char **find_copies(const struct snapshot_shard *s, char *data)
{
    const char **copies = calloc((size_t)s->n_own + 1, sizeof *copies);
    struct buffer_pool pool = { .base = data };

    for (int i = 0; copies && i < s->n_own; i++)
        copies[i] = take_copy(&pool, s, s->first + i);
    return copies;
}

static int compress_threads(int threads)
{
    return threads > 0 && threads < COMPRESS_THREADS ? 1 : COMPRESS_THREADS;
}

/* An encoder for each thread, and the chunks of a batch with their frames. */
int64_t snapshot_shard_compress_bytes(int level, int threads, int64_t state_bytes)
{
    const int64_t chunk = state_bytes < CHUNK_BYTES_MAX ? state_bytes : CHUNK_BYTES_MAX;
    const int64_t batch =
        state_bytes < COMPRESS_BYTES + chunk ? state_bytes : COMPRESS_BYTES + chunk;

    return compress_threads(threads) * codec_encoder_bytes(level, chunk) + batch +
           codec_stored_bound(batch);
}

/* Write this rank's chunks in the order in which they are in the file, so that few are in memory a
 * second time. */
static tp_status write_compressed(const struct snapshot_shard *s, struct shard_writer *w,
                                  const char *const *copies, struct tp_err *err)
{
    struct shard_packer packer = { .encoders = NULL };
    struct box run;
    int64_t collected = 0;
    tp_status st = TP_OK;
    int box;

    TP_TRY(shard_packer_open(&packer, s->zstd, compress_threads(s->threads), err));
    for (int64_t i = 0; shard_pack_chunk(w, i, &box, &run); i++) {
        const struct box *b = &s->boxes[box].box;
        const int elem = elem_bytes(s, box);

        TP_TRY(
            shard_write(w, box, &run, copies[box - s->first] + box_offset_in(b, &run) * elem, err));
        collected += box_elements(&run) * elem;
        if (collected < COMPRESS_BYTES)
            continue;
        TP_TRY(shard_pack_flush(&packer, &w, 1, err));
        collected = 0;
    }
    TP_TRY(shard_pack_flush(&packer, &w, 1, err));
done:
    shard_packer_close(&packer);
    return st;
}

/* ---- raw ---- */

struct snapshot_piece {
    int box;
    int64_t run; /* its number */
};

struct snapshot_pieces {
    const struct snapshot_shard *shard;
    struct shard_writer *writer;
    const char *const *copies;
    struct snapshot_piece *list;
    int64_t n, bytes;
};

/* Cut this rank's boxes into runs. Without a list, only count. */
static void cut_boxes(struct snapshot_pieces *p)
{
    const struct snapshot_shard *s = p->shard;

    p->n = p->bytes = 0;
    for (int i = s->first; i < s->first + s->n_own; i++) {
        const struct box *b = &s->boxes[i].box;
        int64_t runs = box_run_count(b, PIECE_BYTES / elem_bytes(s, i));

        for (int64_t k = 0; p->list && k < runs; k++)
            p->list[p->n + k] = (struct snapshot_piece){ i, k };
        p->n += runs;
        p->bytes += box_elements(b) * elem_bytes(s, i);
    }
}

/* A thread_pool_fn. */
static tp_status write_piece(void *ctx, int64_t item, int worker, struct tp_err *err)
{
    const struct snapshot_pieces *p = ctx;
    const struct snapshot_shard *s = p->shard;
    const int i = p->list[item].box, elem = elem_bytes(s, i);
    const struct box *b = &s->boxes[i].box;
    struct box run;

    (void)worker;
    box_run(&run, b, PIECE_BYTES / elem, p->list[item].run);
    return shard_write(p->writer, i, &run, p->copies[i - s->first] + box_offset_in(b, &run) * elem,
                       err);
}

static tp_status write_boxes(const struct snapshot_shard *s, struct shard_writer *w,
                             const char *const *copies, struct tp_err *err)
{
    struct snapshot_pieces p = { .shard = s, .writer = w, .copies = copies };
    int64_t threads;
    tp_status st;

    cut_boxes(&p);
    p.list = calloc((size_t)p.n + 1, sizeof *p.list);
    if (!p.list)
        return tp_fail(err, TP_E_NOMEM, "no memory to save");
    cut_boxes(&p);
    threads = 1 + p.bytes / THREAD_BYTES;
    threads = threads < WRITE_THREADS ? threads : WRITE_THREADS;
    threads = threads < s->threads ? threads : s->threads;
    /* a store gets the bytes in their order, which needs the least memory */
    st = thread_pool_run(write_piece, &p, p.n, shard_upload_of(w) ? 1 : (int)threads, err);
    free(p.list);
    return st;
}

tp_status snapshot_shard_write(struct shard_writer **out, struct shard_info *info,
                               const struct snapshot_shard *s, char *copies, const char *dir,
                               struct tp_err *err)
{
    const struct shard_plan plan = {
        .dir = dir,
        .rank = s->rank,
        .layout = s->layout,
        .boxes = s->boxes,
        .n_boxes = s->n_boxes,
        .zstd = s->zstd,
    };
    const char **from = NULL;
    struct shard_writer *w = NULL;
    tp_status st = TP_OK;

    *out = NULL;
    if (s->n_own == 0)
        return TP_OK;
    if (!(from = find_copies(s, copies)))
        return tp_fail(err, TP_E_NOMEM, "no memory to save");
    TP_TRY(shard_create(&w, &plan, err));
    TP_TRY(s->zstd ? write_compressed(s, w, from, err) : write_boxes(s, w, from, err));
    TP_TRY(shard_finish(w, info, err));
    TP_TRY(shard_wait(w, err));
    *out = w;
    w = NULL;
done:
    shard_close(w);
    free(from);
    return st;
}
