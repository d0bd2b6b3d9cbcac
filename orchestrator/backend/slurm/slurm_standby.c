/* orchestrator/backend/slurm/slurm_standby.c - see orchestrator/backend/slurm/slurm_standby.h. */
#include "orchestrator/backend/slurm/slurm_standby.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/web/control.h"

static const double PATIENCE_S = 60;

enum verdict { GUARD_WAIT, GUARD_TAKE_OVER, GUARD_END };

/* Whether a line of the names is this one. */
static bool is_among(const char *names, const char *node)
{
    size_t n = strlen(node);

    for (const char *p = names; *p; p += strspn(p, "\n")) {
        size_t len = strcspn(p, "\n");

        if (len == n && strncmp(p, node, n) == 0)
            return true;
        p += len;
    }
    return false;
}

/* What Slurm says: nothing is concluded from no answer. */
static enum verdict look(const struct job *job, long id, const char *home, struct arena *arena)
{
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text, *names;

    slurm_view_words(&words, id, arena);
    if (slurm_ask(&text, &words, job->state, PATIENCE_S, arena, &ignored) ||
        !slurm_view_read(&view, text, time(NULL)))
        return GUARD_WAIT;
    if (strcmp(view.state, "RUNNING") != 0)
        return GUARD_END;
    if (!view.list[0])
        return GUARD_WAIT;
    slurm_words(&words, arena, "scontrol", "show", "hostnames", view.list, NULL);
    if (slurm_ask(&names, &words, job->state, PATIENCE_S, arena, &ignored))
        return GUARD_WAIT;
    return is_among(names, home) ? GUARD_WAIT : GUARD_TAKE_OVER;
}

tp_status slurm_standby_wait(bool *take_over, const struct job *job, long id, const char *node,
                             struct tp_err *err)
{
    const double poll = slurm_options(job)->poll;
    const struct timespec pause = { .tv_sec = (time_t)poll,
                                    .tv_nsec = (long)(fmod(poll, 1) * 1e9) };
    enum verdict v = GUARD_WAIT;

    *take_over = false;
    if (id <= 0 || !node || !node[0])
        return tp_fail(err, TP_E_USAGE, "is started by tp-run on nodes of a batch job");
    while (v == GUARD_WAIT) {
        struct arena arena = { 0 };
        struct control_home home;

        nanosleep(&pause, NULL);
        if (!control_home_read(&home, job->state) || home.slurm_job != id ||
            strcmp(home.node, node) == 0)
            break; /* it has ended, or is here now */
        v = look(job, id, home.node, &arena);
        arena_free(&arena);
    }
    *take_over = v == GUARD_TAKE_OVER;
    return TP_OK;
}
