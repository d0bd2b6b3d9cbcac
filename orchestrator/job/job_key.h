/*
 * orchestrator/job/job_key.h - the keys of a job file.
 *
 * One table drives the parser, its messages and `tp-run --example`. A backend adds a table of its
 * own keys (job_backend.h).
 */
#ifndef ORCHESTRATOR_JOB_JOB_KEY_H
#define ORCHESTRATOR_JOB_JOB_KEY_H

#include <stddef.h>

enum job_kind {
    JOB_KIND_END,
    JOB_KIND_STR,
    JOB_KIND_PATH,    /* made absolute from the job file's folder */
    JOB_KIND_PLACE,   /* the same, or a URL, which stays as it is */
    JOB_KIND_INT,     /* int64_t >= 0 */
    JOB_KIND_DOUBLE,  /* >= 0 */
    JOB_KIND_SECONDS, /* double: 0.5, 30s, 5m, 2h */
    JOB_KIND_SIZE,    /* int64_t bytes: 2G */
    JOB_KIND_BOOL,
    JOB_KIND_WORDS,   /* a list, or one string that is split as a shell does */
    JOB_KIND_SPECS,   /* a list of layouts; sets job.layouts.allow */
    JOB_KIND_NODES,   /* a list of name:slots (default 1), or a number of nodes; sets job.nodes */
    JOB_KIND_ENUM,    /* int; `names` lists the words */
    JOB_KIND_BACKEND, /* a backend's name; sets job.backend. Default: the first backend */
};

struct job_key {
    const char *section; /* "" at the top level */
    const char *name;
    enum job_kind kind;
    size_t offset;     /* of the field in struct job, or in the backend's struct of options */
    const char *value; /* default, as written in the file; NULL: none */
    const char *names; /* ENUM: "auto|tp|none" in the order of the enum */
    const char *help;  /* for the example; "\n" breaks a line */
    const char *shown; /* what the example shows instead of the default */
};

/* clang-format off */
/* Rows of a table. type, field: where the value goes. SHOWN: the example shows `w`, which is not
 * the default. */
#define JOB_KEY(s, n, k, type, field, v, help) \
    { s, n, JOB_KIND_##k, offsetof(type, field), v, NULL, help, NULL }
#define JOB_KEY_SHOWN(s, n, k, type, field, v, help, w) \
    { s, n, JOB_KIND_##k, offsetof(type, field), v, NULL, help, w }
#define JOB_KEY_ENUM(s, n, type, field, names, v, help) \
    { s, n, JOB_KIND_ENUM, offsetof(type, field), v, names, help, NULL }
#define JOB_KEY_END { NULL, NULL, JOB_KIND_END, 0, NULL, NULL, NULL, NULL }
/* clang-format on */

/* The keys that every backend has. Ends with JOB_KEY_END. */
const struct job_key *job_keys(void);

/* What a section of job_keys is for; NULL: there is no such section. */
const char *job_section_help(const char *section);

#endif
