/* ckpt/gather.c - see ckpt/gather.h. */
#include "ckpt/gather.h"

#include <stdlib.h>
#include <string.h>

/* A row of one of the shards. */
struct place {
    int tensor, shard;
    int64_t row;
};

struct gather {
    const struct manifest *m;
    const char *dir;
    struct shard_reader **shards;
    struct place *places; /* by tensor; those of tensor t are first[t] .. first[t + 1] - 1 */
    int64_t *first;       /* [n_tensors + 1] */
    unsigned char *chunk; /* SHARD_CHUNK_BYTES */
};

static tp_status sort_places(struct gather *g, struct tp_err *err)
{
    const int n_tensors = g->m->layout.n_tensors;
    int64_t total = 0, n, *next;

    for (int i = 0; i < g->m->n_shards; i++) {
        const struct shard_row *rows = shard_rows(g->shards[i], &n);

        for (int64_t r = 0; r < n; r++)
            g->first[rows[r].tensor + 1]++;
        total += n;
    }
    for (int t = 0; t < n_tensors; t++)
        g->first[t + 1] += g->first[t];
    g->places = calloc((size_t)total + 1, sizeof *g->places);
    next = calloc((size_t)n_tensors + 1, sizeof *next);
    if (!g->places || !next) {
        free(next);
        return tp_fail(err, TP_E_NOMEM, "no memory for the index of %s", g->dir);
    }
    memcpy(next, g->first, (size_t)n_tensors * sizeof *next);
    for (int i = 0; i < g->m->n_shards; i++) {
        const struct shard_row *rows = shard_rows(g->shards[i], &n);

        for (int64_t r = 0; r < n; r++)
            g->places[next[rows[r].tensor]++] = (struct place){ rows[r].tensor, i, r };
    }
    free(next);
    return TP_OK;
}

tp_status gather_open(struct gather **out, const char *dir, const struct manifest *m,
                      struct tp_err *err)
{
    struct gather *g = calloc(1, sizeof *g);
    tp_status st = TP_OK;

    if (!g)
        return tp_fail(err, TP_E_NOMEM, "no memory to open %s", dir);
    g->m = m;
    g->dir = dir;
    g->shards = calloc((size_t)m->n_shards + 1, sizeof(struct shard_reader *));
    g->first = calloc((size_t)m->layout.n_tensors + 1, sizeof *g->first);
    g->chunk = malloc(SHARD_CHUNK_BYTES);
    if (!g->shards || !g->first || !g->chunk) {
        st = tp_fail(err, TP_E_NOMEM, "no memory to open %s", dir);
        goto done;
    }
    for (int i = 0; i < m->n_shards; i++)
        TP_TRY(shard_open(&g->shards[i], dir, &m->shards[i], m->layout.tensors, m->layout.n_tensors,
                          err));
    TP_TRY(sort_places(g, err));
    *out = g;
    g = NULL;
done:
    gather_close(g);
    return st;
}

void gather_close(struct gather *g)
{
    if (!g)
        return;
    for (int i = 0; g->shards && i < g->m->n_shards; i++)
        shard_reader_close(g->shards[i]);
    free(g->shards);
    free(g->first);
    free(g->places);
    free(g->chunk);
    free(g);
}

/* Copy the elements of `meet` from the row-major storage of one box to that of another. */
static void copy_box(unsigned char *to, const struct box *to_box, const unsigned char *from,
                     const struct box *from_box, const struct box *meet, int64_t elem)
{
    const int last = meet->ndim - 1;
    const int64_t run = meet->ndim ? meet->len[last] : 1;
    const int64_t n_runs = box_elements(meet) / run;
    struct box at = *meet;

    for (int64_t i = 0; i < n_runs; i++) {
        memcpy(to + box_offset_in(to_box, &at) * elem, from + box_offset_in(from_box, &at) * elem,
               (size_t)(run * elem));
        for (int d = last - 1; d >= 0; d--) {
            if (++at.lo[d] < meet->lo[d] + meet->len[d])
                break;
            at.lo[d] = meet->lo[d];
        }
    }
}

tp_status gather_read(struct gather *g, int tensor, const struct box *box, void *buf,
                      struct tp_err *err)
{
    const struct tensor *t = &g->m->layout.tensors[tensor];
    int64_t elements = 0, n;
    char text[BOX_TEXT_MAX];

    for (int64_t i = g->first[tensor]; i < g->first[tensor + 1]; i++) {
        const struct place *p = &g->places[i];
        const struct shard_row *row = &shard_rows(g->shards[p->shard], &n)[p->row];
        struct box meet;
        tp_status st;

        if (!box_meet(&meet, &row->box, box))
            continue;
        st = shard_read_row(g->shards[p->shard], p->row, g->chunk, err);
        if (st)
            return st;
        copy_box(buf, box, g->chunk, &row->box, &meet, dtype_bytes(t->dtype));
        elements += box_elements(&meet);
    }
    if (elements != box_elements(box))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s/%s: the shards hold %lld elements of %s, expected %lld",
                       g->dir, t->group, t->name, (long long)elements, box_format(text, box),
                       (long long)box_elements(box));
    return TP_OK;
}
