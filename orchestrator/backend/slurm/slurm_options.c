/* orchestrator/backend/slurm/slurm_options.c - see orchestrator/backend/slurm/slurm_options.h. */
#include "orchestrator/backend/slurm/slurm_options.h"

#include <string.h>

static const double POLL_MIN_S = 0.2;

#define KEY(n, k, field, v, help) JOB_KEY("slurm", n, k, struct slurm_options, field, v, help)
#define SHOWN(n, k, field, v, help, w) \
    JOB_KEY_SHOWN("slurm", n, k, struct slurm_options, field, v, help, w)
#define ONE_OF(n, field, names, v, help) \
    JOB_KEY_ENUM("slurm", n, struct slurm_options, field, names, v, help)

/* clang-format off */
static const struct job_key KEYS[] = {
    SHOWN("options", WORDS, options, "[]",
        "options of salloc and sbatch, one word each: account, partition, time, qos, container and any other.\n"
        "--container... goes to salloc and to the srun of the ranks.",
        "[--partition=main, --time=1:00:00]"),
    KEY("step_options", WORDS, step_options, "[]", "options for the srun of the ranks: --cpu-bind, --gpus-per-task"),
    KEY("nodes", INT, nodes, "0", "nodes to request (0: those of the batch job that tp-run runs in, otherwise 1)"),
    KEY("min_nodes", INT, min_nodes, "1", "with fewer nodes left, the allocation is given back and a new one is requested"),
    KEY("tasks_per_node", INT, tasks_per_node, "1", "ranks that a node holds"),
    ONE_OF("chain", chain, "false|true|requeue", "true",
        "continue in another Slurm job when the wall time ends. In a batch job the next one is submitted\n"
        "beforehand, and cancelled when it is not needed; otherwise a new allocation is requested. requeue:\n"
        "the batch job requeues itself instead, so that it stays one job for sacct and for jobs that wait for\n"
        "it (--dependency=afterok); Slurm waits two minutes before it starts a requeued job"),
    KEY("margin", SECONDS, margin, "2m", "time before the end of the wall time at which the job saves and ends"),
    ONE_OF("grow", grow, "expand|new|off", "expand",
        "how lost nodes are replaced, when that is worth a restart. expand: more nodes join the allocation\n"
        "(needs permit_job_expansion in slurm.conf); new: when enough nodes are idle, the allocation is given\n"
        "back for a whole one; off: not before the next allocation"),
    KEY("lost", SECONDS, lost, "2s", "a node without a heartbeat for this time is lost"),
    KEY("poll", SECONDS, poll, "5s", "time between two checks of the allocation: its end, its nodes"),
    KEY("drain", BOOL, drain, "false",
        "drain a node when it is excluded for its faults (needs operator rights); an administrator resumes it"),
    JOB_KEY_END,
};
/* clang-format on */

const struct slurm_options *slurm_options(const struct job *job)
{
    return job->backend_options;
}

/* Refuse options of salloc and sbatch that turn one job into several. */
static tp_status check_words(const struct job *j, const struct job_words *words, struct tp_err *err)
{
    for (int i = 0; i < words->n; i++) {
        const char *word = words->word[i];

        if (strncmp(word, "--array", 7) == 0 || strncmp(word, "-a", 2) == 0 ||
            strcmp(word, ":") == 0)
            return tp_fail(err, TP_E_USAGE,
                           "%s: slurm.options: '%s' makes several jobs of one, and a job file is "
                           "one job; start tp-run once for each",
                           j->path, word);
    }
    return TP_OK;
}

static tp_status check(const struct job *j, struct tp_err *err)
{
    const struct slurm_options *o = slurm_options(j);

    if (o->tasks_per_node < 1 || o->tasks_per_node > JOB_RANKS_MAX || o->nodes > JOB_NODES_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "%s: slurm.tasks_per_node must be 1 to %d, slurm.nodes at most %d", j->path,
                       JOB_RANKS_MAX, JOB_NODES_MAX);
    if (o->poll < POLL_MIN_S)
        return tp_fail(err, TP_E_USAGE, "%s: slurm.poll must be at least %.1fs", j->path,
                       POLL_MIN_S);
    return check_words(j, &o->options, err);
}

static int ranks(const struct job *j)
{
    const struct slurm_options *o = slurm_options(j);

    return (int)((o->nodes ? o->nodes : 1) * o->tasks_per_node);
}

const struct job_backend SLURM_JOB_BACKEND = {
    .name = "slurm",
    .help = "for backend: slurm",
    .keys = KEYS,
    .options_bytes = sizeof(struct slurm_options),
    .finds_nodes = true,
    .check = check,
    .ranks = ranks,
};
