/* orchestrator/job/job_key.c - see orchestrator/job/job_key.h. */
#include "orchestrator/job/job_key.h"

#include <string.h>

#include "orchestrator/job/job.h"

#define KEY(s, n, k, field, v, help)        JOB_KEY(s, n, k, struct job, field, v, help)
#define SHOWN(s, n, k, field, v, help, w)   JOB_KEY_SHOWN(s, n, k, struct job, field, v, help, w)
#define ONE_OF(s, n, field, names, v, help) JOB_KEY_ENUM(s, n, struct job, field, names, v, help)

/* clang-format off */
static const struct job_key KEYS[] = {
    SHOWN("", "name", STR, name, "job", "shown in messages, on the status page and to the webhook", "gpl"),
    SHOWN("", "command", WORDS, command, NULL,
        "The command line, split into words as a shell does, or a list of words. It runs in this file's\n"
        "folder. {layout} {ckpt} {ranks} {attempt} {state}, and the layout's {tp} {pp} {vpp} {dp} {cp} {ep},\n"
        "are replaced by their values. For tp-train, tp-run adds --layout, --ckpt, --steps, --resume and --log\n"
        "where they are missing; a --layout in the command is the only layout that runs. Any other program runs\n"
        "as it is written. It is watched by its exit and, when it uses libtp-progress, by its heartbeats.",
        "tp-train --model model/ --data data.txt --steps 1000 --save-every 50"),
    KEY("", "prepare", WORDS, prepare, "[]",
        "a command to run before each launch, with the same replacements: for example a conversion that\n"
        "`reshard` does not do. Processes that it leaves in the background are killed when it ends. When the\n"
        "layout changes while it runs, it is run again. When a signal kills it, it is run again, within the\n"
        "limits of `restart`; when it ends with an error, the job has failed"),
    SHOWN("", "ckpt", PLACE, ckpt, NULL, "the checkpoint root: a folder, or s3://BUCKET/PREFIX", "ckpt"),
    ONE_OF("", "checkpoints", checkpoints, "auto|tp|none", "auto",
        "tp: the root has checkpoints of this toolkit. They are verified before a restart, bad ones are\n"
        "quarantined, and older jobs cannot write there any more. none: tp-run does not look at them.\n"
        "auto: tp for tp-train, none for others."),
    ONE_OF("", "reshard", reshard, "auto|always|never", "auto",
        "whether tp-reshard converts a checkpoint of another layout before the launch (with checkpoints: tp).\n"
        "auto: for tp-train when that is predicted to be faster than --resume, for other programs always"),
    KEY("", "steps", INT, steps, "0", "steps of the whole run; for tp-train give this or --steps (0: tp-train's --steps, otherwise not known)"),
    KEY("", "backend", BACKEND, backend, NULL, "where the ranks run"),
    ONE_OF("", "launcher", launcher, "self|mpirun", "self",
        "backend local: self: the command starts its own ranks, as tp-train does; mpirun: mpirun starts them"),
    SHOWN("", "nodes", NODES, nodes, "1",
        "backend local: the nodes, as name:slots (slots: ranks that it holds, default 1), or a number of\n"
        "nodes with one slot each. `tp-run node JOB down NAME` takes a node away, `up` gives it back.",
        "[a:2, b:2]"),
    KEY("", "state", PATH, state, NULL, "folder for the journal, events and logs (default: this file's name with .run, which\n"
        "belongs to this file alone)"),
    ONE_OF("", "stop_signal", stop_signal, "auto|SIGTERM|SIGUSR1|SIGUSR2|SIGINT|SIGHUP", "auto",
        "the signal that asks the command to save and stop. auto: SIGUSR1 for tp-train and for ranks that\n"
        "mpirun starts, because mpirun ends its ranks on SIGTERM; SIGTERM for any other program"),
    KEY("", "grace", SECONDS, grace, "60s", "time that \"save and stop\" may take before SIGKILL"),
    KEY("", "webhook", STR, webhook, "", "URL that gets a POST with the event, as JSON, on faults and when the job ends"),

    KEY("layouts", "allow", SPECS, layouts.allow, NULL,
        "the layouts in order of preference; the first one that fits is taken. Without this key all layouts\n"
        "within the limits below are compared, and the one that is predicted to be fastest is taken."),
    KEY("layouts", "axes", WORDS, layouts.axes, "[tp, pp, vpp, cp, dp, ep, sp, zero1, zero3]",
        "the axes that a layout may use: tp pp vpp cp dp ep sp zero1 zero3"),
    KEY("layouts", "min_ranks", INT, layouts.min_ranks, "1", "with fewer ranks the job waits for nodes"),
    KEY("layouts", "max_ranks", INT, layouts.max_ranks, "0", "limit on the ranks (0: as many as the nodes hold)"),
    KEY("layouts", "memory", SIZE, layouts.memory, "0", "memory that a rank may use, on GPUs that of a GPU (0: no limit, or what GPUs have; default: tp-train's --mem)"),
    KEY("layouts", "model", PLACE, layouts.model, NULL, "config.json or its folder (default: tp-train's --model)"),
    KEY("layouts", "dtype", STR, layouts.dtype, NULL, "fp32 or bf16 (default: tp-train's --dtype)"),
    KEY("layouts", "batch", INT, layouts.batch, "0", "global batch, the same at every layout (default: tp-train's --batch)"),
    KEY("layouts", "micro", INT, layouts.micro, "0", "sequences in a microbatch (default: tp-train's --micro)"),
    KEY("layouts", "seq", INT, layouts.seq, "0", "tokens in a sequence (default: tp-train's --seq)"),

    KEY("restart", "max", INT, restart.max, "100", "the job has failed after more restarts than this within the time `within`"),
    KEY("restart", "within", SECONDS, restart.within, "1h", "the time in which restarts count towards `max`"),
    KEY("restart", "backoff", SECONDS, restart.backoff, "1s",
        "wait before the second restart in a row without progress; doubled before each further one"),
    KEY("restart", "backoff_max", SECONDS, restart.backoff_max, "60s", "the longest such wait"),
    KEY("restart", "no_progress", INT, restart.no_progress, "3",
        "the job has failed after this many starts in a row without progress. A start made progress when it trained, "
        "unless the program failed at the same step as before; one that a lost node ended does not count"),
    KEY("restart", "blame", INT, restart.blame, "3", "a node is excluded after this many faults of its ranks, unless no layout fits the others"),
    KEY("restart", "exclude_for", SECONDS, restart.exclude_for, "10m", "how long a node is excluded"),
    KEY("restart", "spares", INT, restart.spares, "0", "nodes held back to replace lost ones"),
    KEY("restart", "settle", SECONDS, restart.settle, "5s", "a node that came back is used after this time"),
    KEY("restart", "worth", DOUBLE, restart.worth, "2",
        "scale up when the time saved is this many times what the restart costs"),

    KEY("watch", "floor", SECONDS, watch.floor, "3s", "no deadline is shorter than this"),
    KEY("watch", "factor", DOUBLE, watch.factor, "15",
        "a rank hangs when it makes no progress for this many times the 99th percentile of the step times"),
    KEY("watch", "init", SECONDS, watch.init, "5m", "deadline from the launch to the first step"),
    KEY("watch", "save", SECONDS, watch.save, "10m", "deadline for a save until tp-run has measured one; with checkpoints in a store for all"),
    KEY("watch", "slow", DOUBLE, watch.slow, "3",
        "report a rank that computes this many times as long as the median of all ranks (0: off)"),
    KEY("watch", "slow_steps", INT, watch.slow_steps, "20", "measured over this many steps"),
    ONE_OF("watch", "nan", watch.on_nan, "restart|stop|ignore", "restart",
        "when the loss is NaN or infinite: restart from the newest checkpoint before it (the job has failed\n"
        "when it happens at the same step again), stop as failed, or only report it"),
    KEY("watch", "jump", DOUBLE, watch.jump, "20",
        "report a loss that is above the recent median by this many times the recent spread (0: off)"),

    KEY("page", "listen", STR, page.listen, "127.0.0.1:0",
        "address of the status page, /status and /metrics; port 0: a free port, which is printed; \"\": no\n"
        "page. An address that is not loopback needs token_file."),
    KEY("page", "token_file", PATH, page.token_file, NULL, "file with the token that requests must carry"),
    KEY("page", "textfile", PATH, page.textfile, NULL,
        "file NAME.prom that gets the metrics every 10 s and at the end, for the textfile collector of\n"
        "Prometheus' node_exporter. It stays, so that an alert sees how the job has ended."),
    JOB_KEY_END,
};

static const struct { const char *name, *help; } SECTIONS[] = {
    { "layouts", "the layouts to choose from" },
    { "restart", "when to start again, and when to give up" },
    { "watch", "what counts as a fault" },
    { "page", "the status page" },
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
