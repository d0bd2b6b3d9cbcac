/* reshard/formats/megatron/torch_dist_root.c - see reshard/formats/megatron/torch_dist_root.h; and
 * a config.json of what a checkpoint says. */
#include "reshard/formats/megatron/torch_dist_root.h"

#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "layout/model_config.h"
#include "reshard/formats/megatron/fsdp_dtensor_root.h"
#include "reshard/formats/megatron/megatron_config.h"
#include "reshard/formats/megatron/megatron_folder.h"
#include "reshard/formats/torch/dcp_metadata.h"
#include "storage/object.h"

#define MODEL  "model."  /* before fsdp_dtensor's names */
#define MODULE "module." /* before NeMo's and fsdp_dtensor's */
#define OBJECT "common_state/shard_0_1"

/* Open the object of .metadata that Megatron-core writes since 0.19 in place of common.pt, and set
 * `path` to the file that has it: a list of one dict. */
static tp_status open_object(struct torch_dist_root *r, const char *dir, struct tp_err *err)
{
    struct piece_source *s = r->x.source;
    struct dcp_item *items = NULL, *found = NULL;
    int n = 0;
    tp_status st;

    TP_TRY(dcp_metadata_read(&items, &n, dir, piece_source_arena(s), err));
    for (int i = 0; i < n; i++)
        if (items[i].is_object && torch_dist_root_is(items[i].name))
            found = &items[i];
    if (!found) {
        st = tp_fail(err, TP_E_CORRUPT, "%s: has no common.pt, and .metadata no " OBJECT, dir);
        goto done;
    }
    TP_TRY(dcp_metadata_add_files(found, 1, dir, piece_source_files(s), err));
    TP_TRY(file_join(r->path, dir, found->file, err));
    TP_TRY(torch_pieces_open(&r->x, s, found->file_number, found->begin, found->size, err));
    r->root = pickle_item(r->x.root, 0);
    if (!pickle_is(r->root, PICKLE_DICT))
        st = tp_fail(err, TP_E_CORRUPT, "%s: " OBJECT " is not a list with a dict", r->path);
done:
    return st;
}

/* A dict with one more entry; NULL: memory is out. */
static const struct pickle_value *with_args(const struct pickle_value *dict,
                                            const struct pickle_value *args, struct arena *arena)
{
    const int64_t n = pickle_entries(dict);
    struct pickle_value *out = arena_alloc(arena, sizeof *out), *key;
    char *name = arena_strdup(arena, "args");

    key = arena_alloc(arena, sizeof *key);
    if (!out || !key || !name)
        return NULL;
    *out = *dict;
    *key = (struct pickle_value){ .kind = PICKLE_TEXT, .text = { name, (int64_t)strlen(name) } };
    out->list.items = arena_array(arena, (size_t)n + 1, 2 * sizeof *out->list.items);
    if (!out->list.items)
        return NULL;
    for (int64_t i = 0; i < n; i++) {
        out->list.items[2 * i] = pickle_key(dict, i);
        out->list.items[2 * i + 1] = pickle_entry(dict, i);
    }
    out->list.items[2 * n] = key;
    out->list.items[2 * n + 1] = args;
    out->list.n = out->list.room = 2 * (n + 1);
    return out;
}

/* fsdp_dtensor has an object for each value. */
static tp_status open_objects(struct torch_dist_root *r, const char *dir, struct tp_err *err)
{
    tp_status st = fsdp_dtensor_root_open(&r->root, &r->x, r->path, dir, err);

    if (!st && r->x.root) {
        r->root = with_args(r->root, r->x.root, piece_source_arena(r->x.source));
        if (!r->root)
            st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its arguments", r->path);
    }
    return st;
}

/* Open the common state, and set `path` to the file that has it. */
static tp_status open_common(struct torch_dist_root *r, const char *dir, struct tp_err *err)
{
    int file = 0;
    tp_status st;

    if (!object_is_in(dir, "metadata.json"))
        return open_objects(r, dir, err);
    TP_TRY(file_join(r->path, dir, "common.pt", err));
    if (!object_is_there(r->path))
        return open_object(r, dir, err);
    TP_TRY(file_table_add(piece_source_files(r->x.source), &file, r->path, err));
    TP_TRY(torch_pieces_open(&r->x, r->x.source, file, 0, -1, err));
    r->root = r->x.root;
done:
    return st;
}

bool torch_dist_root_is(const char *name)
{
    return strcmp(name, OBJECT) == 0;
}

tp_status torch_dist_root_open(struct torch_dist_root *r, const char *dir, int64_t rows,
                               struct tp_err *err)
{
    struct arena *arena = piece_source_arena(r->x.source);
    tp_status st;

    TP_TRY(open_common(r, dir, err));
    if (pickle_get(r->root, "args") || !pickle_is(r->root, PICKLE_DICT))
        return TP_OK;
    TP_TRY(bridge_args_read(&r->bridge, dir, rows, r->x.source, err));
    if (!r->bridge.args)
        return TP_OK;
    snprintf(r->path, sizeof r->path, "%s", r->bridge.path);
    r->root = with_args(r->root, r->bridge.args, arena);
    if (!r->root)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for its arguments", r->path);
done:
    return st;
}

/* The config.json of the copy for transformers that Bridge leaves with also_save_hf_checkpoint. */
static tp_status find_hf_copy(const char **text, const char **note, const char *dir,
                              struct arena *arena, struct tp_err *err)
{
    char path[PATH_MAX], *found;
    size_t size;
    tp_status st;

    TP_TRY(file_join(path, dir, "hf/config.json", err));
    if (!object_is_there(path))
        return TP_OK;
    TP_TRY(object_read_any(&found, &size, path, MODEL_CONFIG_BYTES_MAX, arena, err));
    *note = arena_printf(arena, "%s: is taken as config.json; --config FILE gives another", path);
    if (!*note)
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for it", path);
    *text = found;
done:
    return st;
}

/* Rows of the embedding, padding included; 0: it is not found. */
static tp_status find_rows(int64_t *rows, const char *dir, struct arena *arena, struct tp_err *err)
{
    struct dcp_item *items = NULL;
    int n = 0;
    tp_status st = dcp_metadata_read(&items, &n, dir, arena, err);

    *rows = 0;
    for (int i = 0; i < n && !st; i++) {
        const char *name = items[i].name;

        if (strncmp(name, MODEL, strlen(MODEL)) == 0)
            name += strlen(MODEL);
        while (strncmp(name, MODULE, strlen(MODULE)) == 0)
            name += strlen(MODULE);
        if (!items[i].is_object && strcmp(name, "embedding.word_embeddings.weight") == 0)
            *rows = items[i].shape[0];
    }
    return st;
}

/* Where the model's own config.json is, for messages. */
static tp_status add_hf_id(tp_status st, const struct bridge_args *b, struct tp_err *err)
{
    char text[TP_ERR_MAX];

    if (st != TP_E_USAGE || !b->hf_id)
        return st;
    snprintf(text, sizeof text, "%s", err->msg);
    return tp_fail(err, st, "%s: that of %.100s, from which the model was made", text, b->hf_id);
}

/* A config.json of the arguments. */
static tp_status make_config(const char **text, const char **note, struct torch_dist_root *r,
                             const char *dir, struct tp_err *err)
{
    if (!pickle_get(r->root, "args"))
        return tp_fail(
            err, TP_E_USAGE,
            "%s: has no config.json beside it, nor arguments of Megatron-LM in it, "
            "nor Megatron-Bridge's " BRIDGE_RUN_CONFIG
            ", nor NeMo's ../context/model.yaml to make one from; give one with --config",
            dir);
    if (r->bridge.unknown)
        return tp_fail(err, TP_E_USAGE,
                       "%s: its model is a %.140s, from which no config.json can be made; give one "
                       "with --config",
                       r->path, r->bridge.unknown);
    return megatron_config_make(text, note, pickle_get(r->root, "args"), r->path,
                                piece_source_arena(r->x.source), err);
}

tp_status torch_dist_root_config(const char **text, const char **note, struct piece_source *s,
                                 struct tp_err *err)
{
    struct torch_dist_root r = { .x = { .source = s } };
    struct arena *arena = piece_source_arena(s);
    char dir[PATH_MAX];
    int64_t rows = 0;
    tp_status st;

    TP_TRY(megatron_folder_find(dir, piece_source_path(s), err));
    TP_TRY(find_hf_copy(text, note, dir, arena, err));
    if (*text)
        return TP_OK;
    TP_TRY(torch_dist_root_open(&r, dir, 0, err));
    if (r.bridge.args) {
        torch_pieces_close(&r.x);
        r = (struct torch_dist_root){ .x = { .source = s } };
        TP_TRY(find_rows(&rows, dir, arena, err));
        TP_TRY(torch_dist_root_open(&r, dir, rows, err));
    }
    st = add_hf_id(make_config(text, note, &r, dir, err), &r.bridge, err);
done:
    torch_pieces_close(&r.x);
    return st;
}
