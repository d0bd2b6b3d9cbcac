/* orchestrator/backend/slurm/slurm_verbs.c - see orchestrator/backend/slurm/slurm_run.h: what
 * tp-run's verbs and its other roles need. */
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "core/file.h"
#include "core/private_dir.h"
#include "orchestrator/backend/slurm/slurm_run.h"
#include "orchestrator/process/process.h"

static const double CANCEL_PATIENCE_S = 60, RUN_PATIENCE_S = 30;
static const double SKEW_S = 300; /* of the clocks of Slurm's controller and of the file system */

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

static void state_path(char path[PATH_MAX], const struct job *job, const char *name)
{
    snprintf(path, PATH_MAX, "%.4000s/%s", job->state, name);
}

/* When a file of the state folder was written, 0: there is none. */
static time_t written_at(const struct job *job, const char *name)
{
    char path[PATH_MAX];
    struct stat s;

    state_path(path, job, name);
    return stat(path, &s) == 0 ? s.st_mtime : 0;
}

/* The number in STATE/submitted, 0: nothing was submitted. */
static long last_submitted(const struct job *job, struct arena *arena)
{
    char path[PATH_MAX], *text;
    struct tp_err ignored;
    size_t n;

    state_path(path, job, "submitted");
    return file_read_own(&text, &n, path, 64, arena, &ignored) ? 0 : strtol(text, NULL, 10);
}

/* The batch job that would continue this job, 0: none. */
static long next_of(const json_t *run_record)
{
    const json_t *own = json_object_get(run_record, "backend");

    return (long)json_integer_value(own ? json_object_get(own, "next")
                                        : json_object_get(run_record, "slurm_next"));
}

/* Slurm jobs that may be this job, by what was written down about them. */
struct known_job {
    long number;
    time_t
        noted; /* when the number was written down, so the job was submitted before; 0: not known */
};

/* Whether the job that has this number now is the one that was meant. A batch job of this job runs
 * its script, also when it was requeued, which may count as submitted again. */
static bool is_same(const struct slurm_identity *now, const struct known_job *known,
                    const struct job *job, struct arena *arena)
{
    const char *script = slurm_script_path(job, arena);

    return !script || strcmp(now->command, script) == 0 ||
           (known->noted && difftime(now->submitted, known->noted) <= SKEW_S);
}

/* TP_E_EXISTS: the Slurm job waits or runs. If Slurm does not answer, sbatch will say so. */
static tp_status check_over(const struct slurm_client *client, const struct known_job *known,
                            struct arena *arena, struct tp_err *err)
{
    const long job = known->number;
    struct slurm_identity now;
    struct job_words words;
    struct tp_err ignored;
    char *text;

    if (job <= 0)
        return TP_OK;
    slurm_identity_words(&words, job, arena);
    if (slurm_ask(&text, &words, client, RUN_PATIENCE_S, arena, &ignored) ||
        !slurm_identity_read(&now, text) ||
        !(slurm_state_waits(now.state) || slurm_state_runs(now.state)) ||
        !is_same(&now, known, client->job, arena))
        return TP_OK;
    return tp_fail(err, TP_E_EXISTS,
                   "%s: Slurm job %ld of this job is %s already, so nothing is submitted; end it "
                   "with tp-run stop, or with scancel %ld",
                   client->job->path, job, now.state, job);
}

static tp_status check_all_over(const struct slurm_client *client, const json_t *run_record,
                                struct tp_err *err)
{
    const struct job *job = client->job;
    struct known_job jobs[3];
    struct arena arena = { 0 };
    struct home home;
    tp_status st = TP_OK;

    home_read(&home, job->state);
    jobs[0] = (struct known_job){ last_submitted(job, &arena), written_at(job, "submitted") };
    jobs[1] = (struct known_job){ next_of(run_record), 0 };
    /* of a tp-run that does not answer */
    jobs[2] = (struct known_job){ home.job, written_at(job, "home") };
    for (int i = 0; i < 3 && st == TP_OK; i++)
        st = check_over(client, &jobs[i], &arena, err);
    arena_free(&arena);
    return st;
}

static void remember(const char *id, const struct job *job)
{
    char path[PATH_MAX];
    struct tp_err ignored;

    state_path(path, job, "submitted");
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
