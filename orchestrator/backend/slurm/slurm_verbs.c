/* orchestrator/backend/slurm/slurm_verbs.c - see orchestrator/backend/slurm/slurm_run.h: what
 * tp-run's verbs and its other roles need. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/private_dir.h"
#include "orchestrator/backend/slurm/slurm_run.h"
#include "orchestrator/process/process.h"

static const double CANCEL_PATIENCE_S = 60, RUN_PATIENCE_S = 30;

void slurm_home(struct home *out, const struct environment *env)
{
    const char *job = environment_get(env, "SLURM_JOB_ID");

    home_here(out, job ? strtol(job, NULL, 10) : 0, environment_get(env, "SLURMD_NODENAME"));
}

void slurm_relay(struct relay_setup *out, const struct environment *env)
{
    const char *rank = environment_get(env, "SLURM_PROCID");
    const char *node = environment_get(env, "SLURMD_NODENAME");

    out->rank = rank ? (int)strtol(rank, NULL, 10) : 0;
    out->node = node ? node : "";
    out->host =
        environment_get(env, "SLURM_LAUNCH_NODE_IPADDR"); /* the host on which srun was started */
}

/* ---- submit ---- */

static void submitted_path(char path[PATH_MAX], const struct job *job)
{
    snprintf(path, PATH_MAX, "%.4000s/submitted", job->state);
}

/* The number in STATE/submitted, 0: nothing was submitted. */
static long last_submitted(const struct job *job, struct arena *arena)
{
    char path[PATH_MAX], *text;
    struct tp_err ignored;
    size_t n;

    submitted_path(path, job);
    return file_read_own(&text, &n, path, 64, arena, &ignored) ? 0 : strtol(text, NULL, 10);
}

/* The batch job that would continue this job, 0: none. */
static long next_of(const json_t *run_record)
{
    const json_t *own = json_object_get(run_record, "backend");

    return (long)json_integer_value(own ? json_object_get(own, "next")
                                        : json_object_get(run_record, "slurm_next"));
}

/* TP_E_EXISTS: the Slurm job waits or runs. If Slurm does not answer, sbatch will say so. */
static tp_status check_over(const struct slurm_client *client, long job, struct arena *arena,
                            struct tp_err *err)
{
    struct job_words words;
    struct slurm_view view;
    struct tp_err ignored;
    char *text;

    if (job <= 0)
        return TP_OK;
    slurm_view_words(&words, job, arena);
    if (slurm_ask(&text, &words, client, RUN_PATIENCE_S, arena, &ignored) ||
        !slurm_view_read(&view, text, time(NULL)) ||
        !(slurm_state_waits(view.state) || slurm_state_runs(view.state)))
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: Slurm job %ld of this job is %s already, so nothing is submitted; end it "
                   "with tp-run stop, or with scancel %ld",
                   client->job->path, job, view.state, job);
}

static tp_status check_all_over(const struct slurm_client *client, const json_t *run_record,
                                struct tp_err *err)
{
    struct arena arena = { 0 };
    struct home home;
    long jobs[3];
    tp_status st = TP_OK;

    home_read(&home, client->job->state);
    jobs[0] = last_submitted(client->job, &arena);
    jobs[1] = next_of(run_record);
    jobs[2] = home.job; /* of a tp-run that does not answer */
    for (int i = 0; i < 3 && st == TP_OK; i++)
        st = check_over(client, jobs[i], &arena, err);
    arena_free(&arena);
    return st;
}

static void remember(const char *id, const struct job *job)
{
    char path[PATH_MAX];
    struct tp_err ignored;

    submitted_path(path, job);
    file_replace(path, id, strlen(id), &ignored);
}

tp_status slurm_verb_submit(char *id, size_t size, const struct backend_call *call,
                            const json_t *run_record, struct tp_err *err)
{
    const struct slurm_options *o = slurm_options(call->job);
    const struct slurm_batch batch = { .nodes = o->nodes ? o->nodes : 1 };
    struct environment env;
    struct slurm_client client = { call->job, call->self, &env, call->job->state };
    long job = 0;
    int dir = -1;
    tp_status st = private_dir_ensure(&dir, call->job->state, err);

    if (dir >= 0)
        close(dir);
    slurm_client_env(&env, call->env);
    if (st == TP_OK)
        st = check_all_over(&client, run_record, err);
    if (st == TP_OK)
        st = slurm_submit(&job, &client, &batch, err);
    snprintf(id, size, "%ld", job);
    if (st == TP_OK)
        remember(id, call->job);
    environment_free(&env);
    return st;
}

/* ---- other verbs ---- */

tp_status slurm_verb_cancel_next(char *text, size_t size, const struct backend_call *call,
                                 const json_t *run_record, struct tp_err *err)
{
    const json_t *own = json_object_get(run_record, "backend");
    bool continues = json_is_true(json_object_get(run_record, own ? "continues" : "chained"));
    long job = next_of(run_record);
    struct environment env;
    struct slurm_client client = { call->job, call->self, &env, call->job->state };
    tp_status st;

    if (!continues || !job)
        return tp_fail(err, TP_E_NOTFOUND, "no Slurm job would continue this job");
    slurm_client_env(&env, call->env);
    st = slurm_cancel(&client, job, CANCEL_PATIENCE_S, err);
    snprintf(text, size, "Slurm job %ld, which would have continued, is cancelled", job);
    environment_free(&env);
    return st;
}

tp_status slurm_verb_run_at(char **output, const struct home *home, char *const *argv,
                            const struct backend_call *call, struct arena *arena,
                            struct tp_err *err)
{
    struct environment env;
    struct slurm_client client = { call->job, call->self, &env, "/" };
    struct job_words words;
    tp_status st;

    if (!home->job || !home->node[0])
        return tp_fail(err, TP_E_NOTFOUND, "%s: tp-run is not in a Slurm job there", home->host);
    slurm_client_env(&env, call->env);
    slurm_on_node(&words, home->job, home->node, argv, arena);
    st = slurm_ask(output, &words, &client, RUN_PATIENCE_S, arena, err);
    environment_free(&env);
    return st;
}
