/* orchestrator/job/job_key.c - see orchestrator/job/job_key.h. */
#include "orchestrator/job/job_key.h"

#include <stdio.h>
#include <string.h>

#include "orchestrator/job/job.h"

#define AT(field) offsetof(struct job, field)
#define KEY(s, n, k, field, v, help)                       \
    {                                                      \
        s, n, JOB_KIND_##k, AT(field), v, NULL, help, NULL \
    }
#define SHOWN(s, n, k, field, v, help, w)               \
    {                                                   \
        s, n, JOB_KIND_##k, AT(field), v, NULL, help, w \
    }
#define ONE_OF(s, n, field, names, v, help)                  \
    {                                                        \
        s, n, JOB_KIND_ENUM, AT(field), v, names, help, NULL \
    }

/* clang-format off */
static const struct job_key KEYS[] = {
    SHOWN("", "name", STR, name, "job", "for people: in messages, the status page, the webhook", "gpl"),
    SHOWN("", "command", WORDS, command, NULL,
        "The command line, cut into words like a shell does, or a list. It runs in this file's folder.\n"
        "{layout} {ckpt} {ranks} {attempt} {state} are filled in. For tp-train the flags --layout,\n"
        "--ckpt, --resume and --log are added when they are not there (a --layout that is there is the\n"
        "only one that is run); any other program runs as it stands and is watched by exit and progress\n"
        "slots (libtp-progress).",
        "tp-train --model model/ --data data.txt --steps 1000 --save-every 50"),
    KEY("", "prepare", WORDS, prepare, "[]",
        "a command to run before each launch, with the same names filled in: a conversion that the\n"
        "command needs that `reshard` does not do, say."),
    SHOWN("", "ckpt", PATH, ckpt, NULL, "the checkpoint root", "ckpt"),
    ONE_OF("", "checkpoints", checkpoints, "auto|tp|none", "auto",
        "tp: ROOT holds this toolkit's checkpoints: verify before a restart, quarantine bad ones,\n"
        "fence older jobs. none: the command looks after itself. auto: tp for tp-train."),
    ONE_OF("", "reshard", reshard, "auto|always|never", "auto",
        "a checkpoint of another layout (checkpoints: tp): convert it with tp-reshard before the launch?\n"
        "auto: for tp-train when that is quicker than --resume reading it, for others yes."),
    KEY("", "steps", INT, steps, "0", "steps of the whole run (0: tp-train's --steps; else not known)"),
    ONE_OF("", "backend", backend, "local|slurm", "local", "where ranks run"),
    ONE_OF("", "launcher", launcher, "self|mpirun", "self",
        "local: the command starts its own ranks (tp-train does), or mpirun starts it"),
    SHOWN("", "nodes", NODES, nodes, "1",
        "local: what counts as a node, as name:slots (slots: ranks it holds, default 1), or how many\n"
        "nodes of one slot. `tp-run node JOB down NAME` takes one away, `up` gives it back.",
        "[a:2, b:2]"),
    KEY("", "state", PATH, state, NULL, "journal, events.jsonl, logs (default: this file's name with .run)"),
    KEY("", "grace", SECONDS, grace, "60s", "how long \"save and stop\" may take before SIGKILL"),
    KEY("", "webhook", STR, webhook, "", "URL that gets a POST with the event, as JSON, on failures and at the end"),

    KEY("layouts", "allow", SPECS, layouts.allow, NULL,
        "layouts in order of preference; the first that fits is taken. Without it they are\n"
        "enumerated within the limits below, and the fastest by the cost model is taken."),
    KEY("layouts", "axes", WORDS, layouts.axes, "[tp, pp, vpp, cp, dp, sp, zero1, zero3]",
        "what layouts may be made of: tp pp vpp cp dp sp zero1 zero3"),
    KEY("layouts", "min_ranks", INT, layouts.min_ranks, "1", "with fewer the job waits for nodes"),
    KEY("layouts", "max_ranks", INT, layouts.max_ranks, "0", "0: as many as the nodes hold"),
    KEY("layouts", "memory", SIZE, layouts.memory, "0", "what a rank may use (0: no limit; tp-train's --mem)"),
    KEY("layouts", "model", PATH, layouts.model, NULL, "config.json or its folder (tp-train's --model)"),
    KEY("layouts", "dtype", STR, layouts.dtype, NULL, "fp32 or bf16 (tp-train's --dtype)"),
    KEY("layouts", "batch", INT, layouts.batch, "0", "global batch, kept at every layout (tp-train's --batch)"),
    KEY("layouts", "micro", INT, layouts.micro, "0", "sequences in a microbatch (tp-train's --micro)"),
    KEY("layouts", "seq", INT, layouts.seq, "0", "tokens in a sequence (tp-train's --seq)"),

    KEY("restart", "max", INT, restart.max, "100", "restarts `within` this time, then the job has failed"),
    KEY("restart", "within", SECONDS, restart.within, "1h", ""),
    KEY("restart", "backoff", SECONDS, restart.backoff, "1s",
        "wait before the second restart in a row without progress, doubled each time"),
    KEY("restart", "backoff_max", SECONDS, restart.backoff_max, "60s", ""),
    KEY("restart", "no_progress", INT, restart.no_progress, "3",
        "failures in a row without a new step, then the job has failed"),
    KEY("restart", "blame", INT, restart.blame, "3", "faults of its ranks after which a node is excluded"),
    KEY("restart", "exclude_for", SECONDS, restart.exclude_for, "10m", "after that it may come back"),
    KEY("restart", "spares", INT, restart.spares, "0", "nodes held back to replace lost ones"),
    KEY("restart", "settle", SECONDS, restart.settle, "5s", "a node that came back counts after this time"),
    KEY("restart", "worth", DOUBLE, restart.worth, "2",
        "scale up when the time it saves is this many times what the rescale costs"),

    KEY("watch", "floor", SECONDS, watch.floor, "3s", "no deadline is shorter"),
    KEY("watch", "factor", DOUBLE, watch.factor, "15",
        "a rank without progress for this many times the 99th percentile of step times hangs"),
    KEY("watch", "init", SECONDS, watch.init, "5m", "from launch to the first step"),
    KEY("watch", "save", SECONDS, watch.save, "10m", "for a save, before one was seen"),
    KEY("watch", "slow", DOUBLE, watch.slow, "3",
        "a rank that computes this many times as long as the median of all is reported (0: off)"),
    KEY("watch", "slow_steps", INT, watch.slow_steps, "20", "over this many steps"),
    ONE_OF("watch", "nan", watch.on_nan, "restart|stop|ignore", "restart",
        "a loss that is NaN or infinite: go back to the newest checkpoint before it (twice at the\n"
        "same step: failed), fail at once, or go on"),
    KEY("watch", "jump", DOUBLE, watch.jump, "20",
        "report a loss above the recent median by this many times the recent spread (0: off)"),

    KEY("page", "listen", STR, page.listen, "127.0.0.1:0",
        "status page, /status and /metrics; port 0: a free one, printed; \"\": none. Any address that is\n"
        "not loopback needs token_file."),
    KEY("page", "token_file", PATH, page.token_file, NULL, "file with the token that requests must carry"),

    SHOWN("slurm", "options", WORDS, slurm.options, "[]",
        "salloc's and sbatch's own, one word each: account, partition, time, qos, container and any other.\n"
        "--container... goes to salloc and to the srun of the ranks.",
        "[--partition=main, --time=1:00:00]"),
    KEY("slurm", "step_options", WORDS, slurm.step_options, "[]", "options for the srun of the ranks: --cpu-bind, --gpus-per-task"),
    KEY("slurm", "nodes", INT, slurm.nodes, "0", "nodes to ask for (0: 1, or as many as the batch job around tp-run has)"),
    KEY("slurm", "min_nodes", INT, slurm.min_nodes, "1", "with fewer left the allocation is given back and a new one asked for"),
    KEY("slurm", "tasks_per_node", INT, slurm.tasks_per_node, "1", "ranks a node holds"),
    ONE_OF("slurm", "chain", slurm.chain, "false|true|requeue", "true",
        "when the wall time ends go on in another Slurm job: in a batch job the next one is submitted\n"
        "beforehand (and cancelled when it is not needed), else a new allocation is asked for. requeue: the\n"
        "batch job requeues itself instead, so that it is one job for sacct and for those that wait for it\n"
        "(--dependency=afterok); Slurm waits two minutes before it begins again"),
    KEY("slurm", "margin", SECONDS, slurm.margin, "2m", "so long before the end of the wall time the job saves and ends"),
    ONE_OF("slurm", "grow", slurm.grow, "expand|new|off", "expand",
        "how nodes that were lost are made up for, when that is worth a restart. expand: more nodes join\n"
        "the allocation (permit_job_expansion in slurm.conf); new: when nodes are idle the allocation is\n"
        "given back for a whole one; off: not before the next allocation"),
    KEY("slurm", "lost", SECONDS, slurm.lost, "2s", "a node without a sign of life for so long is lost"),
    KEY("slurm", "poll", SECONDS, slurm.poll, "5s", "between two looks at the allocation: its end, its nodes"),
    KEY("slurm", "drain", BOOL, slurm.drain, "false",
        "drain a node when it is excluded for its faults (needs the right to); an administrator resumes it"),
    { NULL, NULL, JOB_KIND_END, 0, NULL, NULL, NULL, NULL },
};

static const struct { const char *name, *help; } SECTIONS[] = {
    { "layouts", "which layouts may be chosen" },
    { "restart", "when to start again, and when to stop trying" },
    { "watch", "what counts as a fault; all times by the monotonic clock" },
    { "page", "the status page" },
    { "slurm", "for backend: slurm" },
};
/* clang-format on */

const struct job_key *job_keys(void)
{
    return KEYS;
}

const char *job_section_help(const char *section)
{
    for (size_t i = 0; i < sizeof SECTIONS / sizeof SECTIONS[0]; i++)
        if (strcmp(SECTIONS[i].name, section) == 0)
            return SECTIONS[i].help;
    return NULL;
}

static void example_key(FILE *f, const struct job_key *k)
{
    const char *indent = k->section[0] ? "  " : "", *p = k->help;
    const char *value = k->shown ? k->shown : k->value ? k->value : "";

    while (*p) {
        int n = (int)strcspn(p, "\n");

        fprintf(f, "%s# %.*s\n", indent, n, p);
        p += n + (p[n] == '\n');
    }
    if (k->names)
        fprintf(f, "%s# one of: %s\n", indent, k->names);
    fprintf(f, "%s%s%s: %s\n", indent, k->shown || k->value ? "" : "# ", k->name,
            value[0] || (!k->shown && !k->value) ? value : "\"\"");
}

void job_example(FILE *f)
{
    const char *section = "";

    fprintf(
        f, "# A job file of tp-run. What is not set has the value that stands here, but for name,\n"
           "# command, ckpt and nodes.\n");
    for (const struct job_key *k = KEYS; k->kind != JOB_KIND_END; k++) {
        if (strcmp(section, k->section) != 0) {
            section = k->section;
            fprintf(f, "\n# %s\n%s:\n", job_section_help(section), section);
        }
        example_key(f, k);
    }
}
