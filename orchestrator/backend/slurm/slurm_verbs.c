/* orchestrator/backend/slurm/slurm_verbs.c - see orchestrator/backend/slurm/slurm_run.h: what
 * tp-run's verbs and its other roles need. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

tp_status slurm_verb_submit(char *id, size_t size, const struct backend_call *call,
                            struct tp_err *err)
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
        st = slurm_submit(&job, &client, &batch, err);
    snprintf(id, size, "%ld", job);
    environment_free(&env);
    return st;
}

tp_status slurm_verb_cancel_next(char *text, size_t size, const struct backend_call *call,
                                 const json_t *run_record, struct tp_err *err)
{
    const json_t *own = json_object_get(run_record, "backend");
    bool continues = json_is_true(json_object_get(run_record, own ? "continues" : "chained"));
    long job = (long)json_integer_value(own ? json_object_get(own, "next")
                                            : json_object_get(run_record, "slurm_next"));
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
