/* reshard/formats/deepspeed/parallel_param.c - see reshard/formats/deepspeed/parallel_param.h. */
#include "reshard/formats/deepspeed/parallel_param.h"

#include <string.h>

#include "reshard/formats/deepspeed/layer_name.h"
#include "reshard/formats/pieces/flat_pieces.h"

/* Whether it is the embedding, or positions, which a stage after the first has again. */
static bool is_embedding(const char *core)
{
    return strncmp(core, "embedding.", strlen("embedding.")) == 0;
}

/* Whether each tensor-parallel rank has all of the model's tensor. */
static bool is_whole(const struct megatron_rank_param *p)
{
    const struct tensor *t = p->rows[0].tensor;
    const struct box whole = box_whole(t->ndim, t->shape);

    return !megatron_map_is_vocabulary(p->name) && p->n_rows == 1 &&
           megatron_rank_elements(p) == box_elements(&whole);
}

/* p->rows has the first tensor of the model that it should have rows of, if any. */
static tp_status refuse_shape(const struct deepspeed_ranks *m, const char *name,
                              const struct megatron_rank_param *p, struct tp_err *err)
{
    const struct tensor *t = p->n_rows > 0 ? p->rows[0].tensor : NULL;
    char is[BOX_TEXT_MAX], whole[BOX_TEXT_MAX];

    return tp_fail(err, TP_E_CORRUPT,
                   "%s: tensor %s of tensor-parallel rank %d of %d has another shape than "
                   "config.json's model says: it is %s, and %s is %s before it is cut",
                   m->state->dir, name, m->rank.tp_rank, m->tp,
                   box_format_shape(is, sizeof is, p->ndim, p->shape), t ? t->name : "the model's",
                   t ? box_format_shape(whole, sizeof whole, t->ndim, t->shape) : "another");
}

tp_status parallel_param_find(struct parallel_param *out, struct deepspeed_ranks *m,
                              const char *name, int ndim, const int64_t *shape, struct tp_err *err)
{
    struct megatron_rank_param *p = &out->param;
    struct megatron_map *map = &m->rank.map;
    enum megatron_found found;
    struct layer_name parsed;
    int layer;

    *out = (struct parallel_param){ .kind = PARALLEL_UNKNOWN };
    if (!layer_name_parse(&parsed, name, piece_source_arena(m->state->source)) || ndim < 1 ||
        ndim > 2)
        return TP_OK;
    layer = parsed.of_layer ? parsed.module - m->first_layer : -1;
    if (layer >= map->model->layers)
        return TP_OK;
    p->name = parsed.core;
    p->ndim = ndim;
    memcpy(p->shape, shape, (size_t)ndim * sizeof *shape);
    found = megatron_map_find_own(&p->rows, &p->n_rows, map, parsed.core, layer, m->rank.tp_rank);
    if (found == MEGATRON_COPY && m->rank.tp_rank > 0)
        found = megatron_map_find(&p->rows, &p->n_rows, map, parsed.core, layer, 0);
    if (!p->rows)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for the rows of its tensors", m->state->dir);
    if (found == MEGATRON_UNKNOWN)
        return TP_OK;
    out->kind = PARALLEL_SHARED;
    if (m->rank.pp_rank > 0 && is_embedding(parsed.core))
        return TP_OK;
    if (!megatron_rank_fits(&m->rank, p))
        return refuse_shape(m, name, p, err);
    out->kind = m->tp > 1 && p->n_rows > 0 && is_whole(p) ? PARALLEL_COPY : PARALLEL_PART;
    return TP_OK;
}

/* GPT-NeoX with parallel blocks adds the biases before it sums up what ranks have computed. */
static enum rank_copies_rule rule_of(const struct deepspeed_ranks *m,
                                     const struct megatron_rank_param *p, const char *group)
{
    const bool is_bias = strcmp(p->name, "self_attention.linear_proj.bias") == 0 ||
                         strcmp(p->name, "mlp.linear_fc2.bias") == 0;
    const bool is_moment =
        strcmp(group, GROUP_EXP_AVG) == 0 || strcmp(group, GROUP_EXP_AVG_SQ) == 0;

    return m->is_neox && m->rank.map.model->parallel_residual && is_bias && !is_moment
               ? RANK_COPIES_SUM
               : RANK_COPIES_MEAN;
}

static tp_status add_copy(const struct deepspeed_ranks *m, const struct megatron_rank_param *p,
                          const struct piece *from, int64_t first, int64_t n, struct tp_err *err)
{
    const struct tensor *t = p->rows[0].tensor;
    struct piece whole = *from;

    whole.name = t->name;
    whole.ndim = t->ndim;
    memcpy(whole.shape, t->shape, sizeof whole.shape);
    whole.box = box_whole(whole.ndim, whole.shape);
    return rank_copies_add(m->copies,
                           &(struct rank_copies_of){ (int)(t - m->rank.map.params), m->rank.tp_rank,
                                                     rule_of(m, p, from->group) },
                           &whole, first, n, err);
}

tp_status parallel_param_add_interval(const struct deepspeed_state *d,
                                      const struct deepspeed_state_param *param,
                                      const struct piece *p, int64_t first, int64_t n,
                                      struct tp_err *err)
{
    struct deepspeed_ranks *m = d->parallel;
    const struct parallel_param *is = &m->params[param - d->params];

    switch (is->kind) {
    case PARALLEL_PART:
        return megatron_rank_add(&m->rank, &is->param, p, first, n, err);
    case PARALLEL_COPY:
        return add_copy(m, &is->param, p, first, n, err);
    case PARALLEL_UNKNOWN: /* the import decides: it may be left out on purpose */
        return m->rank.tp_rank > 0 ? TP_OK : flat_pieces_add(d->source, NULL, p, first, n, err);
    default:
        return TP_OK;
    }
}

tp_status parallel_param_add(struct deepspeed_ranks *m, const struct parallel_param *is,
                             const struct piece *p, struct tp_err *err)
{
    if (is->kind == PARALLEL_PART)
        return megatron_rank_add_tensor(&m->rank, &is->param, p, err);
    if (is->kind == PARALLEL_UNKNOWN)
        return m->rank.tp_rank > 0 ? TP_OK : piece_source_add(m->state->source, p, err);
    if (is->kind == PARALLEL_SHARED)
        return TP_OK;
    if (!flat_pieces_is_dense(p))
        return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is not stored row by row",
                       file_table_path(piece_source_files(m->state->source), p->file), p->name);
    return add_copy(m, &is->param, p, 0, box_elements(&p->box), err);
}

tp_status parallel_param_add_whole(const struct deepspeed_state *d,
                                   const struct deepspeed_state_param *param, const struct piece *p,
                                   struct tp_err *err)
{
    struct parallel_param is;
    tp_status st = parallel_param_find(&is, d->parallel, param->name, p->ndim, p->shape, err);

    return st ? st : parallel_param_add(d->parallel, &is, p, err);
}
