/* orchestrator/process/environment.c - see orchestrator/process/environment.h. */
#include "orchestrator/process/environment.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Append a malloc'ed entry; NULL: there was no memory for it. */
static void append(struct environment *e, char *entry)
{
    char **grown = entry ? realloc(e->entry, ((size_t)e->n + 2) * sizeof *grown) : NULL;

    if (!grown) {
        free(entry);
        e->failed = true;
        return;
    }
    e->entry = grown;
    e->entry[e->n++] = entry;
    e->entry[e->n] = NULL;
}

void environment_copy(struct environment *out, char *const *entries)
{
    *out = (struct environment){ .entry = calloc(1, sizeof *out->entry) };
    out->failed = !out->entry;
    for (int i = 0; !out->failed && entries[i]; i++)
        append(out, strdup(entries[i]));
}

void environment_free(struct environment *e)
{
    for (int i = 0; i < e->n; i++)
        free(e->entry[i]);
    free(e->entry);
    *e = (struct environment){ 0 };
}

char *const *environment_list(const struct environment *e)
{
    return e->failed ? NULL : e->entry;
}

/* The index of a name, -1: it is not set. */
static int find(const struct environment *e, const char *name)
{
    size_t n = strlen(name);

    for (int i = 0; i < e->n; i++)
        if (strncmp(e->entry[i], name, n) == 0 && e->entry[i][n] == '=')
            return i;
    return -1;
}

const char *environment_get(const struct environment *e, const char *name)
{
    int i = find(e, name);

    return i < 0 ? NULL : e->entry[i] + strlen(name) + 1;
}

static void drop(struct environment *e, int i)
{
    free(e->entry[i]);
    memmove(e->entry + i, e->entry + i + 1, (size_t)(e->n - i) * sizeof *e->entry);
    e->n--;
}

void environment_unset(struct environment *e, const char *name)
{
    for (int i; (i = find(e, name)) >= 0;)
        drop(e, i);
}

/* Replace the entry of a name by "name=" text value. The value may be the entry's own. */
static void replace(struct environment *e, const char *name, const char *text, const char *value)
{
    size_t size = strlen(name) + strlen(text) + strlen(value) + 2;
    char *entry = malloc(size);

    if (entry)
        snprintf(entry, size, "%s=%s%s", name, text, value);
    environment_unset(e, name);
    append(e, entry);
}

void environment_set(struct environment *e, const char *name, const char *value)
{
    replace(e, name, "", value);
}

void environment_prepend(struct environment *e, const char *name, const char *text)
{
    const char *value = environment_get(e, name);

    replace(e, name, text, value ? value : "");
}

static bool is_kept(const char *entry, const char *const *kept)
{
    for (; *kept; kept++)
        if (strncmp(entry, *kept, strlen(*kept)) == 0 && entry[strlen(*kept)] == '=')
            return true;
    return false;
}

void environment_unset_prefix(struct environment *e, const char *prefix, const char *const *kept)
{
    for (int i = e->n - 1; i >= 0; i--)
        if (strncmp(e->entry[i], prefix, strlen(prefix)) == 0 && !is_kept(e->entry[i], kept))
            drop(e, i);
}
