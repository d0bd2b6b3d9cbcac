/* reshard/formats/safetensors/safetensors_index.c - see
 * reshard/formats/safetensors/safetensors_index.h. */
#include "reshard/formats/safetensors/safetensors_index.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"
#include "core/json_scan.h"
#include "storage/object.h"

enum { INDEX_FILES_MAX = 100000 };

struct safetensors_index_reader {
    const char *path; /* of the index */
    struct arena *arena;
    const char **names; /* ascending; in the arena */
    int n, room;
};

/* The place of a name in the list, or where it belongs. */
static int place_of(const struct safetensors_index_reader *f, const char *name, bool *found)
{
    int from = 0, to = f->n;

    *found = false;
    while (from < to && !*found) {
        int middle = from + (to - from) / 2, order = strcmp(name, f->names[middle]);

        *found = order == 0;
        if (order < 0)
            to = middle;
        else
            from = middle + (order > 0);
    }
    return from;
}

static tp_status add_name(struct safetensors_index_reader *f, const char *name, struct tp_err *err)
{
    bool found;
    int at = place_of(f, name, &found);

    if (found)
        return TP_OK;
    if (f->n == INDEX_FILES_MAX)
        return tp_fail(err, TP_E_CORRUPT, "%s: names more than %d files", f->path, INDEX_FILES_MAX);
    if (f->n == f->room) {
        int room = f->room ? 2 * f->room : 64;
        const char **grown = arena_array(f->arena, (size_t)room, sizeof *grown);

        if (!grown)
            return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", f->path);
        for (int i = 0; i < f->n; i++)
            grown[i] = f->names[i];
        f->names = grown;
        f->room = room;
    }
    name = arena_strdup(f->arena, name);
    if (!name)
        return tp_fail(err, TP_E_NOMEM, "%s: no memory to read it", f->path);
    memmove(f->names + at + 1, f->names + at, (size_t)(f->n - at) * sizeof *f->names);
    f->names[at] = name;
    f->n++;
    return TP_OK;
}

/* Read the members of weight_map: a file for each tensor. */
static tp_status read_map(struct safetensors_index_reader *f, struct json_scan *s,
                          struct tp_err *err)
{
    struct json_scan_text text;
    bool more;
    tp_status st = json_scan_enter(s, '{', NULL, err);

    while (!st) {
        json_t *value = NULL;
        const char *name;

        TP_TRY(json_scan_member(s, &text, &more, err));
        if (!more)
            break;
        TP_TRY(json_scan_value(s, &text, err));
        value = json_loadb(text.text, text.n, JSON_DECODE_ANY, NULL);
        name = json_string_value(value);
        if (!name || !file_name_is_plain(name))
            st = tp_fail(err, TP_E_CORRUPT,
                         "%s: the file of a tensor is not a plain file name: "
                         "%.*s",
                         f->path, text.n < 80 ? (int)text.n : 80, text.text);
        else
            st = add_name(f, name, err);
        json_decref(value);
    }
done:
    return st;
}

/* Read an index. Its weight_map is entered, everything else is skipped. */
static tp_status read_index(struct safetensors_index_reader *f, struct json_scan *s,
                            struct tp_err *err)
{
    static const char map[] = "\"weight_map\"";
    struct json_scan_text key;
    bool more, found = false;
    tp_status st = json_scan_enter(s, '{', NULL, err);

    while (!st) {
        TP_TRY(json_scan_member(s, &key, &more, err));
        if (!more)
            break;
        if (key.n == sizeof map - 1 && memcmp(key.text, map, key.n) == 0) {
            TP_TRY(read_map(f, s, err));
            found = true;
        } else {
            TP_TRY(json_scan_skip(s, err));
        }
    }
    if (!st && !found)
        st = tp_fail(err, TP_E_CORRUPT, "%s: is not a JSON object with a weight_map", f->path);
    if (!st)
        st = json_scan_end(s, err);
done:
    return st;
}

tp_status safetensors_index_read(struct safetensors_files *out, const char *path,
                                 struct arena *arena, struct tp_err *err)
{
    struct safetensors_index_reader f = { .path = path, .arena = arena };
    struct json_scan *scan = NULL;
    struct json_scan_input in;
    int64_t size = 0;
    struct object o;
    tp_status st = object_open_any(&o, &size, path, err);

    if (st)
        return st;
    in = object_json(&o, 0, size, path);
    TP_TRY(json_scan_open(&scan, &in, err));
    TP_TRY(read_index(&f, scan, err));
    *out = (struct safetensors_files){ f.names, f.n };
done:
    json_scan_close(scan);
    object_close(&o);
    return st;
}
