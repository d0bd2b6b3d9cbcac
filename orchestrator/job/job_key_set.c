/* orchestrator/job/job_key_set.c - see orchestrator/job/job_key_set.h. */
#include "orchestrator/job/job_key_set.h"

#include <string.h>

#include "core/similar.h"

static const struct job_key *find_in(const struct job_key *keys, const char *section,
                                     const char *name)
{
    for (const struct job_key *k = keys; k && k->kind != JOB_KIND_END; k++)
        if (strcmp(k->section, section) == 0 && strcmp(k->name, name) == 0)
            return k;
    return NULL;
}

const struct job_key *job_key_set_find(const struct job_backend *const *backends,
                                       const char *section, const char *name)
{
    const struct job_key *k = find_in(job_keys(), section, name);

    for (int i = 0; !k && backends[i]; i++)
        k = find_in(backends[i]->keys, section, name);
    return k;
}

static const struct job_key *find_in_section(const struct job_key *keys, const char *name)
{
    for (const struct job_key *k = keys; k && k->kind != JOB_KIND_END; k++) {
        size_t n = strlen(k->section);
        bool qualified = n > 0 && strncmp(name, k->section, n) == 0 && name[n] == '.';

        if (n > 0 && strcmp(qualified ? name + n + 1 : name, k->name) == 0)
            return k;
    }
    return NULL;
}

const struct job_key *job_key_set_in_section(const struct job_backend *const *backends,
                                             const char *name)
{
    const struct job_key *k = find_in_section(job_keys(), name);

    for (int i = 0; !k && backends[i]; i++)
        k = find_in_section(backends[i]->keys, name);
    return k;
}

bool job_key_set_has_section(const struct job_backend *const *backends, const char *name)
{
    for (int i = 0; backends[i]; i++)
        if (backends[i]->keys && strcmp(backends[i]->name, name) == 0)
            return true;
    return job_section_help(name) != NULL;
}

/* At the top level the names of sections count as well. */
static void try_keys(struct similar *similar, const struct job_key *keys, const char *section)
{
    for (const struct job_key *k = keys; k && k->kind != JOB_KIND_END; k++) {
        if (strcmp(k->section, section) == 0)
            similar_try(similar, k->name);
        else if (!section[0])
            similar_try(similar, k->section);
    }
}

const char *job_key_set_similar(const struct job_backend *const *backends, const char *section,
                                const char *name)
{
    struct similar similar = similar_to(name);

    try_keys(&similar, job_keys(), section);
    for (int i = 0; backends[i]; i++)
        try_keys(&similar, backends[i]->keys, section);
    return similar.name;
}
