/* orchestrator/backend/slurm/slurm_status.c - see slurm_run.h: what people see of the allocation.
 */
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static void write_text(const struct slurm *s, const char *state, const char *reason, char *text,
                       size_t size)
{
    double left = slurm_left(s);
    int n = snprintf(text, size, "job %ld %s", s->allocation.job, state);

    if (reason[0] && strcmp(reason, "None") != 0)
        n += snprintf(text + n, size - (size_t)n, " (%.40s)", reason);
    if (left >= 0)
        n += snprintf(text + n, size - (size_t)n, ", %lld:%02lld:%02lld of its wall time left",
                      (long long)left / 3600, (long long)left / 60 % 60, (long long)left % 60);
    if (s->next.job)
        snprintf(text + n, size - (size_t)n, ", then job %ld continues", s->next.job);
}

json_t *slurm_status(const void *state)
{
    const struct slurm *s = state;
    const struct slurm_allocation *a = &s->allocation;
    bool seen = s->query.view_text != NULL && a->job != 0;
    const char *name = seen ? s->query.view.state : a->stage == SLURM_STAGE_NONE ? "none" : "asked";
    const char *reason = seen ? s->query.view.reason : "";
    char text[200];

    write_text(s, name, reason, text, sizeof text);
    return json_pack("{s:I,s:s,s:s,s:f,s:I,s:I,s:s}", "job", (json_int_t)a->job, "state", name,
                     "reason", reason, "left", slurm_left(s), "next", (json_int_t)s->next.job,
                     "wanted", (json_int_t)a->wanted, "text", text);
}

void slurm_line(const void *state, char *line, size_t size)
{
    const struct slurm *s = state;
    const struct slurm_allocation *a = &s->allocation;
    bool seen = s->query.view_text != NULL && a->job != 0;

    if (a->stage == SLURM_STAGE_ASKED && !s->host->record->open)
        snprintf(line, size, "%s: waits for Slurm job %ld (%s)", s->host->job->name, a->job,
                 seen ? s->query.view.reason : "asked");
    else if (slurm_is_paused(s))
        snprintf(line, size, "%s: Slurm has suspended job %ld, %.0f s ago", s->host->job->name,
                 a->job, clock_seconds() - s->pause.since);
}
