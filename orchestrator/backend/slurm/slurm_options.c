/* orchestrator/backend/slurm/slurm_options.c - see orchestrator/backend/slurm/slurm_options.h. */
#include "orchestrator/backend/slurm/slurm_options.h"

#include <stdlib.h>
#include <string.h>

#include "orchestrator/job/job_option.h"

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
    KEY("tasks_per_node", INT, tasks_per_node, "0",
        "ranks that a node holds (0: for tp-train on GPUs as many as the GPUs of a node that slurm.options\n"
        "ask for, otherwise 1)"),
    ONE_OF("chain", chain, "false|true|requeue", "true",
        "continue in another Slurm job when the wall time ends. In a batch job the next one is submitted\n"
        "beforehand, and cancelled when it is not needed; otherwise a new allocation is requested. requeue:\n"
        "the batch job requeues itself instead, so that it stays one job for sacct and for jobs that wait for\n"
        "it (--dependency=afterok); Slurm waits two minutes before it starts a requeued job"),
    KEY("margin", SECONDS, margin, "2m", "time before the end of the wall time at which the job saves and ends"),
    ONE_OF("grow", grow, "expand|new|off", "expand",
        "how lost nodes are replaced, when that is worth a restart. expand: more nodes join the allocation\n"
        "(needs permit_job_expansion in slurm.conf, and a job without gres); new: when enough nodes are idle, the allocation is given\n"
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

const char *slurm_option(const struct job *job, int i, const char *name, char letter)
{
    const struct job_words *words = &slurm_options(job)->options;
    const char *word = words->word[i], *next = i + 1 < words->n ? words->word[i + 1] : "";
    size_t n = strlen(name);

    if (!word)
        return NULL;
    if (strncmp(word, name, n) == 0 && (word[n] == '=' || !word[n]))
        return word[n] ? word + n + 1 : next;
    if (letter && word[0] == '-' && word[1] == letter)
        return word[2] ? word + 2 + (word[2] == '=') : next;
    return NULL;
}

/* ---- GPUs ---- */

/* The number in "[TYPE:]N". */
static int number_of(const char *value)
{
    const char *colon = strrchr(value, ':');

    return (int)strtol(colon ? colon + 1 : value, NULL, 10);
}

/* The GPUs in "gpu[:TYPE][:N]", one of a list; N is 1 if it is missing. */
static int gpus_of_gres(const char *list)
{
    int n = 0;

    for (const char *p = list; *p; p += strcspn(p, ","), p += *p == ',') {
        const char *last = p + 3;
        int count;

        if (strncmp(p, "gpu", 3) != 0 || !strchr(":,", p[3])) /* strchr also finds the end */
            continue;
        for (const char *q = p; *q && *q != ','; q++)
            if (*q == ':')
                last = q + 1;
        count = (int)strtol(last, NULL, 10);
        n += count > 0 ? count : 1;
    }
    return n;
}

/* The GPUs of a node that slurm.options ask for, 0: they do not say it. The last option counts. */
static int gpus_of_node(const struct job *job)
{
    const struct job_words *words = &slurm_options(job)->options;
    const char *value;
    int n = 0;

    for (int i = 0; i < words->n; i++)
        if ((value = slurm_option(job, i, "--gpus-per-node", 0)))
            n = number_of(value);
        else if ((value = slurm_option(job, i, "--gres", 0)) && gpus_of_gres(value) > 0)
            n = gpus_of_gres(value);
    return n > 0 && n <= JOB_RANKS_MAX ? n : 0;
}

int slurm_tasks_per_node(const struct job *job)
{
    const struct slurm_options *o = slurm_options(job);
    int gpus = o->tasks_per_node == 0 && job_uses_gpus(job) ? gpus_of_node(job) : 0;

    return o->tasks_per_node > 0 ? (int)o->tasks_per_node : gpus > 0 ? gpus : 1;
}

bool slurm_asks_for_gres(const struct job *job)
{
    static const char *const begins[] = { "--gres=", "--gpus", "-G", "--tres-per-" };
    const struct job_words *words = &slurm_options(job)->options;

    for (int i = 0; i < words->n; i++)
        for (size_t k = 0; k < sizeof begins / sizeof begins[0]; k++)
            if (strncmp(words->word[i], begins[k], strlen(begins[k])) == 0 ||
                strcmp(words->word[i], "--gres") == 0)
                return true;
    return false;
}

/* Every rank needs a GPU, also when fewer nodes are left. */
static tp_status check_gpus(const struct job *j, struct tp_err *err)
{
    const struct job_words *words = &slurm_options(j)->options;
    int gpus = gpus_of_node(j), ranks = slurm_tasks_per_node(j);

    for (int i = 0; i < words->n; i++)
        if (slurm_option(j, i, "--gpus", 'G'))
            return tp_fail(err, TP_E_USAGE,
                           "%s: slurm.options: '%s' counts the GPUs of all nodes, so Slurm would "
                           "start no ranks on fewer nodes; use --gpus-per-node=N",
                           j->path, words->word[i]);
    if (job_uses_gpus(j) && gpus > 0 && ranks > gpus)
        return tp_fail(err, TP_E_USAGE,
                       "%s: slurm.tasks_per_node is %d, but slurm.options ask for %d GPU%s on a "
                       "node; each rank needs a GPU of its own. Leave tasks_per_node out, or ask "
                       "for more GPUs",
                       j->path, ranks, gpus, gpus == 1 ? "" : "s");
    return TP_OK;
}

/* ---- checks ---- */

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

    if (o->tasks_per_node < 0 || o->tasks_per_node > JOB_RANKS_MAX || o->nodes > JOB_NODES_MAX)
        return tp_fail(err, TP_E_USAGE,
                       "%s: slurm.tasks_per_node must be at most %d, slurm.nodes at most %d",
                       j->path, JOB_RANKS_MAX, JOB_NODES_MAX);
    if (o->poll < POLL_MIN_S)
        return tp_fail(err, TP_E_USAGE, "%s: slurm.poll must be at least %.1fs", j->path,
                       POLL_MIN_S);
    if (job_slots(j) > 1 && !o->nodes)
        return tp_fail(err, TP_E_USAGE,
                       "%s: nodes: backend slurm does not use it; write slurm: {nodes: %d, "
                       "tasks_per_node: ...}, or leave it out",
                       j->path, j->n_nodes);
    return check_words(j, &o->options, err) ? err->status : check_gpus(j, err);
}

static int ranks(const struct job *j)
{
    const struct slurm_options *o = slurm_options(j);

    return (int)(o->nodes ? o->nodes : 1) * slurm_tasks_per_node(j);
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
