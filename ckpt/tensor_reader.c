/* ckpt/tensor_reader.c - see ckpt/tensor_reader.h. */
#include "ckpt/tensor_reader.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/step.h"

/* A chunk of one of the shards. */
struct tensor_chunk {
    int shard;
    int64_t chunk;
};

struct tensor_reader {
    const struct manifest *m;
    const char *dir;
    struct shard_reader **shards;
    struct tensor_chunk *chunks;   /* by tensor: tensor t has first[t] .. first[t + 1] - 1 */
    int64_t *first;                /* [n_tensors + 1] */
    unsigned char *buffer;         /* CHUNK_BYTES_MAX */
    const struct tensor_chunk *in; /* the one in the buffer, because the next box often begins in
                                      it; NULL: none */
    struct codec_decoder *decoder; /* NULL until a chunk is compressed */
};

/* Group the chunks of all shards by tensor. */
static tp_status group_chunks(struct tensor_reader *r, struct tp_err *err)
{
    const int n_tensors = r->m->layout.n_tensors;
    int64_t total = 0, n, *next;

    for (int i = 0; i < r->m->n_shards; i++) {
        const struct chunk_entry *c = shard_chunks(r->shards[i], &n);

        for (int64_t k = 0; k < n; k++)
            r->first[c[k].tensor + 1]++;
        total += n;
    }
    for (int t = 0; t < n_tensors; t++)
        r->first[t + 1] += r->first[t];
    r->chunks = calloc((size_t)total + 1, sizeof *r->chunks);
    next = calloc((size_t)n_tensors + 1, sizeof *next);
    if (!r->chunks || !next) {
        free(next);
        return tp_fail(err, TP_E_NOMEM, "no memory for the index of %s", r->dir);
    }
    memcpy(next, r->first, (size_t)n_tensors * sizeof *next);
    for (int i = 0; i < r->m->n_shards; i++) {
        const struct chunk_entry *c = shard_chunks(r->shards[i], &n);

        for (int64_t k = 0; k < n; k++)
            r->chunks[next[c[k].tensor]++] = (struct tensor_chunk){ i, k };
    }
    free(next);
    return TP_OK;
}

tp_status tensor_reader_open(struct tensor_reader **out, const char *dir, const struct manifest *m,
                             struct tp_err *err)
{
    struct tensor_reader *r = calloc(1, sizeof *r);
    tp_status st = TP_OK;

    if (!r)
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", dir);
    r->m = m;
    r->dir = dir;
    r->shards = calloc((size_t)m->n_shards + 1, sizeof *r->shards);
    r->first = calloc((size_t)m->layout.n_tensors + 1, sizeof *r->first);
    r->buffer = malloc(CHUNK_BYTES_MAX);
    if (!r->shards || !r->first || !r->buffer) {
        st = tp_fail(err, TP_E_NOMEM, "no memory to open %s", dir);
        goto done;
    }
    for (int i = 0; i < m->n_shards; i++)
        TP_TRY(ckpt_open_shard(&r->shards[i], dir, m, i, err));
    TP_TRY(group_chunks(r, err));
    *out = r;
    r = NULL;
done:
    tensor_reader_close(r);
    return st;
}

void tensor_reader_close(struct tensor_reader *r)
{
    if (!r)
        return;
    for (int i = 0; r->shards && i < r->m->n_shards; i++)
        shard_reader_close(r->shards[i]);
    free(r->shards);
    free(r->first);
    free(r->chunks);
    free(r->buffer);
    codec_decoder_free(r->decoder);
    free(r);
}

/* Copy the elements of `overlap` from the row-major storage of one box to that of another. */
static void copy_overlap(unsigned char *to, const struct box *to_box, const unsigned char *from,
                         const struct box *from_box, const struct box *overlap, int64_t elem)
{
    const int last = overlap->ndim - 1;
    const int64_t run = overlap->ndim ? overlap->len[last] : 1;
    const int64_t n_runs = box_elements(overlap) / run;
    struct box at = *overlap;

    for (int64_t i = 0; i < n_runs; i++) {
        memcpy(to + box_offset_in(to_box, &at) * elem, from + box_offset_in(from_box, &at) * elem,
               (size_t)(run * elem));
        for (int d = last - 1; d >= 0; d--) {
            if (++at.lo[d] < overlap->lo[d] + overlap->len[d])
                break;
            at.lo[d] = overlap->lo[d];
        }
    }
}

tp_status tensor_reader_read(struct tensor_reader *r, int tensor, const struct box *box, void *buf,
                             struct tp_err *err)
{
    const struct tensor *t = &r->m->layout.tensors[tensor];
    int64_t elements = 0, n;
    char text[BOX_TEXT_MAX];

    for (int64_t i = r->first[tensor]; i < r->first[tensor + 1]; i++) {
        const struct tensor_chunk *p = &r->chunks[i];
        const struct box *stored = &shard_chunks(r->shards[p->shard], &n)[p->chunk].box;
        struct box overlap;
        tp_status st;

        if (!box_meet(&overlap, stored, box))
            continue;
        if (p != r->in) {
            r->in = NULL;
            st = shard_unpack_chunk(r->shards[p->shard], p->chunk, &r->decoder, r->buffer, err);
            if (st)
                return st;
            r->in = p;
        }
        copy_overlap(buf, box, r->buffer, stored, &overlap, dtype_bytes(t->dtype));
        elements += box_elements(&overlap);
    }
    if (elements != box_elements(box))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s: the shards hold %lld elements of %s, expected %lld",
                       r->dir, t->group, t->name, (long long)elements, box_format(text, box),
                       (long long)box_elements(box));
    return TP_OK;
}

int tensor_reader_shard(const struct tensor_reader *r, int tensor, const int64_t *at)
{
    const int ndim = r->m->layout.tensors[tensor].ndim;
    struct box element = { .ndim = ndim }, overlap;
    int64_t n;

    for (int d = 0; d < ndim; d++) {
        element.lo[d] = at[d];
        element.len[d] = 1;
    }
    for (int64_t i = r->first[tensor]; i < r->first[tensor + 1]; i++) {
        const struct tensor_chunk *p = &r->chunks[i];

        if (box_meet(&overlap, &shard_chunks(r->shards[p->shard], &n)[p->chunk].box, &element))
            return p->shard;
    }
    return -1;
}
