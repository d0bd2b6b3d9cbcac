/*
 * cli/train/train_request.h - what tp-train is asked to do: its options, read and checked before a
 * rank starts.
 */
#ifndef CLI_TRAIN_TRAIN_REQUEST_H
#define CLI_TRAIN_TRAIN_REQUEST_H

#include <stdbool.h>

#include "cli/train/train_device.h"
#include "core/arena.h"
#include "layout/parallel_plan.h"
#include "trainer/trainer.h"

#define TRAIN_PROG "tp-train"

struct train_request {
    struct train_config config;
    struct model model;
    struct parallel_plan plan; /* --plan's; model.plan says whether there is one */
    struct trainer_size size;  /* memory of a rank */
    int most_threads;          /* kernel threads that --mem holds */
    struct arena arena;        /* holds what model and plan point to; the caller frees it */
    const char *layout, *dtype, *device, *recompute, *resume, *plan_path; /* as given, or NULL */
    const char *cuda_graphs;                                              /* "on", "off", or NULL */
    const char *ckpt_zstd;      /* a level, "" without one; NULL: not given */
    const char *epoch;          /* from the environment, or NULL */
    const char *print_schedule; /* NULL: no; "" or "svg" */
    bool print_plan, quiet;
    bool own_ranks;   /* tp-train starts them */
    bool output_lost; /* standard output could not be written, which was said */
    enum train_device_kind device_kind;
};

/* Read the command line into r, which holds the defaults. False: exit with *exit_code; the help,
 * the version or an error was printed. */
bool train_request_options(struct train_request *r, int *exit_code, int argc, char **argv);

/* Read the files that the options name, and check everything that can be checked before a rank
 * starts. Also prints the results of --print-plan and --print-schedule. */
tp_status train_request_check(struct train_request *r, struct tp_err *err);

/* Whether the request is only to print. */
bool train_request_prints(const struct train_request *r);

#endif
