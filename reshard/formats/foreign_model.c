/* reshard/formats/foreign_model.c - see reshard/formats/foreign_model.h. */
#include "reshard/formats/foreign_model.h"

#include <jansson.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "core/file.h"
#include "core/text.h"
#include "layout/model_config.h"
#include "storage/location.h"
#include "storage/object.h"

/* Whether the folder has steps, and a file that says which is the newest. */
static bool has_steps(const char *dir)
{
    for (int i = 0; i < FOREIGN_TRACKERS; i++)
        if (object_is_in(dir, foreign_trackers[i]))
            return true;
    return false;
}

bool foreign_model_folder(char dir[PATH_MAX], const char *path)
{
    snprintf(dir, PATH_MAX, "%s", path);
    if (!location_is_remote(path) && !file_is_dir(path))
        return false;
    if (object_is_in(dir, "config.json"))
        return true;
    file_parent(dir, path);
    if (has_steps(dir) && object_is_in(dir, "config.json") && !has_steps(path))
        return true;
    snprintf(dir, PATH_MAX, "%s", path);
    return false;
}

static bool has_file(const struct foreign_model_request *q)
{
    char dir[PATH_MAX];

    return q->config || foreign_model_folder(dir, q->path);
}

static bool can_make(const struct foreign_model_request *q)
{
    return q->format && q->format->config;
}

bool foreign_model_exists(const struct foreign_model_request *q)
{
    return has_file(q) || can_make(q);
}

static tp_status refuse_missing(const char *path, struct tp_err *err)
{
    tp_status st = location_is_remote(path) ? foreign_reach(path, err) : TP_OK;

    if (st)
        return st;
    return tp_fail(err, TP_E_NOTFOUND,
                   "%s: has no config.json, which says what model it is; name the model's with "
                   "--config FILE",
                   path);
}

static tp_status make(struct model *out, const char **note, const struct foreign_model_request *q,
                      struct arena *arena, struct tp_err *err)
{
    struct piece_source *s = NULL;
    const char *text = NULL, *said = NULL, *path;
    tp_status st;

    TP_TRY(piece_source_new(&s, q->path, err));
    piece_source_limit(s, q->memory_bytes);
    TP_TRY(q->format->config(&text, &said, s, err));
    if (!text) {
        st = refuse_missing(q->path, err);
        goto done;
    }
    path = arena_printf(arena, "%s (its arguments as a config.json)", q->path);
    *note = arena_strdup(arena, said);
    if (!path || !*note) {
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory for a config.json", q->path);
        goto done;
    }
    st = q->takes_any ? model_config_parse_any(out, text, strlen(text), path, arena, err)
                      : model_config_parse(out, text, strlen(text), path, arena, err);
done:
    piece_source_close(s);
    return st;
}

tp_status foreign_model_config(struct model *out, const char *path, bool takes_any,
                               struct arena *arena, struct tp_err *err)
{
    const char *file;
    char *text;
    size_t size;
    tp_status st;

    if (!location_is_remote(path))
        return takes_any ? model_config_read_any(out, path, arena, err)
                         : model_config_read(out, path, arena, err);
    file = text_ends_with(path, ".json") ? path : arena_printf(arena, "%s/config.json", path);
    if (!file)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory", path);
    st = object_read_all(&text, &size, file, MODEL_CONFIG_BYTES_MAX, arena, err);
    if (st)
        return st;
    return takes_any ? model_config_parse_any(out, text, size, file, arena, err)
                     : model_config_parse(out, text, size, file, arena, err);
}

tp_status foreign_model_read(struct model *out, const char **note,
                             const struct foreign_model_request *q, struct arena *arena,
                             struct tp_err *err)
{
    char dir[PATH_MAX];

    *note = NULL;
    if (q->config)
        return foreign_model_config(out, q->config, q->takes_any, arena, err);
    if (foreign_model_folder(dir, q->path))
        return foreign_model_config(out, dir, q->takes_any, arena, err);
    return can_make(q) ? make(out, note, q, arena, err) : refuse_missing(q->path, err);
}

bool foreign_model_is_quantized(char method[QUANT_METHOD_MAX], const struct model *m)
{
    json_t *root = m->config ? json_loads(m->config, 0, NULL) : NULL;
    const json_t *how = json_object_get(root, "quantization_config");
    const char *name = json_string_value(json_object_get(how, "quant_method"));
    const bool is = json_is_object(how);

    snprintf(method, QUANT_METHOD_MAX, "%s", name ? name : "quantization_config");
    json_decref(root);
    return is;
}

tp_status foreign_model_explain_quantized(tp_status st, const struct model *m, struct tp_err *err)
{
    char method[QUANT_METHOD_MAX];

    if (!foreign_model_is_quantized(method, m))
        return st;
    return tp_fail_in(err,
                      "config.json says that the weights are quantized (%s), which is not "
                      "supported; convert the model to bf16 first",
                      method);
}
