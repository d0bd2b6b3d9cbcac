/* reshard/formats/vllm/vllm_target.c - writes vLLM's sharded state; see
 * reshard/formats/vllm/vllm.h.
 */
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_tensors.h"
#include "reshard/formats/pieces/piece_target.h"
#include "reshard/formats/safetensors/safetensors.h"
#include "reshard/formats/vllm/vllm.h"
#include "reshard/formats/vllm/vllm_map.h"

struct vllm_target {
    const struct export_contents *q;
    struct piece_target *pieces;
    struct vllm_rank rank; /* that is written */
    const struct vllm_param *list;
    struct safetensors_tensor *tensors; /* [n] */
    int n;
};

/* The number of a tensor of the model in the target; -1: it is missing. */
static int number_of(const struct vllm_target *t, const struct tensor *tensor)
{
    return layout_find(t->q->layout, GROUP_PARAM, tensor->name);
}

/* What the file says of a tensor of vLLM's, whose parts have one type. */
static tp_status describe(struct safetensors_tensor *out, const struct vllm_target *t,
                          const struct vllm_param *p, struct tp_err *err)
{
    *out = (struct safetensors_tensor){ .name = p->name, .dtype = DTYPE_F32, .ndim = p->ndim };
    memcpy(out->shape, p->shape, sizeof p->shape);
    for (int i = 0; i < p->n_parts; i++) {
        const int number = number_of(t, p->parts[i].tensor);
        const enum dtype dtype = number < 0 ? DTYPE_COUNT : t->q->tensors[number].dtype;

        if (number < 0)
            return tp_fail(err, TP_E_USAGE,
                           "%s: has no %s, and vLLM needs all tensors; the checkpoint is not "
                           "complete",
                           t->q->source, p->parts[i].tensor->name);
        if (i > 0 && dtype != out->dtype)
            return tp_fail(err, TP_E_USAGE,
                           "%s: %s is %s and %s is %s, but in vLLM they are one tensor; add "
                           "--dtype",
                           t->q->source, p->parts[0].tensor->name, dtype_name(out->dtype),
                           p->parts[i].tensor->name, dtype_name(dtype));
        out->dtype = dtype;
    }
    return TP_OK;
}

/* A scale is 1. */
static tp_status write_scale(struct vllm_target *t, int file, int64_t begin, struct tp_err *err)
{
    const float one = 1;
    struct file_part part;
    tp_status st = piece_target_use(t->pieces, file, &part, err);

    if (st)
        return st;
    st = file_write_at(part.object.fd, part.path, begin, &one, sizeof one, err);
    piece_target_release(t->pieces, file);
    return st;
}

/* Where a tensor's parts go that begins at this byte. */
static tp_status place(struct vllm_target *t, int i, int file, int64_t begin, struct tp_err *err)
{
    const struct vllm_param *p = &t->list[i];
    const int64_t bytes = dtype_bytes(t->tensors[i].dtype);
    tp_status st = p->n_parts ? TP_OK : write_scale(t, file, begin, err);

    for (int k = 0; k < p->n_parts && !st; k++) {
        const struct vllm_part *part = &p->parts[k];
        const struct piece_place to = { .tensor = number_of(t, part->tensor),
                                        .box = part->box,
                                        .file = file,
                                        .begin = begin + part->at * bytes,
                                        .transposed = part->transposed };

        st = piece_target_add(t->pieces, &to, err);
    }
    return st;
}

/* Write what is around tensors first .. end - 1 of the rank's list, and place them. */
static tp_status write_part(struct vllm_target *t, int part, int first, int end, struct tp_err *err)
{
    char name[VLLM_FILE_MAX];
    int64_t *begins =
        arena_array(piece_target_arena(t->pieces), (size_t)(end - first) + 1, sizeof *begins);
    int file;
    tp_status st;

    if (!begins)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
    st = piece_target_file(t->pieces, &file, vllm_file_name(name, t->rank.tp_rank, part), err);
    if (!st)
        st = safetensors_begin_file(t->pieces, file, t->tensors + first, end - first, begins, err);
    for (int i = first; i < end && !st; i++)
        st = place(t, i, file, begins[i - first], err);
    return st;
}

/* Write the files of t->rank: parts of at most max_shard_bytes, or of one larger tensor. */
static tp_status write_rank(struct vllm_target *t, struct tp_err *err)
{
    const int64_t most = t->q->max_shard_bytes;
    struct arena *arena = piece_target_arena(t->pieces);
    struct vllm_param *list;
    int part = 0, first = 0;
    int64_t used = 0;
    tp_status st = vllm_map_list(&list, &t->n, &t->rank, arena, err);

    if (st)
        return st;
    t->list = list;
    t->tensors = arena_array(arena, (size_t)t->n + 1, sizeof *t->tensors);
    if (!t->tensors)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", t->q->dir);
    for (int i = 0; i < t->n && !st; i++) {
        int64_t bytes;

        st = describe(&t->tensors[i], t, &t->list[i], err);
        bytes = t->list[i].shape[0] * t->list[i].shape[1] * dtype_bytes(t->tensors[i].dtype);
        if (!st && most > 0 && used > 0 && used + bytes > most) {
            st = write_part(t, part++, first, i, err);
            first = i;
            used = 0;
        }
        used += bytes;
    }
    return st ? st : write_part(t, part, first, t->n, err);
}

tp_status vllm_export_create(struct export_writer *w, const struct export_contents *q,
                             struct tp_err *err)
{
    struct vllm_target t = { .q = q };
    struct tensor *params;
    tp_status st;

    TP_TRY(vllm_map_check_model(q->model, q->source, err));
    TP_TRY(piece_target_new(&t.pieces, q->dir, q->tensors, q->n, err));
    t.rank = (struct vllm_rank){ .model = q->model, .tp = q->layout->spec.tp };
    TP_TRY(model_params(&params, &t.rank.n_params, q->model, DTYPE_F32,
                        piece_target_arena(t.pieces), err));
    t.rank.params = params;
    for (int r = 0; r < t.rank.tp; r++) {
        t.rank.tp_rank = r;
        TP_TRY(write_rank(&t, err));
    }
    TP_TRY(piece_target_plan(t.pieces, err));
    *w = piece_target_writer(t.pieces);
    t.pieces = NULL;
done:
    piece_target_close(t.pieces);
    return st;
}
