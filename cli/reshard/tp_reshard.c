/* cli/reshard/tp_reshard.c - tp-reshard: rewrite a checkpoint at another layout. */
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "cli/print.h"
#include "cli/report.h"
#include "cli/reshard/reshard_job.h"
#include "cli/reshard/reshard_print.h"
#include "cli/rss.h"
#include "core/clock.h"
#include "core/thread_pool.h"

#define PROG "tp-reshard"

enum { JOURNAL_S = 2 };

struct options {
    struct reshard_request request;
    enum dtype dtype;
    const char *dtype_text, *device, *zstd;
    bool no_compress, dry_run, json;
};

static const char intro[] =
    "Rewrites a checkpoint at another layout: weights, fp32 masters, optimizer state and training\n"
    "state. Works out of core, never writes to the source, and either makes the whole new step or\n"
    "nothing.";

static const char tail[] =
    "SPEC is axis and degree in any order, as tp4, tp4pp2, tp=4,pp=2, tp2dp4zero1. Axes that --to\n"
    "does not name stay as the source has them. Under `mpirun -n K " PROG
    " ...` K processes share\n"
    "the work.\n\n"
    "After Ctrl-C, SIGTERM, a crash or a power cut, the same command goes on where it was: what "
    "was\n"
    "begun stays in OUT, in step-N.tmp-ID. It starts over when CKPT or what is asked for has "
    "changed,\n"
    "and under mpirun. An error removes what was begun.\n\n"
    "exit codes: 0 done; 2 the request is wrong; 3 it failed: with both nothing was committed;\n"
    "75 stopped by SIGINT or SIGTERM, to be gone on with.";

/* False: *exit_code is what to return. */
static bool parse(struct options *o, int *exit_code, int argc, char **argv)
{
    struct reshard_request *q = &o->request;
    const struct opt opts[] = {
        OPT_ARG("CKPT", &q->ckpt, "checkpoint root (its newest complete step) or step directory"),
        OPT_STR(0, "to", "SPEC", &q->to, "layout to write"),
        OPT_STR(0, "from", "SPEC", &q->from, "what CKPT has to be, else exit 2"),
        OPT_STR('o', "out", "OUT", &q->out, "root to write to (default: CKPT-SPEC)"),
        OPT_INT64(0, "step", "N", &q->step, "this step, not the newest"),
        OPT_SIZE(0, "mem", "SIZE", &q->memory_bytes,
                 "most resident memory of a process (default 1G)"),
        OPT_INT('j', "jobs", "N", &q->jobs, "threads (default: processors)"),
        OPT_STR(0, "device", "auto|cpu|cuda", &o->device, "device to copy with (default auto)"),
        OPT_FLAG(0, "no-optim", &q->no_optim, "weights only"),
        OPT_STR(0, "dtype", "f32|bf16|f16", &o->dtype_text, "cast the weights"),
        OPT_STR_OPT(0, "zstd", "LEVEL", &o->zstd, "compress (not in this version)"),
        OPT_FLAG(0, "no-compress", &o->no_compress, "do not compress (the default)"),
        OPT_FLAG('n', "dry-run", &o->dry_run, "print the plan and write nothing"),
        OPT_FLAG('f', "force", &q->force, "replace OUT's step when it exists"),
        OPT_DOUBLE(0, "journal", "SECONDS", &q->journal_s,
                   "how often it is made to last how far it is (default 2)"),
        OPT_FLAG(0, "json", &o->json, "one JSON object on stdout"),
        OPT_END
    };

    return report_options(exit_code, PROG, opts, argc, argv, intro, tail);
}

static tp_status check_options(struct options *o, struct tp_err *err)
{
    tp_status st;

    if (!o->request.to)
        return tp_fail(err, TP_E_USAGE, "--to is missing: the layout to write, as --to tp4");
    if ((st = thread_pool_check_workers("--jobs", o->request.jobs, err)))
        return st;
    if (o->request.journal_s < 0)
        return tp_fail(err, TP_E_USAGE, "--journal: %g is less than 0 seconds",
                       o->request.journal_s);
    if (o->zstd && o->no_compress)
        return tp_fail(err, TP_E_USAGE, "--zstd and --no-compress exclude each other");
    if (o->zstd)
        return tp_fail(err, TP_E_USAGE,
                       "--zstd: this version does not write compressed shards yet");
    if (strcmp(o->device, "cuda") == 0)
        return tp_fail(err, TP_E_USAGE, "--device cuda: this build has no CUDA; use --device cpu");
    if (strcmp(o->device, "auto") != 0 && strcmp(o->device, "cpu") != 0)
        return tp_fail(err, TP_E_USAGE, "--device is auto, cpu or cuda, not '%s'", o->device);
    if (!o->dtype_text)
        return TP_OK;
    if (!dtype_parse(&o->dtype, o->dtype_text) ||
        (o->dtype != DTYPE_F32 && o->dtype != DTYPE_BF16 && o->dtype != DTYPE_F16))
        return tp_fail(err, TP_E_USAGE, "--dtype is f32, bf16 or f16, not '%s'", o->dtype_text);
    o->request.dtype = &o->dtype;
    return TP_OK;
}

/* Sums and maxima over the processes. */
static tp_status add_up(struct reshard_totals *t, const struct transfer_stats *s, int64_t peak,
                        struct comm *world, struct tp_err *err)
{
    int64_t sums[3] = { s->bytes_read, s->bytes_written, s->windows };
    tp_status st = comm_all_reduce(world, sums, 3, COMM_I64, COMM_SUM, err);

    if (!st)
        st = comm_all_reduce(world, &peak, 1, COMM_I64, COMM_MAX, err);
    t->bytes_read = sums[0];
    t->bytes_written = sums[1];
    t->windows = sums[2];
    t->peak_bytes = peak;
    t->processes = comm_size(world);
    return st;
}

static tp_status print_plan(const struct options *o, const struct reshard_job *job,
                            const struct reshard_totals *totals, struct tp_err *err)
{
    if (o->json)
        return reshard_print_json(job, totals, true, err);
    reshard_print_plan(stdout, job, totals);
    return TP_OK;
}

static tp_status work(const struct options *o, struct reshard_job *job, struct comm *world,
                      double start, struct tp_err *err)
{
    bool root = comm_rank(world) == 0;
    struct reshard_totals totals = { 0 };
    struct progress *progress;
    tp_status st;

    TP_TRY(reshard_job_plan(job, &o->request, comm_size(world) > 1 ? world : NULL, err));
    if (root && job->note[0])
        report_note(PROG, "%s", job->note);
    TP_TRY(add_up(&totals, &job->planned, job->base_bytes + job->planned.buffer_bytes, world, err));
    if (o->dry_run)
        return root ? print_plan(o, job, &totals, err) : TP_OK;
    TP_TRY(reshard_job_begin(job, err));
    if (root && job->note[0])
        report_note(PROG, "%s", job->note);
    progress = progress_new("resharding", job->planned.bytes_written, !root);
    st = reshard_job_run(job, progress, err);
    progress_end(progress, st == TP_OK);
    TP_TRY(st);
    TP_TRY(add_up(&totals, &job->done, rss_peak_bytes(), world, err));
    totals.seconds = clock_seconds() - start;
    if (!root)
        goto done;
    if (o->json)
        st = reshard_print_json(job, &totals, false, err);
    else
        reshard_print_result(stdout, job, &totals);
done:
    return st;
}

/* A checkpoint of many ranks is many files, all open at once. */
static void raise_open_files(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

int main(int argc, char **argv)
{
    struct options o = {
        .request = { .step = -1,
                     .memory_bytes = INT64_C(1) << 30,
                     .jobs = thread_pool_cores(),
                     .journal_s = JOURNAL_S },
        .device = "auto",
    };
    struct reshard_job job = { 0 };
    struct comm *world = NULL;
    struct tp_err err = { 0 };
    double start = clock_seconds();
    int exit_code, rank;
    tp_status st;

    report_begin();
    if (!parse(&o, &exit_code, argc, argv))
        return exit_code;
    st = check_options(&o, &err);
    if (st)
        return report(PROG, st, &err);
    raise_open_files();
    st = comm_init(&world, 0, &err);
    if (st)
        return report(PROG, st, &err);
    rank = comm_rank(world);
    st = work(&o, &job, world, start, &err);
    reshard_job_free(&job);
    if (!st)
        st = print_done(&err);
    exit_code = rank == 0 ? report(PROG, st, &err) : tp_exit_code(st);
    /* Statuses are agreed on, so nobody waits for long; but the others leave only when rank 0 has
     * said what there is to say: mpirun ends all when one exits with an error. */
    comm_end(world, TP_OK);
    return exit_code;
}
