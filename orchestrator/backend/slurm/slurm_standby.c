/* orchestrator/backend/slurm/slurm_standby.c - see orchestrator/backend/slurm/slurm_run.h and
 * orchestrator/process/standby.h: a standby on another node of the batch job.
 *
 * A batch job that was submitted with --no-kill survives the loss of its first node, on which
 * tp-run runs. But without tp-run the other nodes would be idle until the wall time ends. So tp-run
 * keeps a standby on one of them. It replaces tp-run after Slurm has taken tp-run's node out of the
 * allocation.
 */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "orchestrator/backend/slurm/slurm_run.h"
#include "orchestrator/process/standby.h"

static const double AGAIN_S = 10, PATIENCE_S = 60, END_PATIENCE_S = 300;

/* ---- tp-run's side ---- */

tp_status slurm_standby_tick(struct slurm *s)
{
    const struct node_list *l = s->host->nodes;
    const struct job *job = s->host->job;
    const char *slash = strrchr(job->path, '/');
    char *argv[] = { (char *)(uintptr_t)s->host->self, "standby", NULL, NULL };
    struct arena arena = { 0 };
    struct job_words words;
    int i = l->n - 1;
    tp_status st;

    if (!s->this_node[0] || s->inside != s->allocation.job || s->allocation.own ||
        clock_seconds() < s->nodes.next_standby || slurm_is_running(s, SLURM_COMMAND_STANDBY))
        return TP_OK;
    while (i >= 0 &&
           (l->node[i]->down || l->node[i]->removed || strcmp(l->node[i]->name, s->this_node) == 0))
        i--;
    s->nodes.next_standby = clock_seconds() + AGAIN_S;
    if (i < 0)
        return TP_OK;
    argv[2] = arena_printf(&arena, "%s/%s", job->dir, slash ? slash + 1 : job->path);
    slurm_on_node(&words, s->inside, l->node[i]->name, argv, &arena);
    st = slurm_start(s, SLURM_COMMAND_STANDBY, &words, 0);
    arena_free(&arena);
    return st;
}

/* ---- the standby itself ---- */

struct slurm_standby_look {
    struct slurm_client client;
    long job;
};

/* Whether one of the lines is this node's name. */
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

/* If Slurm does not answer, the verdict is to wait. */
static enum standby_verdict ask(const struct slurm_standby_look *l, const struct home *home,
                                struct arena *arena)
{
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text, *names;

    slurm_view_words(&words, l->job, arena);
    if (slurm_ask(&text, &words, &l->client, PATIENCE_S, arena, &ignored) ||
        !slurm_view_read(&view, text, time(NULL)))
        return STANDBY_WAIT;
    if (!slurm_state_runs(view.state) && !slurm_state_waits(view.state))
        return STANDBY_END;
    if (!slurm_state_is_active(view.state) || !view.list[0])
        return STANDBY_WAIT;
    slurm_words(&words, arena, "scontrol", "show", "hostnames", view.list, NULL);
    if (slurm_ask(&names, &words, &l->client, PATIENCE_S, arena, &ignored))
        return STANDBY_WAIT;
    return is_among(names, home->node) ? STANDBY_WAIT : STANDBY_TAKE_OVER;
}

static enum standby_verdict look(void *ctx, const struct home *home)
{
    struct arena arena = { 0 };
    enum standby_verdict v = ask(ctx, home, &arena);

    arena_free(&arena);
    return v;
}

tp_status slurm_standby(bool *take_over, const struct backend_call *call, struct tp_err *err)
{
    struct environment env;
    struct home here;
    struct slurm_standby_look l;
    struct standby standby = {
        .state = call->job->state, .period = slurm_options(call->job)->poll, .look = look, .ctx = &l
    };

    slurm_home(&here, call->env);
    if (here.job <= 0 || !here.node[0])
        return tp_fail(err, TP_E_USAGE, "tp-run starts this on nodes of a batch job");
    slurm_client_env(&env, call->env);
    l = (struct slurm_standby_look){ { call->job, call->self, &env, call->job->state }, here.job };
    standby.job = here.job;
    standby.node = here.node;
    *take_over = standby_wait(&standby);
    environment_free(&env);
    return TP_OK;
}

/* The new tp-run belongs to the batch job, not to the standby's step. So the variables that Slurm
 * has set for that step must not reach the ranks. */
void slurm_standby_env(struct environment *env)
{
    static const char *const kept[] = {
        "SLURM_CONF",          "SLURM_CLUSTERS",           "SLURM_JOB_ID",
        "SLURM_JOB_NUM_NODES", "SLURM_LAUNCH_NODE_IPADDR", NULL
    };

    environment_unset_prefix(env, "SLURM_", kept);
}

/* The batch script was lost with its node, so nothing else would end the Slurm job. */
void slurm_standby_end(const struct backend_call *call)
{
    struct environment env;
    struct slurm_client client = { call->job, call->self, &env, call->job->state };
    struct home here;
    struct tp_err ignored;

    slurm_home(&here, call->env);
    slurm_client_env(&env, call->env);
    slurm_cancel(&client, here.job, END_PATIENCE_S, &ignored);
    environment_free(&env);
}
