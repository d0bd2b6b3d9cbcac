/* orchestrator/job/job.c - see orchestrator/job/job.h. */
#include "orchestrator/job/job.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

tp_status job_split(struct job_words *out, const char *text, struct arena *arena,
                    struct tp_err *err)
{
    size_t n = strlen(text);
    char **word = arena_array(arena, n / 2 + 2, sizeof *word);
    char *to = arena_alloc(arena, n + 1);
    const char *p = text;
    int count = 0;

    if (!word || !to)
        return tp_fail(err, TP_E_NOMEM, "no memory for a list of words");
    while (*(p += strspn(p, " \t\r\n"))) {
        char quote = 0;

        word[count++] = to;
        for (; *p && (quote || !strchr(" \t\r\n", *p)); p++) {
            if (*p == quote)
                quote = 0;
            else if (!quote && (*p == '\'' || *p == '"'))
                quote = *p;
            else if (*p == '\\' && quote != '\'' && p[1])
                *to++ = *++p;
            else
                *to++ = *p;
        }
        if (quote)
            return tp_fail(err, TP_E_USAGE, "the quote %c is not closed", quote);
        *to++ = 0;
        if (*p)
            p++;
    }
    word[count] = NULL;
    *out = (struct job_words){ .n = count, .word = word };
    return TP_OK;
}

bool job_has_axis(const struct job *j, const char *axis)
{
    for (int i = 0; i < j->layouts.axes.n; i++) {
        const char *word = j->layouts.axes.word[i];

        if (strcmp(word, axis) == 0 || (strcmp(word, "zero") == 0 && strncmp(axis, "zero", 4) == 0))
            return true;
    }
    return false;
}

bool job_resolve(char out[PATH_MAX], const struct job *j, const char *path)
{
    char text[PATH_MAX], folder[PATH_MAX];
    const char *slash;

    snprintf(text, sizeof text, "%.2000s%s%.2000s", path[0] == '/' ? "" : j->dir,
             path[0] == '/' ? "" : "/", path);
    if (realpath(text, out))
        return true;
    slash = strrchr(text, '/');
    text[slash - text] = 0;
    if (!realpath(text[0] ? text : "/", folder))
        return false;
    return snprintf(out, PATH_MAX, "%s/%s", folder, slash + 1) < PATH_MAX;
}

int job_signal(const struct job *j)
{
    static const int signals[] = {
        [JOB_STOP_AUTO] = SIGTERM,    [JOB_STOP_SIGTERM] = SIGTERM, [JOB_STOP_SIGUSR1] = SIGUSR1,
        [JOB_STOP_SIGUSR2] = SIGUSR2, [JOB_STOP_SIGINT] = SIGINT,   [JOB_STOP_SIGHUP] = SIGHUP
    };

    return signals[j->stop_signal];
}

int64_t job_slots(const struct job *j)
{
    int64_t n = 0;

    for (int i = 0; i < j->n_nodes; i++)
        n += j->nodes[i].slots;
    return n;
}
