/*
 * orchestrator/process/environment.h - a program's environment, as a value.
 *
 * tp-run gets its own environment from main, and builds one for every program that it starts. After
 * a change without memory, environment_list returns NULL.
 */
#ifndef ORCHESTRATOR_PROCESS_ENVIRONMENT_H
#define ORCHESTRATOR_PROCESS_ENVIRONMENT_H

#include <stdbool.h>

struct environment {
    char **entry; /* "NAME=value", NULL after the last; array and texts are malloc'ed */
    int n;
    bool failed;
};

/* Copy a list of "NAME=value" that ends with NULL. */
void environment_copy(struct environment *out, char *const *entries);
void environment_free(struct environment *e);

/* The list for execve. NULL: there was no memory. */
char *const *environment_list(const struct environment *e);

/* The value of a name; NULL: it is not set. */
const char *environment_get(const struct environment *e, const char *name);

void environment_set(struct environment *e, const char *name, const char *value);
/* Put `text` before the value of a name, which may be not set. */
void environment_prepend(struct environment *e, const char *name, const char *text);
void environment_unset(struct environment *e, const char *name);

/* Unset every name that begins with `prefix`, except those in `kept`, which ends with NULL. */
void environment_unset_prefix(struct environment *e, const char *prefix, const char *const *kept);

#endif
