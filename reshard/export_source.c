/* reshard/export_source.c - see reshard/export_source.h. */
#include "reshard/export_source.h"

#include <jansson.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_config.h"
#include "layout/model_tensors.h"
#include "reshard/formats/foreign.h"
#include "reshard/memory_budget.h"
#include "torch/torch_save.h"

enum { LATER_BYTES = 4 << 20 }; /* becomes resident later, whatever the tables are */

static tp_status no_memory(const struct export_source *s, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", s->path);
}

/* ---- a checkpoint ---- */

/* The checkpoint must have every tensor of its model, with the model's shape. */
static tp_status check_complete(const struct export_source *s, struct arena *arena,
                                struct tp_err *err)
{
    const struct layout *l = &s->found.manifest.layout;
    struct tensor *want;
    int n;
    tp_status st = model_params(&want, &n, &s->model, DTYPE_F32, arena, err);

    for (int i = 0; i < n && !st; i++) {
        int at = layout_find(l, GROUP_PARAM, want[i].name);
        struct box box = box_whole(want[i].ndim, want[i].shape), found;
        char a[BOX_TEXT_MAX], b[BOX_TEXT_MAX];

        if (at < 0)
            return tp_fail(err, TP_E_CORRUPT,
                           "%s: tensor %s of its model is missing; a model that was trained with "
                           "--plan under other names cannot be exported, because transformers "
                           "expects the usual names",
                           s->path, want[i].name);
        found = box_whole(l->tensors[at].ndim, l->tensors[at].shape);
        if (!box_equal(&box, &found))
            return tp_fail(err, TP_E_CORRUPT, "%s: tensor %s is %s, but its model has %s", s->path,
                           want[i].name, box_format(a, &found), box_format(b, &box));
    }
    return st;
}

/* Whether the checkpoint has both moments of a weight. Those of others, which are not trained, may
 * be missing. */
static bool has_moments(const struct layout *l)
{
    bool found = false;

    for (int i = 0; i < l->n_tensors && !found; i++)
        found = strcmp(l->tensors[i].group, GROUP_PARAM) == 0 &&
                layout_find(l, GROUP_EXP_AVG, l->tensors[i].name) >= 0 &&
                layout_find(l, GROUP_EXP_AVG_SQ, l->tensors[i].name) >= 0;
    return found;
}

/* Whether tensors of a group are written: in `state`, what there is of the optimizer. */
static bool is_written(const char *group, enum export_state state)
{
    if (strcmp(group, GROUP_PARAM) == 0)
        return true;
    if (strcmp(group, GROUP_MASTER) == 0)
        return state == EXPORT_MASTERS;
    return state != EXPORT_WEIGHTS &&
           (strcmp(group, GROUP_EXP_AVG) == 0 || strcmp(group, GROUP_EXP_AVG_SQ) == 0);
}

/* Whether it is a master whose weight is written in f32, and so needs none. */
static bool is_own_master(const struct tensor *t, const struct export_request *q)
{
    return q->dtype && *q->dtype == DTYPE_F32 && strcmp(t->group, GROUP_MASTER) == 0;
}

/* The type of a tensor in the export. Weights that are their own masters are written in f32. */
static enum dtype written_dtype(const struct tensor *t, const struct layout *l,
                                const struct export_request *q, enum export_state state)
{
    const bool param = strcmp(t->group, GROUP_PARAM) == 0;

    if (param && q->dtype && dtype_is_float(t->dtype))
        return *q->dtype;
    if (param && state == EXPORT_MOMENTS && layout_find(l, GROUP_MASTER, t->name) >= 0)
        return DTYPE_F32;
    return t->dtype;
}

/* The tensor of the checkpoint from which tensor `id` is read: its master when f32 is wanted. */
static int source_of(const struct layout *l, int id, enum dtype dtype)
{
    const struct tensor *t = &l->tensors[id];
    int master = dtype == DTYPE_F32 && t->dtype != DTYPE_F32 && strcmp(t->group, GROUP_PARAM) == 0
                     ? layout_find(l, GROUP_MASTER, t->name)
                     : -1;

    return master >= 0 ? master : id;
}

/* Choose the tensors to write, and ids[i], from which tensor i is read. */
static tp_status choose_tensors(struct export_source *s, int **ids, const struct export_request *q,
                                enum export_state state, struct arena *arena, struct tp_err *err)
{
    const struct layout *l = &s->found.manifest.layout;
    struct tensor *tensors = arena_array(arena, (size_t)l->n_tensors + 1, sizeof *tensors);
    int n = 0;

    *ids = arena_array(arena, (size_t)l->n_tensors + 1, sizeof **ids);
    if (!tensors || !*ids)
        return no_memory(s, err);
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];

        if (!is_written(t->group, state) || is_own_master(t, q))
            continue;
        tensors[n] = *t;
        tensors[n].dtype = written_dtype(t, l, q, state);
        (*ids)[n] = source_of(l, i, tensors[n].dtype);
        n++;
    }
    s->layout.tensors = tensors;
    s->layout.n_tensors = n;
    s->layout.by_name = NULL;
    return TP_OK;
}

/* The tensors as the engine sees them. Names have their group when there are several. */
static tp_status make_transferred(struct export_source *s, enum export_state state,
                                  struct arena *arena, struct tp_err *err)
{
    const struct layout *l = &s->layout;

    s->transferred = arena_array(arena, (size_t)l->n_tensors + 1, sizeof *s->transferred);
    if (!s->transferred)
        return no_memory(s, err);
    for (int i = 0; i < l->n_tensors; i++) {
        const struct tensor *t = &l->tensors[i];

        s->transferred[i] =
            (struct reshard_tensor){ .name = state == EXPORT_WEIGHTS
                                                 ? t->name
                                                 : arena_printf(arena, "%s/%s", t->group, t->name),
                                     .ndim = t->ndim };
        memcpy(s->transferred[i].shape, t->shape, sizeof t->shape);
        if (!s->transferred[i].name)
            return no_memory(s, err);
    }
    return TP_OK;
}

/* The trainer's options, where the checkpoint has them. */
static void read_adamw(struct export_adamw *a, const char *options)
{
    json_t *root = options ? json_loads(options, 0, NULL) : NULL;
    const struct {
        const char *key;
        double *value;
    } fields[] = { { "lr", &a->lr },
                   { "beta1", &a->beta1 },
                   { "beta2", &a->beta2 },
                   { "eps", &a->eps },
                   { "weight_decay", &a->weight_decay } };

    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++) {
        const json_t *v = json_object_get(root, fields[i].key);

        if (json_is_number(v))
            *fields[i].value = json_number_value(v);
    }
    json_decref(root);
}

/* The steps that AdamW has counted. The Python package lists them where they are not those since
 * optimizer_start: "*" is that of all parameters but those that are named. */
static tp_status read_optimizer_step(struct export_source *s, struct tp_err *err)
{
    const struct manifest *m = &s->found.manifest;
    json_t *root = m->state.options ? json_loads(m->state.options, 0, NULL) : NULL;
    json_t *steps = json_object_get(root, "optimizer_steps");
    const json_t *usual = json_object_get(steps, "*");
    tp_status st = TP_OK;

    s->optimizer_step = m->step - m->state.optimizer_start;
    if (json_is_integer(usual) && json_integer_value(usual) >= 0) {
        s->optimizer_step = json_integer_value(usual);
        for (void *i = json_object_iter(steps); i && !st; i = json_object_iter_next(steps, i))
            if (!json_equal(json_object_iter_value(i), usual))
                st = tp_fail(err, TP_E_USAGE,
                             "%s: its optimizer has counted other steps of %s than the %lld of "
                             "most tensors, and what is written has one number; --no-optim writes "
                             "the weights only",
                             s->path, json_object_iter_key(i), (long long)s->optimizer_step);
    }
    if (!st && s->optimizer_step > TORCH_SAVE_NUMBER_MAX)
        st = tp_fail(err, TP_E_USAGE,
                     "%s: its optimizer is at step %lld, and the largest that can be written is "
                     "%lld; --no-optim writes the weights only",
                     s->path, (long long)s->optimizer_step, TORCH_SAVE_NUMBER_MAX);
    json_decref(root);
    return st;
}

/* What of the checkpoint is not written. */
static void list_left_out(struct export_source *s, enum export_state state)
{
    const struct layout *l = &s->found.manifest.layout;
    bool optimizer = false, other = false;

    for (int i = 0; i < l->n_tensors; i++) {
        const bool known = is_written(l->tensors[i].group, EXPORT_MASTERS);

        optimizer |= known && strcmp(l->tensors[i].group, GROUP_PARAM) != 0;
        other |= !known;
    }
    snprintf(s->left_out, sizeof s->left_out, "%s%sthe trainer's seed and place in the data",
             optimizer && state == EXPORT_WEIGHTS ? "the optimizer's state, " : "",
             other ? "tensors of groups other than param, master, exp_avg and exp_avg_sq, " : "");
}

static tp_status open_checkpoint(struct export_source *s, const struct export_request *q,
                                 const struct export_format *format, struct arena *arena,
                                 struct tp_err *err)
{
    const struct manifest *m = &s->found.manifest;
    enum export_state state = format->state;
    int *ids;
    tp_status st;

    TP_TRY(ckpt_open(&s->found, q->ckpt, q->step, arena, err));
    memcpy(s->path, s->found.dir, sizeof s->path);
    if (s->found.note[0])
        progress_note(q->progress, "%s", s->found.note);
    if (!m->model_config)
        return tp_fail(err, TP_E_USAGE, "%s: has no model config, so config.json cannot be written",
                       s->path);
    TP_TRY(model_config_parse_any(&s->model, m->model_config, strlen(m->model_config), s->path,
                                  arena, err));
    if (s->model.family != MODEL_OF_RULES) /* its tensors are those that were imported */
        TP_TRY(check_complete(s, arena, err));
    if (q->no_optim || !has_moments(&m->layout))
        state = EXPORT_WEIGHTS;
    s->step = m->step;
    s->has_step = true;
    if (state != EXPORT_WEIGHTS)
        TP_TRY(read_optimizer_step(s, err));
    s->checksums = true;
    read_adamw(&s->adamw, m->state.options);
    list_left_out(s, state);
    TP_TRY(choose_tensors(s, &ids, q, state, arena, err));
    TP_TRY(make_transferred(s, state, arena, err));
    TP_TRY(checkpoint_source_open(&s->checkpoint, &s->found, ids, s->layout.n_tensors,
                                  control_size(q->control) > 1 ? q->control : NULL, err));
    s->endpoint = checkpoint_source_endpoint(s->checkpoint);
    s->layout.spec = m->layout.spec;
    s->layout.n_layers = m->layout.n_layers;
done:
    return st;
}

/* ---- another framework's ---- */

/* The kind of extras that a source's format has; NULL: none. */
static const char *extras_of(const char *name)
{
    const struct foreign_format *read = foreign_format_find(name);
    const struct export_format *written;
    struct tp_err ignored = { 0 };

    if (!export_format_find(&written, name, &ignored))
        return written->extras;
    return read ? read->extras : NULL;
}

/* Whether the source's format has the extras of the target's. */
static bool keeps_extras(const struct export_request *q, const struct export_format *format)
{
    const char *from = q->from_format ? extras_of(q->from_format) : NULL;

    return from && !q->no_optim && format->extras && strcmp(from, format->extras) == 0;
}

/* The files of some formats are cut by tp, and by nothing else. */
static tp_status check_tp_only(const struct spec *spec, const struct export_request *q,
                               const struct export_format *format, struct tp_err *err)
{
    char text[SPEC_TEXT_MAX];

    if (!format->tp_only ||
        (spec_world(spec) == spec->tp && spec->ep == 1 && spec->zero == 0 && !spec->sp))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE,
                   "the format %s is written for tp alone, not for %s; give %s tp%d", format->name,
                   spec_format(text, spec), q->foreign ? "--to" : "--layout", spec->tp);
}

/* The layout of the files: what the request names, the rest as `source` has it. */
static tp_status find_spec(struct spec *out, const struct export_request *q,
                           const struct export_format *format, const struct spec *source,
                           struct tp_err *err)
{
    struct spec tp_only = spec_default();
    const struct spec *base = format->tp_only ? &tp_only : source;
    unsigned named;
    tp_status st;

    tp_only.tp = source->tp;
    *out = *base;
    if (!q->layout)
        return TP_OK;
    st = spec_parse(out, q->layout, err);
    if (st)
        return tp_fail_in(err, "%s", q->foreign ? "--to" : "--layout");
    named = out->given;
    spec_fill(out, base);
    /* Experts are on different data-parallel ranks, of which other formats say nothing. */
    if (!(named & SPEC_DP) && (int64_t)out->dp * out->cp % out->ep != 0)
        out->dp = out->ep;
    return check_tp_only(out, q, format, err);
}

/* Where both formats have rows of padding after the vocabulary, they are tensors' rows like others,
 * so that nothing of them is lost: open the source again with them. */
static tp_status keep_padding(struct export_source *s, const struct export_request *q,
                              const struct export_format *format, struct arena *arena,
                              struct tp_err *err)
{
    const struct spec base = spec_default();
    struct spec spec;
    int64_t rows = 0;
    tp_status st;

    if (!s->request.keeps_extras || !format->padding || !s->import.pieces)
        return TP_OK;
    TP_TRY(find_spec(&spec, q, format, &base, err));
    TP_TRY(format->padding(&rows, &s->model, s->import.pieces, &spec, arena, err));
    if (rows == 0)
        return TP_OK;
    import_source_close(&s->import);
    s->import = (struct import_source){ 0 };
    s->model.vocab += rows;
    s->model.vocab_padding = rows;
    st = import_source_open(&s->import, &s->request, &s->model, arena, err);
done:
    return st;
}

static tp_status open_foreign(struct export_source *s, const struct export_request *q,
                              const struct export_format *format, struct arena *arena,
                              struct tp_err *err)
{
    const struct import_request from = { .source = q->ckpt,
                                         .format = q->from_format ? q->from_format : "auto",
                                         .config = q->config,
                                         .rules = q->rules,
                                         .ignore = q->ignore,
                                         .step = q->step,
                                         .no_optim = q->no_optim || format->state == EXPORT_WEIGHTS,
                                         .dtype = q->dtype,
                                         .memory_bytes = q->memory_bytes,
                                         .own_masters = format->state == EXPORT_MOMENTS,
                                         .progress = q->progress };
    struct memory_budget budget;
    tp_status st;

    /* before the tables are read, which fit into nothing where the program fills the limit */
    TP_TRY(memory_budget_make(&budget, q->memory_bytes, LATER_BYTES, q->threads, err));
    s->request = from;
    s->request.keeps_extras = keeps_extras(q, format);
    s->request.keeps_adamw = !from.no_optim;
    s->request.lists_state = !q->no_optim;
    snprintf(s->path, sizeof s->path, "%s", q->ckpt);
    TP_TRY(import_source_model(&s->model, &s->request, arena, err));
    TP_TRY(import_source_open(&s->import, &s->request, &s->model, arena, err));
    TP_TRY(keep_padding(s, q, format, arena, err));
    s->endpoint = s->import.endpoint;
    s->transferred = s->import.transferred;
    s->step = s->import.step;
    s->has_step = s->import.has_step;
    s->optimizer_step = s->import.optimizer_step;
    s->checksums = s->import.checksums;
    if (s->import.pieces) {
        piece_source_adamw(s->import.pieces, &s->adamw);
        s->modules = piece_source_modules(s->import.pieces);
        s->module_names = piece_source_has_module_names(s->import.pieces);
    }
    if (s->request.keeps_extras)
        s->extras = s->import.pieces;
    s->distributed = s->extras && format->distributed_optimizer &&
                     piece_source_is_distributed(s->extras) &&
                     piece_source_has(s->extras, GROUP_EXP_AVG);
    s->torch_adam =
        s->extras && format->distributed_optimizer && piece_source_has_tensor_steps(s->extras);
    memcpy(s->left_out, s->import.left_out.text, sizeof s->left_out);
    s->layout.tensors = s->import.tensors;
    s->layout.n_tensors = s->import.n_tensors;
    s->layout.by_name = NULL;
    if (q->rules)
        s->model.layers = s->import.layers;
    s->layout.n_layers = s->model.layers;
    s->layout.spec = spec_default();
done:
    return st;
}

/* ---- both ---- */

tp_status export_source_open(struct export_source *s, const struct export_request *q,
                             const struct export_format *format, struct arena *arena,
                             struct tp_err *err)
{
    struct spec spec;
    tp_status st;

    s->adamw = EXPORT_ADAMW_DEFAULT;
    st = q->foreign ? open_foreign(s, q, format, arena, err)
                    : open_checkpoint(s, q, format, arena, err);
    if (!st)
        st = find_spec(&spec, q, format, &s->layout.spec, err);
    if (st)
        return st;
    return layout_make(&s->layout, &spec, s->layout.n_layers, s->layout.tensors,
                       s->layout.n_tensors, arena, err);
}

tp_status export_source_identify(const struct export_source *s, const struct export_request *q,
                                 struct sha256 *h, struct tp_err *err)
{
    char path[PATH_MAX], manifest[SHA256_TEXT];
    tp_status st;

    if (q->foreign)
        return import_source_identify(&s->import, &s->request, h, err);
    TP_TRY(file_join(path, s->path, MANIFEST_FILE, err));
    TP_TRY(sha256_file(manifest, path, err));
    job_identity_text(h, manifest);
    job_identity_tensors(h, s->layout.tensors, s->layout.n_tensors);
done:
    return st;
}

void export_source_close(struct export_source *s)
{
    checkpoint_source_close(s->checkpoint);
    import_source_close(&s->import);
}
