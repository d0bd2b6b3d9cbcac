/*
 * orchestrator/job/job.h - a job: what to run, where, and within which limits.
 *
 * job_file.h reads one from a job file. Its texts and arrays are in the arena that was passed
 * there. A job does not change afterwards.
 */
#ifndef ORCHESTRATOR_JOB_JOB_H
#define ORCHESTRATOR_JOB_JOB_H

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/arena.h"
#include "core/err.h"
#include "layout/spec.h"

enum {
    JOB_NODES_MAX = 4096,
    JOB_SPECS_MAX = 256,
    JOB_RANKS_MAX = 65536,
};

enum job_launcher { JOB_LAUNCH_SELF, JOB_LAUNCH_MPIRUN };
enum job_checkpoints { JOB_CKPT_AUTO, JOB_CKPT_TP, JOB_CKPT_NONE };
enum job_reshard { JOB_RESHARD_AUTO, JOB_RESHARD_ALWAYS, JOB_RESHARD_NEVER };
enum job_stop_signal {
    JOB_STOP_AUTO,
    JOB_STOP_SIGTERM,
    JOB_STOP_SIGUSR1,
    JOB_STOP_SIGUSR2,
    JOB_STOP_SIGINT,
    JOB_STOP_SIGHUP,
};
enum job_on_nan { JOB_NAN_RESTART, JOB_NAN_STOP, JOB_NAN_IGNORE };

struct job_words {
    int n;
    char **word; /* NULL after the last */
};

struct job_node {
    const char *name;
    int slots; /* number of ranks it can hold */
};

struct job_backend; /* job_backend.h */

/* The config.json of a model at a URL, once it was read: later plans must not depend on its server.
 * It is in the arena of the job. */
struct job_config {
    struct arena *arena;
    char *text; /* NULL: not read yet */
    size_t size;
};

struct job {
    const char *path, *dir; /* the job file; its folder, absolute */
    const char *name;
    struct job_words command, prepare;
    bool is_tp_train; /* the command is tp-train: its options are read, and more are added */
    const char *ckpt; /* checkpoint root, absolute */
    int checkpoints;  /* enum job_checkpoints, never AUTO */
    int reshard;      /* enum job_reshard */
    int64_t steps;    /* of the whole run; 0: not known */
    const struct job_backend *backend;
    const void *backend_options; /* the backend's own struct, read from its section */
    int launcher;                /* enum job_launcher */
    int n_nodes;
    struct job_node *nodes; /* none if the backend finds its nodes itself */
    const char *state;      /* folder of the journal, events and logs, absolute */
    bool state_is_default;  /* the file does not name it */
    int stop_signal;        /* enum job_stop_signal: asks to save and stop; never AUTO */
    double grace;           /* seconds from "save and stop" to SIGKILL */
    const char *webhook;

    struct { /* the layouts to choose from */
        int n_allow;
        struct spec *allow; /* in order of preference; none: all layouts are enumerated */
        struct job_words axes;
        int64_t min_ranks, max_ranks;
        int64_t memory; /* bytes that a rank may use, 0: no limit */
        const char *model, *dtype;
        struct job_config *config; /* if the model is at a URL */
        int64_t batch, micro, seq;
    } layouts;
    struct {
        int64_t max;    /* restarts in the time `within`; with more the job fails */
        double within;  /* seconds */
        double backoff; /* first wait, doubled after each start without progress */
        double backoff_max;
        int64_t no_progress; /* starts in a row without a new step; then the job fails */
        int64_t blame;       /* a node is excluded after this many faults of its ranks */
        double exclude_for;  /* seconds */
        int64_t spares;      /* nodes held back to replace lost ones */
        double settle;       /* seconds until a node that came back counts */
        double worth;        /* scale up if it saves this many times its cost */
    } restart;
    struct {
        double floor;  /* no deadline is shorter, seconds */
        double factor; /* deadline of a step, as a multiple of the 99th percentile of step times */
        double init;   /* deadline from the launch to the first step */
        double save;   /* deadline of a save until one was measured */
        double slow;   /* as a multiple of the median computing time of all ranks */
        int64_t slow_steps;
        int on_nan;  /* enum job_on_nan */
        double jump; /* loss above the median by this many times the recent spread, 0: off */
    } watch;
    struct {
        const char *listen; /* host:port, "" for none */
        const char *token_file;
        const char *textfile; /* gets the metrics; NULL: none */
    } page;
};

/* Split text into words as a shell does: blanks, '...', "...", backslash; nothing is expanded.
 * TP_E_USAGE: a quote is not closed. */
tp_status job_split(struct job_words *out, const char *text, struct arena *arena,
                    struct tp_err *err);

/* Whether layouts.axes names this axis: tp pp vpp cp dp ep sp zero1 zero3. */
bool job_has_axis(const struct job *j, const char *axis);

/* The absolute path of `path`, which is relative to the job's folder, without links. Its last part
 * need not exist. False: its folder does not exist either. */
bool job_resolve(char out[PATH_MAX], const struct job *j, const char *path);

/* The signal of stop_signal, such as SIGTERM. */
int job_signal(const struct job *j);

/* Sum of the slots of the job file's nodes. */
int64_t job_slots(const struct job *j);

#endif
