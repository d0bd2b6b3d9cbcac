/* reshard/formats/megatron/fsdp_dtensor_root.c - see reshard/formats/megatron/fsdp_dtensor_root.h.
 */
#include "reshard/formats/megatron/fsdp_dtensor_root.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "torch/pickle_copy.h"

#define ARGS      "args"
#define SCHEDULE  "opt_param_scheduler."
#define DECAYING  ".linear_qkv.weight." /* of a parameter that every layer has */
#define OF_OPTION "wd_mult"

struct root_reader {
    struct piece_source *source;
    struct arena arena;     /* of the items: each parameter has a dozen objects */
    struct dcp_item *items; /* the objects */
    int n;
    struct pickle_writer w;
};

/* The state of ranks may be one object. */
static bool is_of_root(const char *name)
{
    static const char *const other[] = { ARGS, "rng_state", "rerun_state_machine", NULL };

    return !strchr(name, '.') && !text_is_one_of(name, other);
}

bool fsdp_dtensor_root_has(const char *name)
{
    return is_of_root(name) || strcmp(name, ARGS) == 0 ||
           strncmp(name, SCHEDULE, strlen(SCHEDULE)) == 0 ||
           strncmp(name, FSDP_DTENSOR_GROUPS, strlen(FSDP_DTENSOR_GROUPS)) == 0;
}

/* Keep the objects, and add their files to the source's table. */
static tp_status find_objects(struct root_reader *r, const char *dir, struct tp_err *err)
{
    int n = 0;
    tp_status st;

    r->arena.limit_bytes = piece_source_memory_left(r->source);
    st = dcp_metadata_read(&r->items, &n, dir, &r->arena, err);
    if (st)
        return st;
    for (int i = 0; i < n; i++)
        if (r->items[i].is_object)
            r->items[r->n++] = r->items[i];
    return dcp_metadata_add_files(r->items, r->n, dir, piece_source_files(r->source), err);
}

static tp_status open_object(struct torch_pieces *x, const struct root_reader *r,
                             const struct dcp_item *item, struct tp_err *err)
{
    return torch_pieces_open(x, r->source, item->file_number, item->begin, item->size, err);
}

/* Push an object as the value of a key. What is not plain stays behind. */
static tp_status push_object(struct root_reader *r, const struct dcp_item *item, const char *key,
                             struct tp_err *err)
{
    struct torch_pieces x = { .source = r->source };
    tp_status st;

    TP_TRY(open_object(&x, r, item, err));
    if (!pickle_copy_can(x.root)) {
        st = piece_source_leave(r->source, item->name, err);
        goto done;
    }
    pickle_write_text(&r->w, key);
    pickle_copy(&r->w, x.root);
done:
    torch_pieces_close(&x);
    return st;
}

/* Push a dict of the objects whose names are a prefix of n bytes and a word. */
static tp_status push_below(struct root_reader *r, const char *prefix, size_t n, struct tp_err *err)
{
    tp_status st = TP_OK;

    pickle_write_dict(&r->w);
    for (int i = 0; i < r->n && !st; i++) {
        const char *name = r->items[i].name;

        if (strncmp(name, prefix, n) == 0 && !strchr(name + n, '.'))
            st = push_object(r, &r->items[i], name + n, err);
    }
    pickle_write_op(&r->w, PICKLE_OP_SETITEMS);
    return st;
}

static bool has_below(const struct root_reader *r, const char *prefix)
{
    for (int i = 0; i < r->n; i++)
        if (strncmp(r->items[i].name, prefix, strlen(prefix)) == 0)
            return true;
    return false;
}

/* The name of an option of a matrix, whose group has weight decay, or of another parameter; NULL:
 * there are no options. */
static const char *find_option(const struct root_reader *r)
{
    const char *found = NULL;

    for (int i = 0; i < r->n; i++) {
        const char *name = r->items[i].name;

        if (strncmp(name, FSDP_DTENSOR_GROUPS, strlen(FSDP_DTENSOR_GROUPS)) != 0 ||
            !text_ends_with(name, "." OF_OPTION))
            continue;
        if (strstr(name, DECAYING))
            return name;
        found = found ? found : name;
    }
    return found;
}

static tp_status push_optimizer(struct root_reader *r, const char *option, struct tp_err *err)
{
    struct pickle_writer *w = &r->w;
    tp_status st;

    pickle_write_text(w, "optimizer");
    pickle_write_dict(w);
    pickle_write_text(w, "param_groups");
    pickle_write_list(w);
    st = push_below(r, option, strlen(option) - strlen(OF_OPTION), err);
    pickle_write_op(w, PICKLE_OP_APPENDS);
    pickle_write_op(w, PICKLE_OP_SETITEMS);
    return st;
}

/* Write the root without arguments. */
static tp_status push_root(struct root_reader *r, struct tp_err *err)
{
    const char *option = find_option(r);
    tp_status st = TP_OK;

    pickle_write_begin(&r->w);
    pickle_write_dict(&r->w);
    for (int i = 0; i < r->n && !st; i++)
        if (is_of_root(r->items[i].name))
            st = push_object(r, &r->items[i], r->items[i].name, err);
    if (!st && has_below(r, SCHEDULE)) {
        pickle_write_text(&r->w, "opt_param_scheduler");
        st = push_below(r, SCHEDULE, strlen(SCHEDULE), err);
    }
    if (!st && option)
        st = push_optimizer(r, option, err);
    pickle_write_op(&r->w, PICKLE_OP_SETITEMS);
    pickle_write_op(&r->w, PICKLE_OP_STOP);
    return st;
}

static const struct dcp_item *find_args(const struct root_reader *r)
{
    for (int i = 0; i < r->n; i++)
        if (strcmp(r->items[i].name, ARGS) == 0)
            return &r->items[i];
    return NULL;
}

tp_status fsdp_dtensor_root_open(const struct pickle_value **root, struct torch_pieces *x,
                                 char path[PATH_MAX], const char *dir, struct tp_err *err)
{
    struct root_reader r = { .source = x->source };
    const struct dcp_item *args;
    tp_status st;

    TP_TRY(find_objects(&r, dir, err));
    TP_TRY(file_join(path, dir, ".metadata", err));
    TP_TRY(push_root(&r, err));
    if (r.w.failed) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its objects", path);
        goto done;
    }
    TP_TRY(pickle_read(root, r.w.data, r.w.n, path, piece_source_arena(x->source), err));
    args = find_args(&r);
    if (!args)
        goto done;
    TP_TRY(file_join(path, dir, args->file, err));
    st = open_object(x, &r, args, err);
done:
    pickle_writer_free(&r.w);
    arena_free(&r.arena);
    return st;
}
