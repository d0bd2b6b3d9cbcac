/* orchestrator/process/home.c - see orchestrator/process/home.h. */
#include "orchestrator/process/home.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/private_dir.h"

enum { FILE_MAX = 1024 };

static const char NAME[] = "home";

void home_here(struct home *out, long job, const char *node)
{
    *out = (struct home){ .job = job };
    gethostname(out->host, sizeof out->host - 1);
    snprintf(out->node, sizeof out->node, "%s", job && node ? node : "");
}

tp_status home_write(const struct home *home, int dir, struct tp_err *err)
{
    char text[FILE_MAX];
    int n = snprintf(text, sizeof text, "%s %ld %s\n", home->host, home->job, home->node);

    return private_dir_replace(dir, "state folder", NAME, text, (size_t)n, err);
}

void home_remove(int dir)
{
    unlinkat(dir, NAME, 0);
}

/* Copy the next word of a line, cut to `size`. Returns what follows it. */
static const char *take_word(char *out, size_t size, const char *p)
{
    int n;

    p += strspn(p, " ");
    n = (int)strcspn(p, " \n");
    snprintf(out, size, "%.*s", n, p);
    return p + n;
}

bool home_read(struct home *out, const char *state)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char job[32], *text;
    const char *p;
    size_t n;
    int dir;

    *out = (struct home){ 0 };
    if (private_dir_open(&dir, state, &ignored))
        return false;
    if (private_dir_read(&text, &n, dir, state, NAME, FILE_MAX, &arena, &ignored) == TP_OK) {
        p = take_word(out->host, sizeof out->host, text);
        p = take_word(job, sizeof job, p);
        take_word(out->node, sizeof out->node, p);
        out->job = strtol(job, NULL, 10);
    }
    arena_free(&arena);
    close(dir);
    return out->host[0] != 0;
}

bool home_is_elsewhere(struct home *out, const char *state)
{
    struct home here;

    home_here(&here, 0, NULL);
    return home_read(out, state) && strcmp(here.host, out->host) != 0;
}
