/* reshard/formats/vllm/vllm.c - reads vLLM's sharded state; see reshard/formats/vllm/vllm.h. */
#include "reshard/formats/vllm/vllm.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_tensors.h"
#include "reshard/formats/pieces/flat_pieces.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/vllm/vllm_map.h"
#include "storage/object.h"

/* Of jobs with pp or ep: such a folder is known, and refused. */
#define FIRST_OF_STAGES "model-pp-0-tp-0-part-0.safetensors"

char *vllm_file_name(char buf[VLLM_FILE_MAX], int tp_rank, int part)
{
    snprintf(buf, VLLM_FILE_MAX, "model-rank-%d-part-%d.safetensors", tp_rank, part);
    return buf;
}

bool vllm_detect(const char *path)
{
    char name[VLLM_FILE_MAX];

    return object_is_in(path, vllm_file_name(name, 0, 0)) || object_is_in(path, FIRST_OF_STAGES);
}

struct vllm_reader {
    struct piece_source *source;
    struct vllm_rank rank; /* that is read; tp is 0 until it is known */
    struct vllm_param *list;
    bool *found; /* [n] */
    int n;
};

/* ---- tensors ---- */

/* Add the parts of a tensor that no lower rank has. */
static tp_status add_parts(struct vllm_reader *r, const struct vllm_param *p,
                           const struct piece *whole, struct tp_err *err)
{
    tp_status st = TP_OK;

    for (int i = 0; i < p->n_parts && !st; i++) {
        const struct vllm_part *part = &p->parts[i];
        struct piece piece = *whole;

        if (part->copy)
            continue;
        piece.name = part->tensor->name;
        piece.ndim = part->tensor->ndim;
        memcpy(piece.shape, part->tensor->shape, sizeof piece.shape);
        piece.box = part->box;
        piece.begin += part->at * dtype_bytes(whole->dtype);
        piece.stride[0] = part->transposed ? 1 : part->stride;
        piece.stride[1] = part->transposed ? part->stride : 1;
        st = piece_source_add(r->source, &piece, err);
    }
    return st;
}

/* A tensor that vLLM does not have, of which the first rank's is enough. */
static tp_status add_unknown(struct vllm_reader *r, const struct safetensors_tensor *t,
                             const struct piece *whole, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(r->source);
    struct piece piece = *whole;

    piece.name = r->rank.tp_rank ? arena_printf(arena, "%s of rank %d", t->name, r->rank.tp_rank)
                                 : arena_strdup(arena, t->name);
    if (!piece.name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index",
                       piece_source_path(r->source));
    piece.ndim = t->ndim;
    memcpy(piece.shape, t->shape, sizeof piece.shape);
    piece.box = box_whole(t->ndim, t->shape);
    flat_pieces_strides(piece.stride, &piece.box);
    return piece_source_add(r->source, &piece, err);
}

/* A scale that is not 1 is of a quantized cache, and stays behind. */
static tp_status look_at_scale(struct vllm_reader *r, const struct safetensors_tensor *t,
                               const struct piece *whole, struct tp_err *err)
{
    float scale = 0;
    tp_status st = TP_OK;

    if (t->dtype == DTYPE_F32)
        st = file_table_read(piece_source_files(r->source), whole->file, whole->begin, &scale,
                             sizeof scale, err);
    return st || scale == 1 ? st : piece_source_leave(r->source, t->name, err);
}

static tp_status add_tensor(struct vllm_reader *r, const struct safetensors_tensor *t,
                            const struct piece *whole, struct tp_err *err)
{
    const struct model *m = r->rank.model;
    const struct vllm_param *p = vllm_map_find(r->list, r->n, m, t->name);
    const int64_t shape[] = { p ? p->shape[0] : 0, p ? p->shape[1] : 0 };
    char want[BOX_TEXT_MAX], has[BOX_TEXT_MAX];

    if (!p)
        return add_unknown(r, t, whole, err);
    if (t->ndim != p->ndim || memcmp(t->shape, shape, (size_t)p->ndim * sizeof *shape) != 0)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: tensor %s is %s, but config.json's model has %s on rank %d of tp%d",
                       file_table_path(piece_source_files(r->source), whole->file), t->name,
                       box_format_shape(has, sizeof has, t->ndim, t->shape),
                       box_format_shape(want, sizeof want, p->ndim, shape), r->rank.tp_rank,
                       r->rank.tp);
    if (r->found[p - r->list])
        return tp_fail(err, TP_E_CORRUPT, "%s: rank %d has tensor %s twice%s",
                       file_table_path(piece_source_files(r->source), whole->file), r->rank.tp_rank,
                       t->name,
                       m->tied && vllm_map_is_embedding(m, t->name)
                           ? ", as the embedding and as the head, which are one because "
                             "config.json says \"tie_word_embeddings\" true (or leaves it out)"
                           : "");
    r->found[p - r->list] = true;
    return p->n_parts ? add_parts(r, p, whole, err) : look_at_scale(r, t, whole, err);
}

/* ---- files ---- */

/* The first file of a rank. */
static tp_status missing(const struct vllm_reader *r, const char *path, struct tp_err *err)
{
    if (r->rank.tp == 0)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: is missing, the first file of vLLM's sharded state; files of vLLM's "
                       "jobs with pp or ep (model-pp-P-tp-T-part-N.safetensors) are not read",
                       path);
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: is missing; the rows of rank 0's embedding say that the folder is of tp%d",
                   path, r->rank.tp);
}

/* A rank too many is of another folder. */
static tp_status check_end(const struct vllm_reader *r, struct tp_err *err)
{
    char name[VLLM_FILE_MAX];

    if (!object_is_in(piece_source_path(r->source), vllm_file_name(name, r->rank.tp, 0)))
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: has %s, but the rows of rank 0's embedding say that the folder is of tp%d; "
                   "are files of two folders in this one?",
                   piece_source_path(r->source), name, r->rank.tp);
}

/* Call `use` with each part of the rank. TP_E_NOTFOUND: there is none. */
static tp_status each_part(struct vllm_reader *r,
                           tp_status (*use)(struct vllm_reader *r, struct safetensors_source *from,
                                            struct tp_err *err),
                           struct tp_err *err)
{
    char name[VLLM_FILE_MAX], path[PATH_MAX];
    struct safetensors_source *from = NULL;
    bool more = true;
    tp_status st = TP_OK;

    for (int part = 0; !st; part++) {
        TP_TRY(file_join(path, piece_source_path(r->source),
                         vllm_file_name(name, r->rank.tp_rank, part), err));
        TP_TRY(object_exists(&more, path, err));
        if (!more && part == 0)
            st = missing(r, path, err);
        if (!more)
            break;
        TP_TRY(safetensors_open(&from, path, err));
        st = use(r, from, err);
        safetensors_source_close(from);
        from = NULL;
    }
done:
    return st;
}

/* Take the number of ranks from the rows of the embedding, if this part has it. */
static tp_status count_ranks(struct vllm_reader *r, struct safetensors_source *from,
                             struct tp_err *err)
{
    const struct model *m = r->rank.model;
    const int64_t padded = vllm_map_padded_vocab(m);

    for (int i = 0; i < safetensors_count(from); i++) {
        const struct safetensors_tensor *t = safetensors_tensor_at(from, i);

        if (!vllm_map_is_embedding(m, t->name))
            continue;
        if (t->ndim != 2 || t->shape[0] < 1 || padded % t->shape[0] != 0 ||
            padded / t->shape[0] > INT_MAX)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s has %lld rows, which do not divide the %lld rows of "
                           "config.json's vocabulary with vLLM's padding",
                           safetensors_path(from), t->name, (long long)t->shape[0],
                           (long long)padded);
        r->rank.tp = (int)(padded / t->shape[0]);
    }
    return TP_OK;
}

static tp_status add_part(struct vllm_reader *r, struct safetensors_source *from,
                          struct tp_err *err)
{
    struct piece whole = { .group = GROUP_PARAM };
    tp_status st =
        file_table_add(piece_source_files(r->source), &whole.file, safetensors_path(from), err);

    for (int i = 0; i < safetensors_count(from) && !st; i++) {
        const struct safetensors_tensor *t = safetensors_tensor_at(from, i);

        whole.dtype = t->dtype;
        safetensors_place(from, i, &whole.begin);
        st = add_tensor(r, t, &whole, err);
    }
    return st;
}

/* ---- ranks ---- */

static tp_status read_rank(struct vllm_reader *r, struct tp_err *err)
{
    struct arena *arena = piece_source_arena(r->source);
    tp_status st = vllm_map_list(&r->list, &r->n, &r->rank, arena, err);

    if (st)
        return tp_fail_in(err, "%s", piece_source_path(r->source));
    r->found = arena_array(arena, (size_t)r->n + 1, sizeof *r->found);
    if (!r->found)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index",
                       piece_source_path(r->source));
    st = each_part(r, add_part, err);
    for (int i = 0; i < r->n && !st; i++)
        if (!r->found[i] && r->list[i].n_parts > 0) /* earlier versions of vLLM have fewer scales */
            st = tp_fail(err, TP_E_CORRUPT,
                         "%s: the files of rank %d lack tensor %s, which vLLM has of config.json's "
                         "model; is a part missing?",
                         piece_source_path(r->source), r->rank.tp_rank, r->list[i].name);
    return st;
}

tp_status vllm_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct vllm_reader r = { .source = s, .rank = { .model = m } };
    struct tensor *params;
    tp_status st;

    TP_TRY(vllm_map_check_model(m, piece_source_path(s), err));
    TP_TRY(model_params(&params, &r.rank.n_params, m, DTYPE_F32, piece_source_arena(s), err));
    r.rank.params = params;
    TP_TRY(each_part(&r, count_ranks, err));
    if (r.rank.tp == 0) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: the files of rank 0 lack tensor %s",
                     piece_source_path(s), vllm_map_embedding(m));
        goto done;
    }
    TP_TRY(check_end(&r, err));
    for (; r.rank.tp_rank < r.rank.tp; r.rank.tp_rank++)
        TP_TRY(read_rank(&r, err));
done:
    return st;
}
