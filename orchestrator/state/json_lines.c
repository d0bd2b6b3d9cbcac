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

json_t *json_lines_read(const char *path, int keep)
{
    json_t *list = json_array();
    FILE *f = list ? fopen(path, "re") : NULL;
    char *line = NULL;
    size_t size = 0;

    while (f && getline(&line, &size, f) > 0) {
        json_t *value = json_loads(line, 0, NULL);

        if (value)
            json_lines_keep(list, value, keep);
    }
    free(line);
    if (f)
        fclose(f);
    return list;
}

bool json_lines_end(int fd)
{
    off_t size = lseek(fd, 0, SEEK_END);
    char last = '\n';

    if (size > 0 && pread(fd, &last, 1, size - 1) != 1)
        return false;
    return last == '\n' || write(fd, "\n", 1) == 1;
}
