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
#include "reshard/formats/torch/model_key.h"
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

/* The model of the file. */
struct pt_model {
    const struct pt_part *part;
    struct dcp_prefix_names names;
    const char *prefix; /* that the program has in front of Hugging Face's names: "model." of a
                           LightningModule, "module." of DistributedDataParallel */
};

static tp_status no_memory(const struct torch_pieces *x, struct tp_err *err)
{
    return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", piece_source_path(x->source));
}

/* The name of an entry, without what torch.compile puts into it. "": it is no text. */
static tp_status plain_name(const char **out, struct torch_pieces *x,
                            const struct pickle_value *dict, int64_t i, struct tp_err *err)
{
    const char *key = pickle_text(pickle_key(dict, i));

    *out = key ? compiled_name_plain(&x->arena, key) : "";
    return *out ? TP_OK : no_memory(x, err);
}

static tp_status find_names(struct pt_model *out, struct torch_pieces *x, struct tp_err *err)
{
    const struct pickle_value *weights = out->part->value;
    const char **names = arena_array(&x->arena, (size_t)pickle_entries(weights) + 1, sizeof *names);
    char rival[DCP_PREFIX_TEXT];
    tp_status st = TP_OK;

    if (!names)
        return no_memory(x, err);
    for (int64_t i = 0; i < pickle_entries(weights) && !st; i++)
        st = plain_name(&names[i], x, weights, i, err);
    out->names =
        (struct dcp_prefix_names){ .weights = names, .n_weights = (int)pickle_entries(weights) };
    if (!st)
        st = dcp_prefix_find(&out->prefix, &out->names, piece_source_arena(x->source), err);
    if (!st && !dcp_prefix_is_clear(rival, &out->names, out->prefix))
        st =
            tp_fail(err, TP_E_USAGE,
                    "%s: has weights of several models in one dict (%.200s* and %s*), and which is "
                    "meant is not known; save the state_dict() of that in a file of its own",
                    piece_source_path(x->source), out->prefix, rival);
    return st;
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

/* The first name that an optimizer has for a parameter, also beside numbers (param_names); NULL:
 * there is none. */
static const char *first_name(const struct pickle_value *optimizer, struct arena *arena)
{
    const struct pickle_value *groups = pickle_get(optimizer, "param_groups");
    const char *name = named_adamw_first_name(optimizer, arena);

    for (int64_t g = 0; g < pickle_count(groups) && !name; g++)
        name = pickle_text(pickle_item(pickle_get(pickle_item(groups, g), "param_names"), 0));
    return name;
}

/* What is in front of `end` in a name, at its beginning or after a dot, and as a program may wrap
 * its model: nothing, or "module." -1: `end` is not the end of this name, or it is wrapped in
 * something else. */
static int64_t wrapped_in(const char *name, const char *end)
{
    const size_t n = strlen(name), m = strlen(end);
    const size_t before = n >= m ? n - m : 0;

    if (n < m || m == 0 || strcmp(name + before, end) != 0)
        return -1;
    if (before == 0)
        return 0;
    return name[before - 1] == '.' && model_key_rank(name, before - 1) != MODEL_KEY_OTHER
               ? (int64_t)before
               : -1;
}

/* What the names of an optimizer have in front of those of Hugging Face, *out: mostly what weights
 * have, but it may be the optimizer of a module inside the program's, or around it. */
static tp_status prefix_of_names(const char **out, struct torch_pieces *x,
                                 const struct pickle_value *optimizer, const struct pt_model *of,
                                 struct tp_err *err)
{
    const char *key = first_name(optimizer, &x->arena);
    const char *first = key ? compiled_name_plain(&x->arena, key) : "";
    const size_t n = strlen(of->prefix);
    size_t longest = 0;

    *out = of->prefix;
    for (int i = 0; first && i < of->names.n_weights; i++) {
        const char *weight = of->names.weights[i];
        int64_t before;

        if (strncmp(weight, of->prefix, n) != 0 || strlen(weight + n) <= longest ||
            (before = wrapped_in(first, weight + n)) < 0)
            continue;
        longest = strlen(weight + n);
        *out = arena_printf(piece_source_arena(x->source), "%.*s", (int)before, first);
        if (!*out)
            return no_memory(x, err);
    }
    return first ? TP_OK : no_memory(x, err);
}

static tp_status add_optimizer(struct torch_pieces *x, const struct pt_part *part,
                               const struct pt_model *of, const struct model *m, struct tp_err *err)
{
    const char *title = *part->title ? part->title : "optimizer";
    struct numbered_adamw numbered = { .root = part->value,
                                       .title = title,
                                       .weights = of->part->value,
                                       .prefix = of->prefix,
                                       .program = { .own_groups = true, .other_version = true } };
    struct named_adamw named = { .root = part->value, .title = title };
    tp_status st = prefix_of_names(&named.prefix, x, part->value, of, err);

    if (st)
        return st;
    numbered.names_prefix = named.prefix;
    return named_adamw_first_name(part->value, &x->arena)
               ? named_adamw_read(x, &named, m, err)
               : numbered_adamw_read(x, &numbered, m, err);
}

/* Of several optimizers none is taken. */
static void refuse_optimizers(const struct pt_contents *c, struct piece_source *s)
{
    char titles[PT_TITLES_TEXT];
    struct tp_err why = { 0 };

    tp_fail(&why, TP_E_USAGE,
            "%s: has several optimizers (%s), and which is the model's is not known",
            piece_source_path(s), pt_contents_titles(titles, c->optimizers, c->n_optimizers));
    piece_source_refuse_state(s, &why);
}

/* ---- both ---- */

static tp_status read_contents(struct torch_pieces *x, const struct model *m, struct tp_err *err)
{
    struct piece_source *s = x->source;
    struct pt_model model = { .part = NULL };
    const struct pt_part *optimizer;
    struct pt_contents c;
    tp_status st;

    TP_TRY(pt_contents_find(&c, x->root, &x->arena, err));
    model.part = pt_contents_model(&c);
    optimizer = pt_contents_optimizer(&c);
    if (!model.part)
        return refuse_model(&c, piece_source_path(s), err);
    TP_TRY(find_names(&model, x, err));
    TP_TRY(torch_bin_read_dict(x, model.part->value, model.prefix, m, err));
    if (optimizer)
        TP_TRY(add_optimizer(x, optimizer, &model, m, err));
    else if (pt_contents_has_state(&c))
        refuse_optimizers(&c, s);
    st = pt_contents_leave(s, x->root, model.part, optimizer, err);
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
