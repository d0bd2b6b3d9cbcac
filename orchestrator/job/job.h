/*
 * orchestrator/job/job.h - the job file: what to run, where, within which limits.
 *
 * One table of keys (job_key.c) drives the parser, the errors and the commented example. Paths in
 * the file are relative to the file's own folder, which is also where the command runs.
 */
#ifndef ORCHESTRATOR_JOB_JOB_H
#define ORCHESTRATOR_JOB_JOB_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/spec.h"
#include "orchestrator/job/run_config.h"

enum {
    JOB_NODES_MAX = 4096,
    JOB_SPECS_MAX = 256,
    JOB_FILE_MAX = 1 << 20,
    JOB_RANKS_MAX = 65536,
};

enum job_backend { JOB_LOCAL, JOB_SLURM };
enum job_launcher { JOB_LAUNCH_SELF, JOB_LAUNCH_MPIRUN };
enum job_checkpoints { JOB_CKPT_AUTO, JOB_CKPT_TP, JOB_CKPT_NONE };
enum job_chain { JOB_CHAIN_OFF, JOB_CHAIN_ON, JOB_CHAIN_REQUEUE };
enum job_grow { JOB_GROW_EXPAND, JOB_GROW_NEW, JOB_GROW_OFF };
enum job_reshard { JOB_RESHARD_AUTO, JOB_RESHARD_ALWAYS, JOB_RESHARD_NEVER };
enum job_on_nan { JOB_NAN_RESTART, JOB_NAN_STOP, JOB_NAN_IGNORE };

struct job_words {
    int n;
    char **word; /* NULL after the last */
};

struct job_node {
    const char *name;
    int slots; /* ranks that it can hold */
};

struct job {
    const char *path, *dir; /* the file; its folder, absolute */
    const char *name;
    struct job_words command, prepare;
    bool is_tp_train; /* the command's program is tp-train: flags are added and read */
    const char *ckpt; /* checkpoint root, absolute */
    int checkpoints;  /* enum job_checkpoints, never AUTO after job_read */
    int reshard;      /* enum job_reshard */
    int64_t steps;    /* the whole run; 0: not known */
    int backend, launcher;
    int n_nodes;
    struct job_node *nodes;
    const char *state; /* journal, events and logs, absolute */
    double grace;      /* seconds between "save and stop" and SIGKILL */
    const char *webhook;

    struct { /* which layouts may be chosen */
        int n_allow;
        struct spec *allow; /* in this order of preference; none: enumerate */
        struct job_words axes;
        int64_t min_ranks, max_ranks;
        int64_t memory; /* bytes a rank may use, 0: no limit */
        const char *model, *dtype;
        int64_t batch, micro, seq;
    } layouts;
    struct {
        int64_t max;    /* restarts within `within` before it gives up */
        double within;  /* seconds */
        double backoff; /* first wait, doubled each time without progress */
        double backoff_max;
        int64_t no_progress; /* restarts in a row without a new step */
        int64_t blame;       /* faults after which a node is excluded */
        double exclude_for;  /* seconds; then it may come back */
        int64_t spares;      /* nodes held back to replace lost ones */
        double settle;       /* seconds a node must be back before it counts */
        double worth;        /* scale up when it saves this many times its cost */
    } restart;
    struct {
        double floor;  /* no deadline is shorter */
        double factor; /* of the 99th percentile */
        double init;   /* start to first step */
        double save;   /* a save before any was seen */
        double slow;   /* times the median of the others' computing time */
        int64_t slow_steps;
        int on_nan;  /* enum job_on_nan */
        double jump; /* loss above this many times the recent spread, 0: off */
    } watch;
    struct {
        const char *listen; /* host:port, "" for none */
        const char *token_file;
    } page;
    struct {
        struct job_words options;      /* of salloc and sbatch */
        struct job_words step_options; /* of srun */
        int64_t nodes;                 /* 0: as many as the batch job has, or 1 */
        int64_t min_nodes, tasks_per_node;
        int chain;     /* enum job_chain: go on in another Slurm job when the wall time ends */
        double margin; /* seconds before that end in which the job saves */
        int grow;      /* enum job_grow: how lost nodes are made up for */
        bool drain;    /* drain nodes at fault */
        double lost;   /* seconds without a beat after which a node is lost */
        double poll;   /* seconds between two looks at the allocation */
    } slurm;
};

/* Read and check a job file. Everything lives in the arena.
 * TP_E_NOTFOUND, TP_E_USAGE: the sentence has file and line, the key, what was expected. */
tp_status job_read(struct job *out, const char *path, struct arena *arena, struct tp_err *err);

/* The same from text; `path` gives the folder and the messages. */
tp_status job_parse(struct job *out, const char *text, size_t size, const char *path,
                    struct arena *arena, struct tp_err *err);

/* A commented job file with every key and its default. */
void job_example(FILE *f);

/* The command for one attempt, argv style: {layout} {ckpt} {ranks} {attempt} {state} filled in;
 * for tp-train the flags --layout, --ckpt, --resume and --log added where they are missing, and
 * --micro and --recompute where the way asks for them. */
tp_status job_command(struct job_words *out, const struct job *j, const struct run_config *way,
                      int64_t attempt, bool must_resume, struct arena *arena, struct tp_err *err);

/* Other words of the job with the same names filled in. */
tp_status job_fill(struct job_words *out, const struct job *j, const struct job_words *words,
                   const struct spec *layout, int64_t attempt, struct arena *arena,
                   struct tp_err *err);

/* Whether layouts.axes names an axis of scale.h: tp pp vpp cp dp sp zero1 zero3. */
bool job_has_axis(const struct job *j, const char *axis);

/* All slots of all nodes; for Slurm, until its nodes are known, those that are asked for. */
int job_ranks(const struct job *j);

/* Cut text into words like a shell does: blanks, '...', "...", backslash; nothing is expanded. */
tp_status job_split(struct job_words *out, const char *text, struct arena *arena,
                    struct tp_err *err);

#endif
