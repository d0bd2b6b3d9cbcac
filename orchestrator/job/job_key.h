/* orchestrator/job/job_key.h - the keys of a job file: one table for parser, errors and example. */
#ifndef ORCHESTRATOR_JOB_JOB_KEY_H
#define ORCHESTRATOR_JOB_JOB_KEY_H

#include <stddef.h>

enum job_kind {
    JOB_KIND_END,
    JOB_KIND_STR,
    JOB_KIND_PATH,    /* made absolute from the job file's folder */
    JOB_KIND_INT,     /* int64_t >= 0 */
    JOB_KIND_DOUBLE,  /* >= 0 */
    JOB_KIND_SECONDS, /* double: 0.5, 30s, 5m, 2h */
    JOB_KIND_SIZE,    /* int64_t bytes: 2G */
    JOB_KIND_BOOL,
    JOB_KIND_WORDS, /* a list, or one string cut like a shell's */
    JOB_KIND_SPECS, /* a list of layouts */
    JOB_KIND_NODES, /* a list of names, each with ":slots" (default 1); or a number of nodes */
    JOB_KIND_ENUM,  /* int; names lists the words */
};

struct job_key {
    const char *section; /* "" at top level */
    const char *name;
    enum job_kind kind;
    size_t offset;     /* in struct job */
    const char *value; /* default, as it would stand in the file; NULL: none */
    const char *names; /* ENUM: "local|slurm" in the order of the enum */
    const char *help;  /* for the example; "\n" breaks a line */
    const char *shown; /* what the example shows when it is not the default */
};

/* Ends with JOB_KIND_END. */
const struct job_key *job_keys(void);

/* What a section is for; NULL when there is no such section. */
const char *job_section_help(const char *section);

#endif
