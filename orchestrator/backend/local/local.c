/* orchestrator/backend/local/local.c - see orchestrator/backend/local/local.h. */
#include "orchestrator/backend/local/local.h"

#include <unistd.h>

enum { WORDS_MAX = 16 };

static tp_status local_open(void **state, const struct backend_host *host, const json_t *run_record)
{
    const struct job *job = host->job;

    (void)run_record;
    for (int i = 0; i < job->n_nodes; i++)
        if (!node_list_add(host->nodes, job->nodes[i].name, job->nodes[i].slots))
            return tp_fail(host->err, TP_E_NOMEM, "no memory for %d nodes", job->n_nodes);
    *state = (void *)(uintptr_t)host;
    return TP_OK;
}

static tp_status local_command(void *state, const struct backend_launch *launch,
                               struct job_words *out)
{
    static char *const mpirun[] = { "mpirun", "--oversubscribe", "--bind-to", "none", "-n" };
    const struct backend_host *host = state;
    int n = 0;

    if (host->job->launcher != JOB_LAUNCH_MPIRUN)
        return TP_OK;
    out->word = arena_array(launch->arena, WORDS_MAX, sizeof *out->word);
    if (!out->word)
        return tp_fail(host->err, TP_E_NOMEM, "no memory for the command");
    for (size_t i = 0; i < sizeof mpirun / sizeof mpirun[0]; i++)
        out->word[n++] = mpirun[i];
    out->word[n] = arena_printf(launch->arena, "%d", launch->world);
    if (!out->word[n++])
        return tp_fail(host->err, TP_E_NOMEM, "no memory for the command");
    if (geteuid() == 0)
        out->word[n++] = "--allow-run-as-root";
    out->n = n;
    return TP_OK;
}

const struct job_backend LOCAL_JOB_BACKEND = { .name = "local" };

const struct backend LOCAL_BACKEND = {
    .job = &LOCAL_JOB_BACKEND,
    .is_one_machine = true,
    .open = local_open,
    .command = local_command,
};
