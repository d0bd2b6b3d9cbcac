/* reshard/formats/deepspeed/model_parallel.c - see reshard/formats/deepspeed/model_parallel.h. */
#include "reshard/formats/deepspeed/model_parallel.h"

#include <stdio.h>
#include <string.h>

#include "reshard/formats/deepspeed/layer_name.h"
#include "reshard/formats/deepspeed/parallel_param.h"
#include "reshard/formats/megatron/megatron_args.h"
#include "storage/object.h"

enum {
    NAME_ROOM = 64,
    KEY_ROOM = 512,
    DEPTH_MAX = 8,
    OTHER_MODULES_MAX = 64, /* before the layers, and after them: each is looked for */
};

static const char *path_of(const struct torch_pieces *x)
{
    return file_table_path(piece_source_files(x->source), x->file);
}

bool model_parallel_names(const struct deepspeed_state *d)
{
    for (int i = 0; i < d->n_params; i++)
        if (layer_name_is_qkv(d->params[i].plain))
            return true;
    return false;
}

bool model_parallel_is(const struct deepspeed_state *d)
{
    return !d->zero3 && !d->universal && (d->mp > 1 || model_parallel_names(d));
}

/* ---- what ranks say ---- */

static void rank_file(char name[DEEPSPEED_NAME_BYTES], int rank)
{
    snprintf(name, DEEPSPEED_NAME_BYTES, "mp_rank_%02d_model_states.pt", rank);
}

/* Open the model states of a model-parallel rank, which are of the same save as rank 0's. */
static tp_status open_rank(struct torch_pieces *x, const struct deepspeed_state *d, int rank,
                           struct tp_err *err)
{
    const char *const keys[] = { "dp_world_size", "mp_world_size", "global_steps" };
    const int64_t should[] = { d->dp, d->mp, d->steps };
    char name[DEEPSPEED_NAME_BYTES];
    tp_status st;

    *x = (struct torch_pieces){ .source = d->source };
    rank_file(name, rank);
    if (!object_is_in(d->dir, name))
        return tp_fail(err, TP_E_CORRUPT,
                       "%s/%s: no such file; there must be one for each of the %d model-parallel "
                       "ranks",
                       d->dir, name, d->mp);
    TP_TRY(deepspeed_state_open(x, d, name, err));
    for (int i = 0; i < 3; i++)
        TP_TRY(deepspeed_rank_check(x, keys[i], should[i], err));
done:
    return st;
}

static tp_status read_ranks(struct deepspeed_ranks *m, struct tp_err *err)
{
    const struct deepspeed_state *d = m->state;
    struct arena *arena = piece_source_arena(d->source);
    tp_status st = TP_OK;

    m->ranks = arena_array(arena, (size_t)d->mp, sizeof *m->ranks);
    if (!m->ranks)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for %d ranks", d->dir, d->mp);
    m->ranks[0] = (struct deepspeed_shapes){ d->params, d->n_params };
    for (int rank = 1; rank < d->mp && !st; rank++) {
        struct torch_pieces x;

        st = open_rank(&x, d, rank, err);
        if (!st)
            st = deepspeed_shapes_read(&m->ranks[rank], &x, "param_shapes", arena, err);
        m->has_weights |= !st && pickle_is(pickle_get(x.root, "module"), PICKLE_DICT);
        torch_pieces_close(&x);
    }
    return st;
}

static bool same_names(const struct deepspeed_shapes *a, const struct deepspeed_shapes *b)
{
    if (a->n != b->n)
        return false;
    for (int i = 0; i < a->n; i++)
        if (strcmp(a->list[i].name, b->list[i].name) != 0)
            return false;
    return true;
}

/* Each stage has other modules, so the ranks with those of rank 0 are the tensor-parallel ranks of
 * the first stage. */
static tp_status find_tp(struct deepspeed_ranks *m, struct tp_err *err)
{
    const int mp = m->state->mp;

    for (m->tp = 1; m->tp < mp && same_names(&m->ranks[m->tp], &m->ranks[0]);)
        m->tp++;
    for (int rank = 0; rank < mp; rank++)
        if (mp % m->tp || !same_names(&m->ranks[rank], &m->ranks[rank - rank % m->tp]))
            return tp_fail(err, TP_E_CORRUPT,
                           "%s/mp_rank_%02d_model_states.pt: has other parameters than rank %d, "
                           "but the two must be tensor-parallel ranks of a stage: %d of %d ranks "
                           "have those of rank 0",
                           m->state->dir, rank, rank - rank % m->tp, m->tp, mp);
    return TP_OK;
}

/* Whose names they are, which modules are layers, and the rows of the vocabulary. */
static tp_status read_names(struct deepspeed_ranks *m, const struct deepspeed_shapes *of, int n,
                            struct tp_err *err)
{
    const struct deepspeed_state *d = m->state;
    struct arena *arena = piece_source_arena(d->source);
    struct layer_name name;

    m->first_layer = -1;
    for (int rank = 0; rank < n; rank++)
        for (int i = 0; i < of[rank].n; i++) {
            const struct deepspeed_state_param *p = &of[rank].list[i];

            if (!layer_name_parse(&name, p->name, arena))
                continue;
            m->is_neox |= name.is_neox;
            if (name.module > m->last_module)
                m->last_module = name.module;
            if (megatron_map_is_vocabulary(name.core) && p->ndim == 2 &&
                p->shape[0] <= INT64_MAX / m->tp)
                m->rank.map.padded_vocab = p->shape[0] * m->tp;
            if (!name.of_layer)
                continue;
            if (m->first_layer < 0 || name.module < m->first_layer)
                m->first_layer = name.module;
            if (name.module > m->last_layer)
                m->last_layer = name.module;
        }
    if (m->first_layer >= 0)
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s: of DeepSpeed's models with tensor or pipeline parallelism those of GPT-NeoX "
        "and Megatron-DeepSpeed are read, but this has other names, as %s; DeepSpeed's "
        "ds_to_universal may convert it",
        d->dir, d->params[0].name);
}

/* ---- what the model says ---- */

/* Megatron has had other orders of the rows of query, key and value, which DeepSpeed's files of
 * before version 2.0 have. */
static tp_status check_version(const struct torch_pieces *x, struct tp_err *err)
{
    const struct pickle_value *v = pickle_get(x->root, "checkpoint_version");

    if (pickle_is(v, PICKLE_INT) ? v->number >= 2 : !pickle_is(v, PICKLE_FLOAT) || v->real >= 2)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "%s: has a checkpoint_version below 2.0, which is not read, because rows of "
                   "query, key and value had other orders then",
                   path_of(x));
}

static tp_status check_model(const struct deepspeed_ranks *m, struct tp_err *err)
{
    const struct deepspeed_state *d = m->state;
    const int layers = m->last_layer - m->first_layer + 1;

    if (!d->model || d->model->family == MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "%s: was saved with tensor or pipeline parallelism, so the model must be "
                       "known; name its config.json with --config",
                       d->dir);
    if (layers != d->model->layers)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has %d layer%s, but config.json's model has %d; is it the config.json "
                       "of another model?",
                       d->dir, layers, layers == 1 ? "" : "s", d->model->layers);
    if (m->first_layer > OTHER_MODULES_MAX || m->last_module - m->last_layer > OTHER_MODULES_MAX)
        return tp_fail(err, TP_E_CORRUPT,
                       "%s: its layers are modules %d to %d, and the last module is %d; these "
                       "programs have no more than a few modules beside the layers",
                       d->dir, m->first_layer, m->last_layer, m->last_module);
    return TP_OK;
}

void model_parallel_order(struct deepspeed_state *d, const struct pickle_value *root)
{
    const struct pickle_value *args = pickle_get(root, "args");

    if (pickle_get(args, "ds_sequence_parallel_fpdt") &&
        !deepspeed_state_count(&d->qkv_ranks, args, "tensor_model_parallel_size"))
        d->qkv_ranks = d->mp;
}

/* The ranks whose rows of query, key and value are not in groups of heads. The Megatron-DeepSpeed
 * that has them cannot compute with heads that share keys, so such weights were never trained, and
 * are what its converter makes of a model: groups. */
static tp_status find_qkv_ranks(struct deepspeed_ranks *m, struct tp_err *err)
{
    const struct model *model = m->state->model;
    const int64_t saved = m->state->universal ? m->state->qkv_ranks : m->tp;
    int64_t *n = &m->rank.map.qkv_ranks;

    if (m->is_neox)
        *n = model->kv_heads < model->heads ? m->tp : 0;
    else if (m->state->qkv_ranks > 0 && model->kv_heads == model->heads)
        *n = saved;
    if (*n == 0 || model->heads % *n == 0)
        return TP_OK;
    return tp_fail(err, TP_E_CORRUPT,
                   "%s: was saved by %lld tensor-parallel ranks, which do not divide the %d heads "
                   "of config.json's model",
                   m->state->dir, (long long)*n, model->heads);
}

static tp_status make_map(struct deepspeed_ranks *m, struct tp_err *err)
{
    struct deepspeed_state *d = m->state;
    const int64_t rows = m->rank.map.padded_vocab;
    tp_status st;

    m->rank.source = d->source;
    memcpy(m->rank.dir, d->dir, sizeof m->rank.dir);
    TP_TRY(megatron_map_make(&m->rank.map, d->model, piece_source_arena(d->source), err));
    m->rank.map.tp = m->tp;
    m->rank.map.is_neox = m->is_neox;
    TP_TRY(find_qkv_ranks(m, err));
    if (rows > 0) {
        m->rank.map.padded_vocab = rows;
        piece_source_set_vocab_rows(d->source, rows);
    }
    st = rank_copies_new(&m->copies, d->source, m->rank.map.n_params, m->tp, err);
done:
    return st;
}

/* ---- weights ---- */

static tp_status add_weight(struct deepspeed_ranks *m, struct torch_pieces *x, const char *key,
                            const struct pickle_value *v, struct tp_err *err)
{
    const char *name = arena_strdup(piece_source_arena(m->state->source), key);
    struct parallel_param is;
    struct piece p;
    tp_status st;

    if (!name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for the names of tensors", m->state->dir);
    TP_TRY(torch_pieces_tensor(&p, x, v, GROUP_PARAM, name, err));
    if (p.dtype == DTYPE_F16)
        piece_source_set_weights(m->state->source, DTYPE_F16);
    TP_TRY(parallel_param_find(&is, m, name, p.ndim, p.shape, err));
    st = parallel_param_add(m, &is, &p, err);
done:
    return st;
}

/* A state dict; Megatron-DeepSpeed's has others in it. */
static tp_status add_weights(struct deepspeed_ranks *m, struct torch_pieces *x, const char *head,
                             const struct pickle_value *dict, int depth, struct tp_err *err)
{
    char name[KEY_ROOM];
    tp_status st = TP_OK;

    for (int64_t i = 0; i < pickle_entries(dict) && depth < DEPTH_MAX && !st; i++) {
        const struct pickle_value *v = pickle_entry(dict, i);
        const char *key = pickle_text(pickle_key(dict, i));

        if (!key || snprintf(name, sizeof name, "%s%s", head, key) >= KEY_ROOM - 1)
            continue;
        if (torch_tensor_is(v)) {
            st = strstr(name, "_extra_state") ? TP_OK : add_weight(m, x, name, v, err);
        } else if (pickle_is(v, PICKLE_DICT)) {
            memcpy(name + strlen(name), ".", sizeof ".");
            st = add_weights(m, x, name, v, depth + 1, err);
        }
    }
    return st;
}

/* Whether a parameter of any rank is of this module; its tied ones have no number. */
static bool has_module(const struct deepspeed_ranks *m, int module)
{
    struct layer_name name;
    struct arena arena = { 0 };
    bool found = false;

    for (int rank = 0; rank < m->state->mp && !found; rank += m->tp)
        for (int i = 0; i < m->ranks[rank].n && !found; i++)
            found = layer_name_parse(&name, m->ranks[rank].list[i].name, &arena) &&
                    name.module == module;
    arena_free(&arena);
    return found;
}

/* Add the weights of a module of the pipeline. *seen: one before it has the embedding. */
static tp_status add_module(struct deepspeed_ranks *m, int module, bool *seen, struct tp_err *err)
{
    const struct deepspeed_state *d = m->state;
    const bool must = has_module(m, module);
    char name[NAME_ROOM], head[NAME_ROOM];
    tp_status st = TP_OK;

    snprintf(head, sizeof head, "%d.", module);
    m->rank.pp_rank = *seen;
    for (int rank = 0; rank < m->tp && !st; rank++) {
        struct torch_pieces x = { .source = d->source };

        snprintf(name, sizeof name, "layer_%02d-model_%02d-model_states.pt", module, rank);
        if (!object_is_in(d->dir, name)) {
            if (rank == 0 && !must)
                return TP_OK;
            return tp_fail(err, TP_E_CORRUPT,
                           "%s/%s: no such file; each module has one for each of %d "
                           "tensor-parallel ranks",
                           d->dir, name, m->tp);
        }
        m->rank.tp_rank = rank;
        st = deepspeed_state_open(&x, d, name, err);
        *seen |= !st && pickle_get(x.root, "word_embeddings.weight");
        if (!st)
            st = add_weights(m, &x, head, x.root, 0, err);
        torch_pieces_close(&x);
    }
    return st;
}

/* ---- all ranks ---- */

/* Make `rank` the one whose parameters are added. */
static tp_status choose_rank(struct deepspeed_ranks *m, struct deepspeed_state *of, int rank,
                             struct tp_err *err)
{
    tp_status st;

    *of = *m->state;
    of->mp_rank = rank;
    of->parallel = m;
    m->rank.tp_rank = rank % m->tp;
    m->rank.pp_rank = rank / m->tp;
    TP_TRY(deepspeed_shapes_take(of, &m->ranks[rank], err));
    m->params =
        arena_array(piece_source_arena(of->source), (size_t)of->n_params + 1, sizeof *m->params);
    if (!m->params)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", of->dir);
    for (int i = 0; i < of->n_params; i++)
        TP_TRY(parallel_param_find(&m->params[i], m, of->params[i].name, of->params[i].ndim,
                                   of->params[i].shape, err));
done:
    return st;
}

/* Add the weights of a rank that are in its model states, if any are. *found: they are. */
static tp_status add_rank_weights(struct deepspeed_ranks *m, const struct deepspeed_state *of,
                                  bool *found, struct tp_err *err)
{
    struct torch_pieces x;
    const struct pickle_value *module;
    tp_status st;

    TP_TRY(open_rank(&x, of, of->mp_rank, err));
    if (of->mp_rank == 0) {
        /* GPT-NeoX has a dict of some, Megatron-DeepSpeed an object */
        TP_TRY(megatron_args_check(pickle_get(x.root, "args"), m->state->model, path_of(&x), err));
        TP_TRY(check_version(&x, err));
    }
    module = pickle_get(x.root, "module");
    *found |= pickle_is(module, PICKLE_DICT);
    st = add_weights(m, &x, "", module, 0, err);
done:
    torch_pieces_close(&x);
    return st;
}

/* Weights alone, as they are published; or the optimizer is in the model states. */
static void refuse_optimizer(const struct deepspeed_ranks *m)
{
    struct tp_err why = { 0 };

    tp_fail(&why, TP_E_NOTFOUND,
            "%s: has no files of ZeRO's optimizer (zero_pp_rank_0_mp_rank_00_optim_states.pt), and "
            "that of a program without ZeRO is not read",
            m->state->dir);
    piece_source_refuse_state(m->state->source, &why);
}

static tp_status add_ranks(struct deepspeed_ranks *m, struct tp_err *err)
{
    const bool has_optimizer = deepspeed_zero_is_in(m->state->dir);
    struct deepspeed_state of;
    bool found = false, seen = false;
    tp_status st = TP_OK;

    if (!has_optimizer)
        refuse_optimizer(m);
    for (int rank = 0; rank < m->state->mp && !st; rank++) {
        st = choose_rank(m, &of, rank, err);
        if (!st && (rank == 0 || m->has_weights))
            st = add_rank_weights(m, &of, &found, err);
        if (!st && has_optimizer)
            st = deepspeed_zero_add(&of, err);
    }
    for (int module = 0; module <= m->last_module && !found && !st; module++)
        st = add_module(m, module, &seen, err);
    return st ? st : rank_copies_finish(m->copies, err);
}

tp_status model_parallel_read(struct deepspeed_state *d, struct tp_err *err)
{
    struct deepspeed_ranks m = { .state = d };
    tp_status st;

    TP_TRY(read_ranks(&m, err));
    TP_TRY(find_tp(&m, err));
    TP_TRY(read_names(&m, m.ranks, d->mp, err));
    TP_TRY(check_model(&m, err));
    TP_TRY(make_map(&m, err));
    st = add_ranks(&m, err);
done:
    return st;
}

tp_status model_parallel_open_universal(struct deepspeed_state *d, struct tp_err *err)
{
    const struct deepspeed_shapes all = { d->params, d->n_params };
    struct deepspeed_ranks *m = arena_array(piece_source_arena(d->source), 1, sizeof *m);
    tp_status st;

    if (!m)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory for its parameters", d->dir);
    if (!model_parallel_names(d) || !d->model || d->model->family == MODEL_OF_RULES)
        return TP_OK;
    *m = (struct deepspeed_ranks){ .state = d, .tp = 1 };
    TP_TRY(read_names(m, &all, 1, err));
    TP_TRY(check_model(m, err));
    m->rank.map.padded_vocab = 0;
    TP_TRY(make_map(m, err));
    d->parallel = m;
done:
    return st;
}
