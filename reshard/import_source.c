/* reshard/import_source.c - see reshard/import_source.h. */
#include "reshard/import_source.h"

#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "layout/family.h"
#include "layout/model_tensors.h"
#include "reshard/formats/foreign_adapter.h"
#include "reshard/formats/foreign_model.h"
#include "reshard/formats/foreign_place.h"
#include "reshard/formats/hf_config.h"
#include "reshard/formats/pt/pt.h"
#include "reshard/memory_budget.h"
#include "reshard/ruled_tensors.h"
#include "reshard/tied_head.h"
#include "storage/location.h"

/* ---- which tensors ---- */

static tp_status no_memory(const struct import_request *q, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its list of tensors", q->source);
}

/* The tensors as the engine sees them. Names have their group when there are several. */
static tp_status make_transferred(struct import_source *s, const struct import_request *q,
                                  struct arena *arena, struct tp_err *err)
{
    s->transferred = arena_array(arena, (size_t)s->n_tensors + 1, sizeof *s->transferred);
    if (!s->transferred)
        return no_memory(q, err);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct tensor *t = &s->tensors[i];
        struct reshard_tensor *r = &s->transferred[i];

        *r = (struct reshard_tensor){ .name = t->name, .ndim = t->ndim };
        memcpy(r->shape, t->shape, sizeof r->shape);
        if (s->pieces && !(r->name = arena_printf(arena, "%s/%s", t->group, t->name)))
            return no_memory(q, err);
    }
    return TP_OK;
}

/* ---- safetensors: weights only ---- */

/* The weights, by the table of the model's family or by rules. */
static tp_status list_params(struct import_source *s, struct tensor **out, int *n,
                             const struct import_request *q, const struct model *m,
                             struct arena *arena, struct tp_err *err)
{
    struct ruled_tensors ruled = { 0 };
    tp_status st;

    if (!q->rules)
        return model_params(out, n, m, DTYPE_F32, arena, err);
    st = s->pieces ? ruled_tensors_of_pieces(&ruled, s->pieces, q->rules, arena, err)
                   : ruled_tensors_of_safetensors(&ruled, s->safetensors, q->rules, arena, err);
    *out = ruled.list;
    *n = ruled.n;
    s->layers = ruled.layers;
    return st;
}

static tp_status refuse_unknown(const struct import_request *q, struct tp_err *err)
{
    char list[FOREIGN_LIST_TEXT];

    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: its files are of no known format; if they are of one of these, give it as "
                   "--format, and the message says which file is missing: %s",
                   q->source, foreign_format_list(list, "", ", "));
}

static tp_status open_safetensors(struct import_source *s, const struct import_request *q,
                                  const struct model *m, struct arena *arena, struct tp_err *err)
{
    tp_status st;

    s->name = s->title = "safetensors";
    s->step = s->optimizer_step = q->step >= 0 ? q->step : 0;
    s->has_step = q->step >= 0;
    st = safetensors_open(&s->safetensors, q->source, err);
    if (st == TP_E_NOTFOUND && strcmp(q->format, "auto") == 0 &&
        !foreign_format_detect_any(q->source))
        st = refuse_unknown(q, err);
    TP_TRY(st);
    TP_TRY(safetensors_dequantize(s->safetensors, &s->decoded, err));
    for (int i = 0; i < safetensors_count(s->safetensors) && !q->rules; i++)
        TP_TRY(foreign_adapter_check_name(q->source, safetensors_name(s->safetensors, i), err));
    TP_TRY(list_params(s, &s->tensors, &s->n_tensors, q, m, arena, err));
    TP_TRY(make_transferred(s, q, arena, err));
    TP_TRY(safetensors_select(s->safetensors, s->transferred, s->n_tensors, err));
    if (!q->rules)
        TP_TRY(unknown_tensors_check(&s->left_out, s->safetensors, m, s->tensors, s->n_tensors,
                                     &q->ignore, err));
    s->endpoint = safetensors_source_endpoint(s->safetensors);
    for (int i = 0; i < s->n_tensors; i++) {
        enum dtype stored = s->endpoint->dtypes[i];

        s->tensors[i].dtype = q->dtype && dtype_is_float(stored) ? *q->dtype : stored;
    }
done:
    return st;
}

/* ---- other formats: what they have of the optimizer too ---- */

/* A group of the checkpoint, and the group of the source that it is made from. */
struct import_group {
    const char *group, *from;
    enum dtype dtype; /* DTYPE_COUNT: as it is stored */
};

enum { IMPORT_GROUPS_MAX = 4 };

static enum dtype stored_dtype(const struct piece_source *s, const char *group, const char *name)
{
    int i = piece_source_find(s, group, name);

    return i < 0 ? DTYPE_COUNT : piece_source_tensor(s, i).pieces->dtype;
}

/* The type of the weights. Of several it is the first that is not f32: it needs masters. */
static enum dtype weights_dtype(const struct piece_source *s, const struct tensor *params,
                                int n_params)
{
    for (int i = 0; i < n_params; i++) {
        const enum dtype dtype = stored_dtype(s, GROUP_PARAM, params[i].name);

        if (dtype != DTYPE_COUNT && dtype != DTYPE_F32 && dtype_is_float(dtype))
            return dtype;
    }
    return stored_dtype(s, GROUP_PARAM, params[0].name);
}

/* Choose the groups. Weights in f32 are their own masters, so they come from the masters where
 * there are any; a bf16 checkpoint with moments needs masters, so they come from the weights
 * otherwise. */
static int choose_groups(struct import_group groups[IMPORT_GROUPS_MAX],
                         const struct piece_source *s, const struct import_request *q,
                         const struct tensor *params, int n_params)
{
    bool has_param = piece_source_has(s, GROUP_PARAM) && !piece_source_has_frozen(s),
         has_master = piece_source_has(s, GROUP_MASTER);
    bool moments =
        !q->no_optim && piece_source_has(s, GROUP_EXP_AVG) && piece_source_has(s, GROUP_EXP_AVG_SQ);
    enum dtype stored = has_param ? weights_dtype(s, params, n_params) : piece_source_weights(s);
    const bool own = q->own_masters && moments && !q->dtype;
    enum dtype weights = q->dtype ? *q->dtype : own ? DTYPE_F32 : stored;
    bool from_master = has_master && (!has_param || ((q->dtype || own) && weights == DTYPE_F32));
    int n = 0;

    groups[n++] = (struct import_group){ GROUP_PARAM, from_master ? GROUP_MASTER : GROUP_PARAM,
                                         q->dtype || own || !has_param ? weights : DTYPE_COUNT };
    if (moments && !q->own_masters && weights != DTYPE_F32)
        groups[n++] = (struct import_group){ GROUP_MASTER, has_master ? GROUP_MASTER : GROUP_PARAM,
                                             DTYPE_F32 };
    if (moments) {
        groups[n++] = (struct import_group){ GROUP_EXP_AVG, GROUP_EXP_AVG, DTYPE_F32 };
        groups[n++] = (struct import_group){ GROUP_EXP_AVG_SQ, GROUP_EXP_AVG_SQ, DTYPE_F32 };
    }
    return n;
}

/* Take a weight from what is not trained, where weights are otherwise made of masters. It keeps its
 * type. */
static void take_frozen(struct tensor *t, const char **from, const struct piece_source *s,
                        const struct import_request *q)
{
    if (!piece_source_has_frozen(s) || strcmp(t->group, GROUP_PARAM) != 0 ||
        piece_source_find(s, GROUP_PARAM, t->name) < 0)
        return;
    *from = GROUP_PARAM;
    if (!q->dtype)
        t->dtype = stored_dtype(s, GROUP_PARAM, t->name);
}

/* Take a master from its weight where the source has masters of other weights only. */
static void take_own_master(struct tensor *t, const char **from, const struct piece_source *s)
{
    if (strcmp(t->group, GROUP_MASTER) == 0 && strcmp(*from, GROUP_MASTER) == 0 &&
        piece_source_find(s, GROUP_MASTER, t->name) < 0 &&
        stored_dtype(s, GROUP_PARAM, t->name) == DTYPE_F32)
        *from = GROUP_PARAM;
}

/* AdamW continues to count from where the source has it, whatever number the run's step gets:
 * its bias correction depends on that. */
static tp_status set_step(struct import_source *s, const struct import_request *q, bool moments,
                          struct tp_err *err)
{
    const int64_t counted = moments ? piece_source_step(s->pieces) : 0;

    s->step = q->step >= 0 ? q->step : counted;
    s->has_step = q->step >= 0 || moments;
    s->optimizer_step = moments && counted >= 0 ? counted : s->step;
    if (s->step < 0)
        return tp_fail(err, TP_E_USAGE,
                       "%s: does not say at which step its optimizer is; give it by --step N",
                       q->source);
    if (s->step < s->optimizer_step)
        return tp_fail(err, TP_E_USAGE,
                       "%s: --step %lld is less than the %lld steps that its optimizer has "
                       "counted; leave --step out, or leave the optimizer out by --no-optim",
                       q->source, (long long)s->step, (long long)s->optimizer_step);
    return TP_OK;
}

/* The parameters once for each group; from[i] is the source's group of tensor i. */
static tp_status choose_tensors(struct import_source *s, const char ***from,
                                const struct import_request *q, const struct tensor *params,
                                int n_params, struct arena *arena, struct tp_err *err)
{
    struct import_group groups[IMPORT_GROUPS_MAX];
    int n_groups = choose_groups(groups, s->pieces, q, params, n_params);

    s->n_params = n_params;
    s->n_tensors = n_groups * n_params;
    s->tensors = arena_array(arena, (size_t)s->n_tensors + 1, sizeof *s->tensors);
    *from = arena_array(arena, (size_t)s->n_tensors + 1, sizeof **from);
    if (!s->tensors || !*from)
        return no_memory(q, err);
    for (int i = 0; i < s->n_tensors; i++) {
        const struct import_group *g = &groups[i / n_params];
        struct tensor *t = &s->tensors[i];

        *t = params[i % n_params];
        t->group = g->group;
        (*from)[i] = g->from;
        t->dtype = g->dtype == DTYPE_COUNT ? stored_dtype(s->pieces, g->from, t->name) : g->dtype;
        take_frozen(t, &(*from)[i], s->pieces, q);
        take_own_master(t, &(*from)[i], s->pieces);
    }
    return set_step(s, q, n_groups > 1, err);
}

/* Whether a group of the source is transferred. */
static bool takes_group(const struct import_source *s, const char *const *from, const char *group)
{
    for (int i = 0; i < s->n_tensors; i += s->n_params)
        if (strcmp(from[i], group) == 0)
            return true;
    return false;
}

/* Add to `out` what the source has of an optimizer and is not taken: a whole group as one name, or
 * that of a parameter which the model does not have. Masters of weights in f32 are these
 * weights. */
static tp_status list_lost_state(struct unknown_tensors_found *out, const struct import_source *s,
                                 const struct import_request *q, const char *const *from,
                                 struct arena *arena, struct tp_err *err)
{
    const bool f32 = s->tensors[0].dtype == DTYPE_F32;
    const int n = piece_source_count(s->pieces);
    bool *taken = calloc((size_t)n + 1, sizeof *taken);
    tp_status st = taken ? TP_OK : no_memory(q, err);

    for (int i = 0; i < s->n_tensors && !st; i++) {
        int k = piece_source_find(s->pieces, from[i], s->tensors[i].name);

        if (k >= 0)
            taken[k] = true;
    }
    for (int i = 0; i < n && !st; i++) {
        const struct piece *p = piece_source_tensor(s->pieces, i).pieces;
        const char *name = takes_group(s, from, p->group) ? p->name : "*";

        if (taken[i] || strcmp(p->group, GROUP_PARAM) == 0 ||
            (f32 && strcmp(p->group, GROUP_MASTER) == 0))
            continue;
        name = arena_printf(arena, "%s/%s", p->group, name);
        if (name)
            out->others[out->n_others++] = name;
        else
            st = no_memory(q, err);
    }
    free(taken);
    return st;
}

/* The source's weights, and what else is in it, must be known to the model or be left out. */
static tp_status check_unknown(struct import_source *s, const struct import_request *q,
                               const struct model *m, const struct tensor *params,
                               const char *const *from, struct arena *arena, struct tp_err *err)
{
    const int n = piece_source_count(s->pieces), n_left = piece_source_left(s->pieces);
    const char **names = calloc((size_t)n + (size_t)n_left + 1, sizeof *names);
    const bool keeps_adamw = q->keeps_adamw && s->n_tensors > s->n_params; /* there are moments */
    struct unknown_tensors_found found = { .path = q->source, .names = names };
    tp_status st;

    if (!names)
        return no_memory(q, err);
    for (int i = 0; i < n; i++) {
        const struct piece *p = piece_source_tensor(s->pieces, i).pieces;

        if (strcmp(p->group, GROUP_PARAM) == 0 && !q->rules) /* they have a line for each */
            names[found.n++] = p->name;
    }
    found.others = names + found.n;
    if (!q->no_optim || q->lists_state)
        TP_TRY(list_lost_state(&found, s, q, from, arena, err));
    for (int i = 0; i < n_left; i++)
        if (!(q->keeps_extras && piece_source_left_extra(s->pieces, i)) &&
            !(keeps_adamw && piece_source_left_is_in_adamw(s->pieces, i)))
            found.others[found.n_others++] = piece_source_left_name(s->pieces, i);
    st = unknown_tensors_check_names(&s->left_out, &found, m, params, s->n_params, &q->ignore, err);
done:
    free((void *)names);
    return st;
}

/* State of an optimizer that was not added must not be lost in silence. */
static tp_status check_refused(const struct import_source *s, const struct import_request *q,
                               struct tp_err *err)
{
    const struct tp_err *why = piece_source_refused_state(s->pieces);

    if (q->no_optim || !why)
        return TP_OK;
    if (why->status == TP_E_NO) {
        progress_note(q->progress, "%s", why->msg);
        return TP_OK;
    }
    return tp_fail(err, why->status, "%s; with --no-optim the weights alone are taken", why->msg);
}

static tp_status open_pieces(struct import_source *s, const struct import_request *q,
                             const struct foreign_format *format, const struct model *m,
                             struct arena *arena, struct tp_err *err)
{
    struct tensor *params;
    const char **from;
    int n_params = 0;
    tp_status st;

    s->name = format->name;
    s->title = format->title;
    TP_TRY(
        foreign_open(&s->pieces, format, q->source, m, memory_budget_tables(q->memory_bytes), err));
    if (!piece_source_has(s->pieces, GROUP_PARAM) && !piece_source_has(s->pieces, GROUP_MASTER)) {
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: has the state of an optimizer and no weights; name the folder that has "
                     "both, with Accelerate the one above",
                     q->source);
        goto done;
    }
    for (int i = 0; i < piece_source_count(s->pieces) && !q->rules; i++)
        TP_TRY(foreign_adapter_check_name(q->source, piece_source_tensor(s->pieces, i).pieces->name,
                                          err));
    TP_TRY(check_refused(s, q, err));
    TP_TRY(list_params(s, &params, &n_params, q, m, arena, err));
    if (format->check && !q->no_optim)
        TP_TRY(format->check(s->pieces, err));
    TP_TRY(choose_tensors(s, &from, q, params, n_params, arena, err));
    TP_TRY(check_unknown(s, q, m, params, from, arena, err));
    TP_TRY(piece_source_select(s->pieces, s->tensors, from, s->n_tensors, err));
    TP_TRY(make_transferred(s, q, arena, err));
    s->endpoint = piece_source_endpoint(s->pieces);
    s->decoded = piece_source_decoded(s->pieces);
    s->checksums = piece_source_has_sums(s->pieces);
done:
    return st;
}

/* NULL: safetensors. With rules, torchtitan's tensors keep their names and their order of rows, as
 * those of any DCP. */
static const struct foreign_format *format_of(const struct import_request *q)
{
    const struct foreign_format *found = NULL;

    if (strcmp(q->format, "auto") == 0)
        found = foreign_format_detect(q->source);
    else if (strcmp(q->format, "safetensors") != 0)
        found = foreign_format_find(q->format);
    return q->rules && found && strcmp(found->name, "torchtitan") == 0 ? foreign_format_find("dcp")
                                                                       : found;
}

static tp_status read_model_of_rules(struct model *out, const struct import_request *q,
                                     struct arena *arena, struct tp_err *err)
{
    const char *config = q->config ? q->config : q->source;
    tp_status st = foreign_model_config(out, config, true, arena, err);

    if (!st && out->family != MODEL_OF_RULES)
        return tp_fail(err, TP_E_USAGE,
                       "--rules: %s says %s, whose tensors are known; leave --rules out, or give "
                       "the model an architecture of its own in config.json",
                       config, family_of(out)->architecture);
    if (!st && q->ignore.n)
        return tp_fail(err, TP_E_USAGE,
                       "--ignore cannot be used with --rules, which have a line for every tensor");
    return st;
}

/* Whether a file is a source by itself. What is found to be a part of a checkpoint is refused
 * later, with the name of that. */
static bool is_file_of(const char *name, const char *path)
{
    const struct foreign_format *f = foreign_format_find(name);

    return f ? f->is_file : strcmp(name, "auto") == 0 && pt_detect(path);
}

/* A local source must be there, and is a folder but for some formats. */
static tp_status check_place(const struct import_request *q, struct tp_err *err)
{
    if (location_is_remote(q->source))
        return TP_OK;
    if (!file_exists(q->source))
        return tp_fail(err, TP_E_NOTFOUND, "%s: no such folder", q->source);
    if (!file_is_dir(q->source) && !is_file_of(q->format, q->source))
        return tp_fail(err, TP_E_USAGE, "%s: is not a folder; name the folder that has this file",
                       q->source);
    return TP_OK;
}

/* A file is missing: say so if the folder has another format than the one that was given. */
static tp_status explain_format(tp_status st, const struct import_request *q, struct tp_err *err)
{
    const struct foreign_format *found = NULL;

    if (st == TP_E_NOTFOUND && strcmp(q->format, "auto") != 0 && !location_is_remote(q->source))
        found = foreign_format_detect_any(q->source);
    return found && strcmp(found->name, foreign_format_name(q->format)) != 0
               ? tp_fail_in(err, "%s has the format %s, not %s", q->source, found->name, q->format)
               : st;
}

tp_status import_source_model(struct model *out, const struct import_request *q,
                              struct arena *arena, struct tp_err *err)
{
    const struct foreign_model_request from = { .path = q->source,
                                                .config = q->config,
                                                .format = format_of(q),
                                                .memory_bytes =
                                                    memory_budget_tables(q->memory_bytes) };
    const char *note = NULL;
    tp_status st = check_place(q, err);

    if (!st)
        st = foreign_adapter_check(q->source, err);
    if (!st && strcmp(q->format, "auto") == 0 && !from.format && !location_is_remote(q->source) &&
        !foreign_format_detect_any(q->source)) {
        st = foreign_place_check(q->source, err);
        st = st ? st : refuse_unknown(q, err);
    }
    if (!st)
        st = q->rules ? read_model_of_rules(out, q, arena, err)
                      : foreign_model_read(out, &note, &from, arena, err);
    if (!st && note)
        progress_note(q->progress, "%s", note);
    st = explain_format(st, q, err);
    return memory_budget_explain(st, q->memory_bytes, err);
}

/* Weights were decoded: say so, and leave out of the config that they are quantized. */
static tp_status note_decoded(const struct import_source *s, const struct import_request *q,
                              struct model *m, bool says_so, struct arena *arena,
                              struct tp_err *err)
{
    char note[DEQUANTIZED_NOTE_MAX];

    progress_note(q->progress, "%s", safetensors_dequantized_note(note, s->decoded));
    return says_so ? hf_config_remove(m, "quantization_config", arena, err) : TP_OK;
}

/* After the source was opened, or not: weights that are quantized in a way that cannot be decoded
 * are named as the reason of what is missing. */
static tp_status explain_quantized(tp_status st, const struct import_source *s,
                                   const struct import_request *q, struct model *m,
                                   struct arena *arena, struct tp_err *err)
{
    char method[QUANT_METHOD_MAX];
    const bool says_so = foreign_model_is_quantized(method, m);

    if (!st && s->decoded > 0)
        return note_decoded(s, q, m, says_so, arena, err);
    if (says_so && q->rules && s->decoded == 0 && (!st || st == TP_E_CORRUPT || st == TP_E_USAGE))
        return tp_fail(
            err, TP_E_USAGE,
            "--rules: %s says that the weights are quantized (%s), which is not supported; "
            "convert the model to bf16 first, and remove quantization_config from its "
            "config.json",
            q->config ? q->config : q->source, method);
    return st == TP_E_CORRUPT && s->decoded == 0 ? foreign_model_explain_quantized(st, m, err) : st;
}

tp_status import_source_open(struct import_source *s, const struct import_request *q,
                             struct model *m, struct arena *arena, struct tp_err *err)
{
    const struct foreign_format *format = format_of(q);
    tp_status st = TP_OK;

    if (format && format->fused && q->rules)
        return tp_fail(err, TP_E_USAGE,
                       "--rules: %s is %s, whose tensors are not those of a model; rules are for "
                       "safetensors, bin, dcp, accelerate, torchtitan, deepspeed, verl and pt",
                       q->source, format->title);
    if (!q->rules)
        st = tied_head_check(q->source, format, m, &q->ignore,
                             memory_budget_tables(q->memory_bytes), err);
    if (!st)
        st = format ? open_pieces(s, q, format, m, arena, err)
                    : open_safetensors(s, q, m, arena, err);
    st = explain_quantized(st, s, q, m, arena, err);
    st = explain_format(st, q, err);
    return memory_budget_explain(st, q->memory_bytes, err);
}

tp_status import_source_identify(const struct import_source *s, const struct import_request *q,
                                 struct sha256 *h, struct tp_err *err)
{
    struct file_table *files = s->pieces ? piece_source_files(s->pieces) : NULL;
    const int n = files ? file_table_count(files) : safetensors_files(s->safetensors);
    tp_status st = TP_OK;

    job_identity_text(h, s->title);
    job_identity_number(h, s->step);
    job_identity_number(h, s->optimizer_step);
    job_identity_number(h, q->no_optim);
    job_identity_number(h, q->own_masters);
    job_identity_text(h, q->dtype ? dtype_name(*q->dtype) : NULL);
    job_identity_tensors(h, s->tensors, s->n_tensors);
    for (int i = 0; i < n && !st; i++)
        st = job_identity_file(
            h, files ? file_table_path(files, i) : safetensors_file(s->safetensors, i), err);
    return st;
}

void import_source_close(struct import_source *s)
{
    safetensors_source_close(s->safetensors);
    piece_source_close(s->pieces);
}
