/* orchestrator/state/state_owner.c - see orchestrator/state/state_owner.h. */
#include "orchestrator/state/state_owner.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/file.h"
#include "core/private_dir.h"
#include "core/text.h"

static const char FILE_NAME[] = "job-file";

/* The name of the job file that the open folder belongs to; "": none. */
static void read_owner(char name[NAME_MAX + 1], int dir, const char *state)
{
    struct arena arena = { 0 };
    struct tp_err ignored;
    char *text = NULL;
    size_t size = 0;

    name[0] = 0;
    if (private_dir_read(&text, &size, dir, state, FILE_NAME, NAME_MAX + 1, &arena, &ignored) ==
            TP_OK &&
        size > 1 && text[size - 1] == '\n')
        snprintf(name, NAME_MAX + 1, "%.*s", (int)size - 1, text);
    arena_free(&arena);
}

/* Check the open folder. owner: its owner, which may be gone; "": none. */
static tp_status check(char owner[NAME_MAX + 1], int dir, const struct job *job, struct tp_err *err)
{
    const char *name = text_base_name(job->path);
    char path[PATH_MAX];
    struct tp_err ignored;

    read_owner(owner, dir, job->state);
    if (!owner[0] || strcmp(owner, name) == 0 || strchr(owner, '/') ||
        file_join(path, job->dir, owner, &ignored) || !file_exists(path))
        return TP_OK;
    return tp_fail(
        err, TP_E_USAGE,
        "%s: its state folder %.400s belongs to the job file %.255s beside it; rename one "
        "of the two files, or say \"state: FOLDER\" in this one (the same folder only if "
        "both are one job)",
        job->path, job->state, owner);
}

tp_status state_owner_check(const struct job *job, struct tp_err *err)
{
    char owner[NAME_MAX + 1];
    struct tp_err ignored;
    int dir;
    tp_status st;

    if (!job->state_is_default || private_dir_open(&dir, job->state, &ignored))
        return TP_OK;
    st = check(owner, dir, job, err);
    close(dir);
    return st;
}

tp_status state_owner_claim(char before[NAME_MAX + 1], const struct job *job, struct tp_err *err)
{
    char line[NAME_MAX + 2];
    int dir, n;
    tp_status st;

    before[0] = 0;
    if (!job->state_is_default)
        return TP_OK;
    if ((st = private_dir_ensure(&dir, job->state, err)))
        return st;
    n = snprintf(line, sizeof line, "%s\n", text_base_name(job->path));
    st = check(before, dir, job, err);
    if (st == TP_OK && strncmp(before, line, (size_t)n - 1) == 0 && !before[n - 1])
        before[0] = 0; /* it is the owner already */
    else if (st == TP_OK)
        st = private_dir_replace(dir, job->state, FILE_NAME, line, (size_t)n, err);
    close(dir);
    return st;
}
