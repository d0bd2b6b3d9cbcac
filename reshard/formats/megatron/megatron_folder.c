/* reshard/formats/megatron/megatron_folder.c - see reshard/formats/megatron/megatron_folder.h. */
#include "reshard/formats/megatron/megatron_folder.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "storage/object.h"

#define LATEST "latest_checkpointed_iteration.txt"

enum { LATEST_BYTES_MAX = 64, NAME_BYTES = 32 };

/* The folder that the file LATEST in `path` names, or `path`. */
static tp_status find_iteration(char dir[PATH_MAX], const char *path, struct tp_err *err)
{
    struct arena arena = { 0 };
    char latest[PATH_MAX], name[NAME_BYTES] = "release", *text, *end;
    size_t size;
    long long iteration;
    tp_status st;

    TP_TRY(file_join(latest, path, LATEST, err));
    if (!object_is_there(latest)) {
        snprintf(dir, PATH_MAX, "%s", path);
        return TP_OK;
    }
    TP_TRY(object_read_any(&text, &size, latest, LATEST_BYTES_MAX, &arena, err));
    text[strcspn(text, "\r\n ")] = 0;
    iteration = strtoll(text, &end, 10);
    if (strcmp(text, name) != 0) {
        if (end == text || *end || iteration < 0) {
            st = tp_fail(err, TP_E_CORRUPT, "%s: is not an iteration, nor \"release\"", latest);
            goto done;
        }
        snprintf(name, sizeof name, "iter_%07lld", iteration);
    }
    st = file_join(dir, path, name, err);
done:
    arena_free(&arena);
    return st;
}

tp_status megatron_folder_find(char dir[PATH_MAX], const char *path, struct tp_err *err)
{
    char weights[PATH_MAX];
    tp_status st;

    if (object_is_in(path, LATEST) || object_is_in(path, "metadata.json"))
        return find_iteration(dir, path, err);
    TP_TRY(file_join(weights, path, "weights", err));
    if (object_is_in(weights, LATEST) || object_is_in(weights, "metadata.json"))
        path = weights;
    st = find_iteration(dir, path, err);
done:
    return st;
}
