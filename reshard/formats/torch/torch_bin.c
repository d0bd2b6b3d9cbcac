/* reshard/formats/torch/torch_bin.c - see reshard/formats/torch/torch_bin.h. */
#include "reshard/formats/torch/torch_bin.h"

#include <limits.h>
#include <string.h>

#include "core/file.h"
#include "reshard/formats/pieces/compiled_name.h"
#include "reshard/formats/pieces/module_piece.h"
#include "reshard/formats/safetensors/safetensors_index.h"
#include "reshard/formats/safetensors/safetensors_pieces.h"
#include "storage/object.h"

#define ONE_FILE "pytorch_model.bin"
#define INDEX    "pytorch_model.bin.index.json"

bool torch_bin_detect(const char *path)
{
    static const char *const names[] = { ONE_FILE, INDEX };
    struct tp_err err = { 0 };
    char file[PATH_MAX];

    for (int i = 0; i < 2; i++)
        if (!file_join(file, path, names[i], &err) && object_is_there(file))
            return !safetensors_pieces_detect(path);
    return false;
}

/* What a name is behind the prefix; NULL: it has another one. */
static const char *behind(const char *name, const char *prefix)
{
    const size_t n = strlen(prefix);

    return strncmp(name, prefix, n) == 0 ? name + n : NULL;
}

tp_status torch_bin_read_dict(struct torch_pieces *x, const struct pickle_value *dict,
                              const char *prefix, const struct model *m, struct tp_err *err)
{
    const char *path = file_table_path(piece_source_files(x->source), x->file);
    tp_status st = TP_OK;

    if (!pickle_is(dict, PICKLE_DICT))
        return tp_fail(err, TP_E_CORRUPT, "%s: is not a dict from names to tensors", path);
    for (int64_t i = 0; i < pickle_entries(dict) && !st; i++) {
        const char *key = pickle_text(pickle_key(dict, i)), *name;
        const struct pickle_value *v = pickle_entry(dict, i);
        struct piece p;

        if (!key)
            return tp_fail(err, TP_E_CORRUPT, "%s: the name of a tensor is not text", path);
        name = compiled_name_plain(piece_source_arena(x->source), key);
        if (!name)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory for its index", path);
        name = behind(name, prefix);
        if (name && torch_tensor_is_part(v))
            return tp_fail(err, TP_E_USAGE,
                           "%s: tensor %s is a DTensor, of which this file has the part of one "
                           "rank; save whole tensors, as get_model_state_dict() gives them with "
                           "full_state_dict, or a folder by torch.distributed.checkpoint",
                           path, name);
        if (!name || !torch_tensor_is(v)) {
            st = piece_source_leave(x->source, key, err);
            continue;
        }
        st = torch_pieces_tensor(&p, x, v, GROUP_PARAM, name, err);
        if (!st)
            st = module_piece_add(x->source, m, &p, err);
    }
    return st;
}

tp_status torch_bin_read_file(struct piece_source *s, const struct model *m, int file,
                              struct tp_err *err)
{
    struct torch_pieces x = { .source = s };
    tp_status st;

    TP_TRY(torch_pieces_open(&x, s, file, 0, -1, err));
    TP_TRY(torch_bin_read_dict(&x, x.root, "", m, err));
done:
    torch_pieces_close(&x);
    return st;
}

tp_status torch_bin_read(struct piece_source *s, const struct model *m, struct tp_err *err)
{
    struct safetensors_files files = { .n = 0 };
    char path[PATH_MAX];
    int ignored;
    tp_status st;

    TP_TRY(file_join(path, piece_source_path(s), ONE_FILE, err));
    if (object_is_there(path)) {
        TP_TRY(piece_source_add_file(s, ONE_FILE, &ignored, err));
    } else {
        TP_TRY(file_join(path, piece_source_path(s), INDEX, err));
        TP_TRY(safetensors_index_read(&files, path, piece_source_arena(s), err));
    }
    for (int i = 0; i < files.n; i++)
        TP_TRY(piece_source_add_file(s, files.names[i], &ignored, err));
    for (int i = 0; i < file_table_count(piece_source_files(s)); i++)
        TP_TRY(torch_bin_read_file(s, m, i, err));
done:
    return st;
}
