/* reshard/formats/pt/pt.c - see reshard/formats/pt/pt.h. */
#include "reshard/formats/pt/pt.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/hf_trainer/numbered_adamw.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pt/pt_contents.h"
#include "reshard/formats/torch/dcp_prefix.h"
#include "reshard/formats/torch/named_adamw.h"
#include "reshard/formats/torch/torch_bin.h"
#include "storage/location.h"
#include "storage/object.h"

/* Whether a local file begins as an archive. */
static bool is_archive(const char *path)
{
    static const char magic[] = { 'P', 'K', 3, 4 };
    char head[sizeof magic];
    struct tp_err ignored;
    struct object o;
    int64_t size;
    bool is;

    if (file_is_dir(path) || object_open_any(&o, &size, path, &ignored))
        return false;
    is = !object_read_at(&o, path, 0, head, sizeof head, &ignored) &&
         memcmp(head, magic, sizeof magic) == 0;
    object_close(&o);
    return is;
}

bool pt_detect(const char *path)
{
    const bool named = text_ends_with(path, ".pt") || text_ends_with(path, ".pth") ||
                       text_ends_with(path, ".ckpt");

    if (location_is_remote(path))
        return named && object_is_there(path);
    return is_archive(path) || (named && file_exists(path) && !file_is_dir(path));
}

tp_status pt_assets(char dir[PATH_MAX], const char *path, struct tp_err *err)
{
    (void)err;
    file_parent(dir, path);
    return TP_OK;
}

/* ---- the model ---- */

static tp_status no_memory(const struct torch_pieces *x, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(x->source));
}

/* What a program has in front of the names of Hugging Face's: "model." of a LightningModule,
 * "module." of DistributedDataParallel. */
static tp_status find_prefix(const char **out, struct torch_pieces *x,
                             const struct pickle_value *weights, struct tp_err *err)
{
    struct dcp_prefix_names names = { .n_weights = 0 };

    names.weights =
        arena_array(&x->arena, (size_t)pickle_entries(weights) + 1, sizeof *names.weights);
    if (!names.weights)
        return no_memory(x, err);
    for (int64_t i = 0; i < pickle_entries(weights); i++) {
        const char *key = pickle_text(pickle_key(weights, i));
        const char *name = key ? compiled_name_plain(&x->arena, key) : "";

        if (!name)
            return no_memory(x, err);
        names.weights[names.n_weights++] = name;
    }
    return dcp_prefix_find(out, &names, piece_source_arena(x->source), err);
}

static tp_status refuse_model(const struct pt_contents *c, const char *path, struct tp_err *err)
{
    char titles[PT_TITLES_TEXT];

    if (c->n_weights > 1)
        return tp_fail(err, TP_E_USAGE,
                       "%s: has several dicts of weights (%s), and none has a usual key, such as "
                       "model_state_dict; save that of the model in a file of its own",
                       path, pt_contents_titles(titles, c->weights, c->n_weights));
    if (c->module)
        return tp_fail(err, TP_E_NOTFOUND,
                       "%s: has a module of class %.100s itself in place of its state_dict(); load "
                       "it in its program, and save model.state_dict()",
                       path, c->module);
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: has %s and no weights, that is no dict from names such as "
                   "model.norm.weight to tensors",
                   path, c->n_optimizers ? "the state of an optimizer" : "no optimizer");
}

/* ---- the optimizer ---- */

/* Whether weights have a name behind a prefix. */
static bool has_weight(const struct pickle_value *weights, const char *prefix, const char *name,
                       struct arena *arena)
{
    const size_t n = strlen(prefix);

    for (int64_t i = 0; i < pickle_entries(weights); i++) {
        const char *key = pickle_text(pickle_key(weights, i));
        const char *plain = key ? compiled_name_plain(arena, key) : NULL;

        if (plain && strncmp(plain, prefix, n) == 0 && strcmp(plain + n, name) == 0)
            return true;
    }
    return false;
}

/* What the names of an optimizer have in front of those of Hugging Face: what weights have, or
 * nothing, where the optimizer is that of a module inside the program's. */
static const char *prefix_of_names(const struct pickle_value *state,
                                   const struct pickle_value *weights, const char *prefix,
                                   struct arena *arena)
{
    const char *key = pickle_text(pickle_key(state, 0));
    const char *name = key ? compiled_name_plain(arena, key) : NULL;

    return name && has_weight(weights, prefix, name, arena) ? "" : prefix;
}

static tp_status add_optimizer(struct torch_pieces *x, const struct pt_part *part,
                               const struct pt_part *weights, const char *prefix,
                               const struct model *m, struct tp_err *err)
{
    const char *title = *part->title ? part->title : "optimizer";
    const struct pickle_value *state = pickle_get(part->value, "state");
    const struct numbered_adamw numbered = { .root = part->value,
                                             .title = title,
                                             .weights = weights->value,
                                             .prefix = prefix,
                                             .program = { .own_groups = true,
                                                          .other_version = true } };
    const struct named_adamw named = { .root = part->value,
                                       .title = title,
                                       .prefix = prefix_of_names(state, weights->value, prefix,
                                                                 &x->arena) };

    return pickle_text(pickle_key(state, 0)) ? named_adamw_read(x, &named, m, err)
                                             : numbered_adamw_read(x, &numbered, m, err);
}

/* Of several optimizers none is taken. */
static tp_status refuse_optimizers(const struct pt_contents *c, struct piece_source *s,
                                   struct tp_err *err)
{
    char titles[PT_TITLES_TEXT];
    struct tp_err why = { 0 };
    tp_status st = TP_OK;

    tp_fail(&why, TP_E_USAGE,
            "%s: has several optimizers (%s), and which is the model's is not "
            "known",
            piece_source_path(s), pt_contents_titles(titles, c->optimizers, c->n_optimizers));
    piece_source_refuse_state(s, &why);
    for (int i = 0; i < c->n_optimizers && !st; i++)
        st = piece_source_leave(s, c->optimizers[i].title, err);
    return st;
}

/* ---- what else there is ---- */

/* Whether a part is the value of a key of the file, or inside of it. */
static bool is_under(const struct pt_part *part, const char *key)
{
    const size_t n = strlen(key);

    return strncmp(part->title, key, n) == 0 && (part->title[n] == 0 || part->title[n] == '.');
}

/* List what is neither the model nor its optimizer. */
static tp_status leave_others(struct torch_pieces *x, const struct pt_part *model,
                              const struct pt_part *optimizer, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (!*model->title)
        return TP_OK;
    for (int64_t i = 0; i < pickle_entries(x->root) && !st; i++) {
        const char *key = pickle_text(pickle_key(x->root, i));

        if (key && !is_under(model, key) && !(optimizer && is_under(optimizer, key)))
            st = piece_source_leave(x->source, key, err);
    }
    return st;
}

/* ---- both ---- */

static tp_status read_contents(struct torch_pieces *x, const struct model *m, struct tp_err *err)
{
    struct piece_source *s = x->source;
    const struct pt_part *model, *optimizer;
    const char *prefix;
    struct pt_contents c;
    tp_status st;

    TP_TRY(pt_contents_find(&c, x->root, &x->arena, err));
    model = pt_contents_model(&c);
    optimizer = pt_contents_optimizer(&c);
    if (!model)
        return refuse_model(&c, piece_source_path(s), err);
    TP_TRY(find_prefix(&prefix, x, model->value, err));
    TP_TRY(torch_bin_read_dict(x, model->value, prefix, m, err));
    if (optimizer)
        TP_TRY(add_optimizer(x, optimizer, model, prefix, m, err));
    else if (pt_contents_has_state(&c))
        TP_TRY(refuse_optimizers(&c, s, err));
    st = leave_others(x, model, optimizer, err);
done:
    return st;
}

tp_status pt_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct torch_pieces x = { .source = s };
    int file;
    tp_status st;

    TP_TRY(file_table_add(piece_source_files(s), &file, piece_source_path(s), err));
    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    st = read_contents(&x, m, err);
done:
    torch_pieces_close(&x);
    return st;
}
