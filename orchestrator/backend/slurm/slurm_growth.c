/* orchestrator/backend/slurm/slurm_growth.c - see orchestrator/backend/slurm/slurm_run.h: requests
 * nodes to replace those that the allocation has lost. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"

static const double AGAIN_S = 60, NEVER = 1e18, PATIENCE_S = 120;

void slurm_growth_drop(struct slurm *s)
{
    struct slurm_growth *g = &s->growth;
    struct arena arena = { 0 };
    struct tp_err ignored;
    char log[PATH_MAX];
    bool granted;

    g->dropped = slurm_is_running(s, SLURM_COMMAND_GROW);
    if (g->dropped)
        kill(s->command[SLURM_COMMAND_GROW].pid, SIGTERM); /* salloc cancels what it waits for */
    if (!g->job)
        g->job = slurm_allocated(slurm_salloc_text(s, SLURM_COMMAND_GROW, &arena), &granted);
    if (g->job)
        slurm_cancel(&s->client, g->job, 0, &ignored);
    g->job = 0;
    slurm_salloc_log(s, SLURM_COMMAND_GROW, log);
    unlink(log);
    arena_free(&arena);
}

void slurm_growth_forget(struct slurm *s)
{
    slurm_growth_drop(s);
    s->growth.next_try = 0;
}

/* Whether more nodes would be used, and enough time remains. */
static bool pays(const struct slurm *s, int64_t nodes)
{
    const struct backend_host *h = s->host;
    double left = slurm_left(s);
    int more = (int)nodes * slurm_tasks_per_node(s->host->job);

    return (left < 0 || left > 2 * s->ending.margin) &&
           h->larger_pays(h->run, h->free_ranks(h->run) + more);
}

static tp_status ask_nodes(struct slurm *s, int64_t nodes)
{
    struct arena arena = { 0 };
    struct job_words words;
    const struct slurm_request q = { .nodes = nodes,
                                     .exclude = slurm_nodes_excluded(s, &arena),
                                     .expand = s->allocation.job,
                                     .seconds = slurm_left(s) };
    tp_status st = slurm_salloc(&words, s->host->job, &q, &arena, s->host->err);
    char text[80];

    if (st == TP_OK)
        st = slurm_start(s, SLURM_COMMAND_GROW, &words, 0);
    snprintf(text, sizeof text, "%lld more nodes", (long long)nodes);
    if (st == TP_OK)
        slurm_event(s, SLURM_ASKED, SLURM_REASON_NONE, text);
    arena_free(&arena);
    return st;
}

/* Slurm grants the nodes and then refuses to join them ("has allocated GRES"), so do not ask. */
static tp_status refuse_gres(struct slurm *s)
{
    s->growth.next_try = NEVER;
    slurm_event(
        s, SLURM_CANNOT_GROW, SLURM_REASON_NONE,
        "Slurm adds no nodes to a job that has GPUs or other gres; with \"slurm.grow: new\" "
        "a whole allocation replaces this one");
    return TP_OK;
}

static tp_status ask_idle(struct slurm *s)
{
    struct arena arena = { 0 };
    struct job_words words;
    tp_status st;

    slurm_words(&words, &arena, "sinfo", "-h", "-t", "idle", "-p", s->query.view.partition, "-o",
                "%D", NULL);
    st = slurm_start(s, SLURM_COMMAND_IDLE, &words, PATIENCE_S);
    arena_free(&arena);
    return st;
}

tp_status slurm_growth_tick(struct slurm *s)
{
    struct slurm_growth *g = &s->growth;
    int64_t nodes = slurm_nodes_missing(s);
    double now = clock_seconds();

    if (nodes == 0 || s->options->grow == SLURM_GROW_OFF || s->host->record->state != RUN_TRAIN ||
        s->host->record->stop || now < g->next_try || slurm_is_running(s, SLURM_COMMAND_GROW) ||
        slurm_is_running(s, SLURM_COMMAND_JOIN) || slurm_is_running(s, SLURM_COMMAND_IDLE))
        return TP_OK;
    g->next_try = now + s->options->poll;
    if (!pays(s, nodes))
        return TP_OK;
    if (s->options->grow == SLURM_GROW_NEW)
        return ask_idle(s);
    return slurm_asks_for_gres(s->host->job) ? refuse_gres(s) : ask_nodes(s, nodes);
}

/* salloc has ended. Its nodes join the allocation, and the next check finds them. */
static tp_status join(struct slurm *s, int exit_code)
{
    struct slurm_growth *g = &s->growth;
    struct arena arena = { 0 };
    struct job_words words;
    const char *said;
    char text[300];
    bool granted = false;
    tp_status st = TP_OK;

    if (g->dropped) {
        g->dropped = false;
        return TP_OK;
    }
    said = slurm_salloc_text(s, SLURM_COMMAND_GROW, &arena);
    g->job = slurm_allocated(said, &granted);
    if (exit_code == 0 && granted) {
        slurm_words(&words, &arena, "scontrol", "update", arena_printf(&arena, "JobId=%ld", g->job),
                    "NumNodes=0", NULL);
        st = slurm_start(s, SLURM_COMMAND_JOIN, &words, PATIENCE_S);
    } else {
        g->next_try = clock_seconds() + (slurm_is_unreachable(said) ? AGAIN_S : NEVER);
        slurm_growth_drop(s);
        snprintf(text, sizeof text, "%.299s", said);
        for (char *p = text; *p; p++)
            *p = *p == '\n' ? ' ' : *p;
        slurm_event(s, SLURM_CANNOT_GROW, SLURM_REASON_NONE, text);
    }
    arena_free(&arena);
    return st;
}

/* Remove scripts that scontrol leaves and tp-run does not need. */
static void remove_scripts(const struct slurm *s)
{
    static const char *const suffixes[] = { "sh", "csh" };
    char path[PATH_MAX];

    for (int i = 0; i < 2; i++) {
        snprintf(path, sizeof path, "%.4000s/slurm_job_%ld_resize.%s", s->host->job->state,
                 s->growth.job, suffixes[i]);
        unlink(path);
    }
}

static tp_status joined(struct slurm *s, int exit_code)
{
    const char *said = s->command[SLURM_COMMAND_JOIN].last;

    remove_scripts(s);
    slurm_event(s, exit_code ? SLURM_CANNOT_GROW : SLURM_GROWN, SLURM_REASON_NONE,
                exit_code ? said : "");
    if (exit_code)
        s->growth.next_try = NEVER;
    slurm_growth_drop(s);
    slurm_look(s, false);
    return TP_OK;
}

/* When enough nodes are idle, the job saves, and tp-run replaces the allocation by a complete
 * one. */
static tp_status see_idle(struct slurm *s, int exit_code)
{
    const char *text = s->command[SLURM_COMMAND_IDLE].text;
    int64_t idle = exit_code || !text ? 0 : strtoll(text, NULL, 10);
    int64_t nodes = slurm_nodes_missing(s);
    const struct backend_cause cause =
        slurm_cause(SLURM_IDLE_NODES, "enough nodes are idle for a whole allocation");

    if (nodes == 0 || idle < nodes || s->host->record->state != RUN_TRAIN || s->ending.ending)
        return TP_OK;
    return slurm_end_for(s, &cause);
}

tp_status slurm_grown(struct slurm *s, enum slurm_command what, int exit_code)
{
    if (run_state_is_final(s->host->record->state) || !s->allocation.job)
        return TP_OK;
    switch (what) {
    case SLURM_COMMAND_GROW:
        return join(s, exit_code);
    case SLURM_COMMAND_JOIN:
        return joined(s, exit_code);
    default:
        return see_idle(s, exit_code);
    }
}
