/* orchestrator/state/json_lines.c - see orchestrator/state/json_lines.h. */
#include "orchestrator/state/json_lines.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>
#include <unistd.h>

void json_lines_keep(json_t *list, json_t *value, int keep)
{
    json_array_append_new(list, value);
    if (json_array_size(list) > (size_t)keep)
        json_array_remove(list, 0);
}

void json_lines_each(const char *path, void (*use)(void *ctx, json_t *value), void *ctx)
{
    FILE *f = fopen(path, "re");
    char *line = NULL;
    size_t size = 0;

    while (f && getline(&line, &size, f) > 0) {
        json_t *value = json_loads(line, 0, NULL);

        if (value)
            use(ctx, value);
        json_decref(value);
    }
    free(line);
    if (f)
        fclose(f);
}

/* The newest values of a file. */
struct json_lines_newest {
    json_t *list;
    int keep;
};

static void keep_value(void *ctx, json_t *value)
{
    const struct json_lines_newest *n = ctx;

    json_lines_keep(n->list, json_incref(value), n->keep);
}

json_t *json_lines_read(const char *path, int keep)
{
    struct json_lines_newest n = { json_array(), keep };

    if (n.list)
        json_lines_each(path, keep_value, &n);
    return n.list;
}

bool json_lines_end(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char last = '\n';

    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        return false;
    return last == '\n' || write(fd, "\n", 1) == 1;
}
