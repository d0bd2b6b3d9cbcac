/* reshard/formats/meta/meta.c - see reshard/formats/meta/meta.h. */
#include "reshard/formats/meta/meta.h"

#include <string.h>

#include "layout/family.h"
#include "reshard/formats/meta/meta_params.h"
#include "reshard/formats/meta/meta_rank.h"
#include "reshard/formats/safetensors/safetensors_pieces.h"
#include "reshard/formats/torch/torch_bin.h"
#include "reshard/formats/torch/torchtitan_piece.h"
#include "storage/object.h"

bool meta_detect(const char *path)
{
    return (object_is_in(path, META_FIRST) || object_is_in(path, META_SAFETENSORS)) &&
           !safetensors_pieces_detect(path) && !torch_bin_detect(path);
}

struct meta_reader {
    struct piece_source *source;
    const struct model *model;
    int ranks;
    struct meta_rank first; /* rank 0's file */
    uint32_t *crcs; /* [2 layers] of the key and the value that were read last; 0: not known */
};

/* The axis along which a tensor of this role is cut; -1: every rank has all of it. Llama 1 and 2
 * cut the columns of the embedding. */
static int axis_of(const struct meta_reader *r, enum tensor_role role, const struct piece *local)
{
    switch (role) {
    case ROLE_OUT:
    case ROLE_DOWN:
        return 1;
    case ROLE_EMBEDDING:
        return local->ndim == 2 && local->shape[1] != r->model->hidden ? 1 : 0;
    case ROLE_Q:
    case ROLE_K:
    case ROLE_V:
    case ROLE_GATE:
    case ROLE_UP:
    case ROLE_HEAD:
        return 0;
    default:
        return -1;
    }
}

/* Whether a rank has one head of keys or values, which others have too: there are more ranks than
 * such heads. */
static bool is_repeated(const struct meta_reader *r, enum tensor_role role)
{
    return (role == ROLE_K || role == ROLE_V) && r->model->kv_heads < r->ranks &&
           r->ranks % r->model->kv_heads == 0;
}

/* Make a rank's tensor the box that it is of the whole one. */
static tp_status place(struct piece *p, const struct meta_reader *r, enum tensor_role role,
                       int rank, const char *path, struct tp_err *err)
{
    const struct family_tensor *t = family_tensor_find(family_of(r->model), role);
    const int axis = axis_of(r, role, p), ndim = t->shape[1] == DIM_NONE ? 1 : 2;
    const int parts = is_repeated(r, role) ? r->model->kv_heads : r->ranks;
    char has[BOX_TEXT_MAX], want[BOX_TEXT_MAX];
    int64_t shape[2] = { 0 };
    bool fits = p->ndim == ndim;

    for (int d = 0; d < ndim; d++) {
        shape[d] = family_dim_size(t->shape[d], r->model);
        fits = fits && p->shape[d] * (d == axis ? parts : 1) == shape[d];
    }
    if (!fits)
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, but the model's is %s, of which %s",
                       path, p->name, box_format_shape(has, sizeof has, p->ndim, p->shape),
                       box_format_shape(want, sizeof want, ndim, shape),
                       axis < 0        ? "each file has all"
                       : r->ranks == 1 ? "the one file has all"
                                       : "each file has an equal part");
    memcpy(p->shape, shape, sizeof shape);
    if (axis >= 0)
        p->box.lo[axis] = (int64_t)rank * parts / r->ranks * p->box.len[axis];
    return TP_OK;
}

/* Of a head that several ranks have, that of the first one is read, and the others' must be equal,
 * as far as their files have a checksum of it alone. *is: it is another's. */
static tp_status skip_copy(bool *is, struct meta_reader *r, const struct torchtitan_map_tensor *t,
                           int rank, const struct meta_rank *from, int i, struct tp_err *err)
{
    const uint32_t crc = from->tensors[i].crc;
    uint32_t *first = &r->crcs[2 * t->layer + (t->role == ROLE_V)];

    *is = rank % (r->ranks / r->model->kv_heads) != 0;
    if (*is && crc && *first && crc != *first)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s differs from that of the rank before, but with %d heads of "
                       "keys and values for %d ranks the two should have the same one",
                       from->path, from->tensors[i].piece.name, r->model->kv_heads, r->ranks);
    *first = crc;
    return TP_OK;
}

/* A tensor that the model does not have. That of the first rank is enough for the import to decide,
 * and all ranks must have it. */
static tp_status add_unknown(struct meta_reader *r, int rank, const struct meta_rank *from,
                             const struct piece *p, struct tp_err *err)
{
    if (strcmp(p->name, "rope.freqs") == 0)
        return TP_OK;
    if (rank == 0)
        return piece_source_add(r->source, p, err);
    if (meta_rank_find(&r->first, p->name))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: has tensor %s, which neither the model nor %s has; are files of two "
                   "checkpoints in this folder?",
                   from->path, p->name, r->first.path);
}

/* Every rank has the norms; those of the first one are read. */
static tp_status add_tensor(struct meta_reader *r, int rank, const struct meta_rank *from, int i,
                            struct tp_err *err)
{
    struct piece p = from->tensors[i].piece;
    struct torchtitan_map_tensor t;
    bool is_copy = false;
    tp_status st;

    if (!torchtitan_map_ours(&t, r->model, p.name))
        return add_unknown(r, rank, from, &p, err);
    TP_TRY(place(&p, r, t.role, rank, from->path, err));
    if (is_repeated(r, t.role))
        TP_TRY(skip_copy(&is_copy, r, &t, rank, from, i, err));
    if (!is_copy && (rank == 0 || axis_of(r, t.role, &from->tensors[i].piece) >= 0))
        st = torchtitan_piece_add(r->source, r->model, &t, &p, err);
done:
    return st;
}

/* Add the files of the other ranks: when one is not found, the message says which are missing. */
static tp_status add_files(const struct meta_reader *r, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int rank = 1; rank < r->ranks && !st; rank++) {
        char name[META_NAME_BYTES];
        int ignored;

        meta_rank_file(name, rank);
        st = piece_source_add_file(r->source, name, &ignored, err);
    }
    return st;
}

/* Read another rank's file. Why there should be one is not plain where it is missing. */
static tp_status read_rank(struct meta_rank *from, const struct meta_reader *r, int rank,
                           struct tp_err *err)
{
    tp_status st = meta_rank_read(from, r->source, rank, err);

    if (st == TP_E_CORRUPT && !object_is_there(from->path))
        return tp_fail_in(err, "the shapes in " META_FIRST " are those of %d files", r->ranks);
    return st;
}

/* The order of rows of Q and K is that of heads, of which the shapes say nothing: where there is a
 * params.json too, it must have as many as config.json's model. */
static tp_status check_heads(const struct meta_reader *r, struct tp_err *err)
{
    const struct model *m = r->model;
    struct meta_params p;
    struct tp_err unread;

    if (meta_params_read(&p, piece_source_path(r->source), piece_source_arena(r->source),
                         &unread) ||
        (p.heads == m->heads && p.head_dim == m->head_dim))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: has %lld heads of %lld, but config.json's model has %d of %lld; name "
                   "the config.json of this model with --config, or none",
                   p.path, (long long)p.heads, (long long)p.head_dim, m->heads,
                   (long long)m->head_dim);
}

/* A file too many is of another save, or the model is another one. */
static tp_status check_end(const struct meta_reader *r, struct tp_err *err)
{
    char name[META_NAME_BYTES];

    meta_rank_file(name, r->ranks);
    if (r->ranks < META_RANKS_MAX && object_is_in(piece_source_path(r->source), name))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: has %s, but the shapes in " META_FIRST " are those of %d file%s; are "
                       "files of two checkpoints in this folder?",
                       piece_source_path(r->source), name, r->ranks, r->ranks == 1 ? "" : "s");
    return TP_OK;
}

tp_status meta_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct meta_reader r = { .source = s, .model = m };
    tp_status st;

    if (m->family != MODEL_LLAMA && m->family != MODEL_MISTRAL)
        return tp_fail(err, TP_E_USAGE,
                       "%s: Meta's format is read for Llama and Mistral, and config.json is of "
                       "another model",
                       piece_source_path(s));
    r.crcs = arena_array(piece_source_arena(s), 2 * (size_t)m->layers, sizeof *r.crcs);
    if (!r.crcs)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(s));
    TP_TRY(meta_rank_first(&r.first, s, err));
    TP_TRY(check_heads(&r, err));
    TP_TRY(meta_rank_count(&r.ranks, &r.first, m->heads * m->head_dim, "config.json", err));
    TP_TRY(add_files(&r, err));
    TP_TRY(check_end(&r, err));
    for (int rank = 0; rank < r.ranks; rank++) {
        struct meta_rank from = r.first;

        if (rank > 0)
            TP_TRY(read_rank(&from, &r, rank, err));
        for (int i = 0; i < from.n; i++)
            TP_TRY(add_tensor(&r, rank, &from, i, err));
    }
done:
    return st;
}
