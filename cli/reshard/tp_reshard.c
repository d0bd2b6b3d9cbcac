/* cli/reshard/tp_reshard.c - tp-reshard: rewrite a checkpoint at another layout. */
#include <stdlib.h>
#include <string.h>

#include "cli/copy_options.h"
#include "cli/open_files.h"
#include "cli/print.h"
#include "cli/rank_env.h"
#include "cli/remote_env.h"
#include "cli/report.h"
#include "cli/reshard/convert_print.h"
#include "cli/reshard/reshard_device.h"
#include "cli/reshard/reshard_print.h"
#include "comm/control.h"
#include "comm/world.h"
#include "reshard/formats/export_format.h"
#include "reshard/formats/foreign.h"
#include "reshard/model_plan.h"
#include "reshard/reshard.h"

#define PROG "tp-reshard"

struct reshard_options {
    struct reshard_request request;
    struct copy_options copy;
    const char *device, *model;
    const char *from_format, *format, *config, *rules, *assets;
    struct export_options export;
    struct opt_list ignore;
    enum reshard_device_kind device_kind;
    int64_t device_memory_bytes;
    bool device_memory_given;
    bool no_compress, json;
};

static const char intro[] =
    "Rewrites a checkpoint at another layout: weights, fp32 masters, optimizer state and training\n"
    "state. It needs little memory, never writes to the source, and creates either the complete\n"
    "new step or nothing. CKPT may be of another framework: the result then has the same\n"
    "format, or that of --format.";

static const char tail[] =
    "SPEC is axes and degrees in any order: tp4, tp4pp2, tp=4,pp=2, tp2dp4zero1. The axes are tp,\n"
    "pp, vpp (virtual pipeline stages of a rank), dp, cp, ep, sp and zero (0, 1 or 3; FSDP over 4\n"
    "ranks is dp4zero3). Axes that --to does not name stay as they are in the source.\n\n"
    "Under `mpirun -n K " PROG
    " ...` K processes share the work, also on several nodes that share\n"
    "the file system of CKPT and OUT. --mem and --jobs are those of each process. GGUF, and the\n"
    "files of other frameworks in a store, are written by one process.\n\n"
    "The format tp is a checkpoint of tp-train; tp-ckpt import --help and tp-ckpt export --help\n"
    "explain the others. Most of their checkpoints do not record a layout, so axes that\n"
    "--to does not name are 1. OUT gets config.json and tokenizer files.\n\n" REMOTE_ENV_HELP "\n\n"
    "Ctrl-C, SIGTERM, SIGHUP (a terminal that closes), a crash or a power failure leaves the\n"
    "unfinished step in OUT, in step-N.tmp-ID (another framework's: OUT.tmp-ID), and the same\n"
    "command resumes it. It starts over when CKPT or the options have changed, under mpirun,\n"
    "to s3:// and to GGUF. An error removes the unfinished step.\n\n"
    "--device cuda needs libtp-cuda.so, as tp-train does (docs/GPU.md). The processor\n"
    "compresses, decompresses and casts to f16.\n\n"
    "exit codes: 0 done; 2 the request is wrong; 3 it failed (after 2 and 3 nothing was\n"
    "committed); 75 interrupted: run the same command again to resume.";

#define RULES_HELP                                                                         \
    "how tensors are cut, if CKPT's architecture is unknown; for\nsafetensors, bin, dcp, " \
    "accelerate, torchtitan,\ndeepspeed, verl and pt; --format is then tp by default"

/* False: *exit_code is what to return. */
static bool parse(struct reshard_options *o, int *exit_code, int argc, char **argv)
{
    struct reshard_request *q = &o->request;
    char sources[FOREIGN_LIST_TEXT], targets[EXPORT_LIST_TEXT];
    const struct opt opts[] = {
        OPT_ARG_OPT("CKPT", &q->ckpt,
                    "checkpoint root (its newest complete step) or step directory"),
        OPT_STR(0, "to", "SPEC", &q->to, "layout to write"),
        OPT_STR(0, "from", "SPEC", &q->from, "layout that CKPT must have; otherwise exit code 2"),
        OPT_STR('o', "out", "OUT", &q->out,
                "root to write to, a folder or s3://BUCKET/PREFIX (default:\nCKPT-SPEC, where SPEC "
                "is the complete new layout)"),
        OPT_INT64(0, "step", "N", &q->step,
                  "this step (default: the newest complete one); of another framework's\nCKPT: the "
                  "step that the result has"),
        OPT_SIZE(0, "mem", "SIZE", &o->copy.memory_bytes,
                 "limit on the resident memory of each process (default 1G)"),
        OPT_INT('j', "jobs", "N", &o->copy.threads, "threads (default: processors)"),
        OPT_STR(0, "from-format", foreign_format_list(sources, "", "|"), &o->from_format,
                "format of CKPT (default: detected from its files)"),
        OPT_STR(0, "format", export_format_list(targets, "tp|", "|", false), &o->format,
                "format to write (default: that of CKPT)"),
        OPT_STR(0, "config", "FILE", &o->config,
                "config.json of the model, if CKPT is of another framework and\nhas none (of "
                "Megatron-LM, one is made from its arguments, of meta from\nparams.json)"),
        OPT_STR(0, "assets", "DIR", &o->assets,
                "another framework's format: copy tokenizer, chat templates and\n"
                "generation_config.json from this folder (default: CKPT)"),
        OPT_STR(0, "rules", "FILE", &o->rules, RULES_HELP),
        OPT_LIST(
            0, "ignore", "NAME", &o->ignore,
            "another framework's CKPT: leave out this tensor, which the model\ndoes not have; * "
            "matches any text; may be given several times"),
        OPT_STR(
            0, "device", "auto|cpu|cuda", &o->device,
            "device that gathers, splits, casts and sums (default auto: cuda\nif there is a GPU, "
            "--mem is at least 1G, and the first\nseconds show that it is faster; otherwise cpu)"),
        { OPT_KIND_SIZE, 0, "device-mem", "SIZE", &o->device_memory_bytes,
          "limit on the GPU memory of each process for buffers (default 1G)",
          &o->device_memory_given },
        OPT_FLAG(0, "no-optim", &q->no_optim, "write the weights only"),
        OPT_FLAG(0, "distributed-optimizer", &o->export.distributed_optimizer,
                 "megatron, torch_dist: write the optimizer as\n--use-distributed-optimizer of "
                 "Megatron-LM loads it (default: the\nkind that CKPT has)"),
        OPT_FLAG(0, "ordinary-optimizer", &o->export.ordinary_optimizer,
                 "megatron, torch_dist: write the ordinary optimizer"),
        COPY_OPTIONS_MODULES(&o->export, "CKPT's, else "),
        OPT_STR(0, "dtype", "f32|bf16|f16", &o->copy.dtype_text,
                "cast the weights; between formats f32 is taken from the masters"),
        COPY_OPTION_ZSTD(&o->copy.zstd),
        OPT_FLAG(0, "no-compress", &o->no_compress, "write raw files, whatever CKPT has (default)"),
        OPT_FLAG(
            0, "link", &q->link,
            "hard-link the files of CKPT instead of copying them, if\n"
            "tp does not change, OUT has a rank for each file and is on\nthe same file system"),
        OPT_FLAG(
            0, "no-clone", &q->no_clone,
            "on XFS and btrfs: copy and check every tensor, also those that\ncould share their "
            "blocks with CKPT"),
        OPT_FLAG('n', "dry-run", &q->dry_run, "print the plan and write nothing"),
        OPT_STR(
            0, "model", "CONFIG", &o->model,
            "with --dry-run and --from, instead of CKPT: plan for the model of\nthis config.json "
            "(or its folder), trained in bf16"),
        OPT_FLAG('f', "force", &q->force, "replace the step of OUT if it exists"),
        COPY_OPTION_JOURNAL(&o->copy.journal_s),
        OPT_FLAG(0, "json", &o->json,
                 "print one JSON object; on stderr, one progress object per line"),
        OPT_END
    };

    return report_options(exit_code, PROG, opts, argc, argv, intro, tail);
}

/* There is a checkpoint, or a model to plan for. */
static tp_status check_source(const struct reshard_options *o, struct tp_err *err)
{
    const struct reshard_request *q = &o->request;

    if (!q->ckpt && !o->model)
        return tp_fail(err, TP_E_USAGE,
                       "CKPT is missing: the checkpoint to reshard; --help shows the usage");
    if (q->ckpt && o->model)
        return tp_fail(err, TP_E_USAGE, "CKPT and --model exclude each other");
    if (o->model && (!q->dry_run || !q->from))
        return tp_fail(err, TP_E_USAGE,
                       "--model needs --dry-run and --from: there is no checkpoint to reshard");
    return TP_OK;
}

static tp_status check_options(struct reshard_options *o, struct tp_err *err)
{
    struct reshard_request *q = &o->request;
    tp_status st = check_source(o, err);

    if (st)
        return st;
    if (!q->to)
        return tp_fail(err, TP_E_USAGE, "--to is missing: the layout to write, as --to tp4");
    if (o->copy.zstd && o->no_compress)
        return tp_fail(err, TP_E_USAGE, "--zstd and --no-compress exclude each other");
    if ((st = copy_options_level(&q->zstd, &o->copy, err)))
        return st;
    if ((st = reshard_device_kind_parse(&o->device_kind, o->device, err)))
        return st;
    if (o->rules && !o->format)
        o->format = CONVERT_OWN;
    q->raw = o->no_compress;
    q->memory_bytes = o->copy.memory_bytes;
    q->threads = o->copy.threads;
    q->journal_s = o->copy.journal_s;
    return copy_options_check(&o->copy, &q->dtype, err);
}

/* ---- other frameworks ---- */

static bool is_conversion(const struct reshard_options *o)
{
    return o->request.ckpt && convert_is_meant(o->request.ckpt, o->from_format, o->format);
}

/* Whether another framework's format is written. */
static bool writes_foreign(const struct reshard_options *o)
{
    return is_conversion(o) && (!o->format || strcmp(o->format, CONVERT_OWN) != 0);
}

/* What a checkpoint of tp-train has by itself: one kind of optimizer, and how tensors are cut. */
static tp_status check_foreign(const struct reshard_options *o, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (o->request.ckpt)
        st = convert_check_place(o->request.ckpt, o->from_format, err);
    if (st)
        return st;
    if (o->rules && !is_conversion(o))
        return tp_fail(
            err, TP_E_USAGE,
            "--rules are for an unknown architecture of another framework; a checkpoint of "
            "tp-train has them already");
    if (o->ignore.n && !is_conversion(o))
        return tp_fail(err, TP_E_USAGE,
                       "--ignore is for checkpoints of other frameworks; a checkpoint of tp-train "
                       "has no tensors that its model does not have");
    if (o->config && !is_conversion(o))
        return tp_fail(err, TP_E_USAGE,
                       "--config is for checkpoints of other frameworks; a checkpoint of tp-train "
                       "has a config.json already");
    if (o->assets && !writes_foreign(o))
        return tp_fail(err, TP_E_USAGE,
                       "--assets is for formats of other frameworks; a checkpoint of tp-train has "
                       "no tokenizer");
    return writes_foreign(o) ? TP_OK : export_options_check_format(&o->export, NULL, err);
}

static tp_status check_conversion(const struct reshard_options *o, struct tp_err *err)
{
    const struct reshard_request *q = &o->request;
    const struct {
        bool given;
        const char *option;
    } refused[] = { { q->from, "--from" },
                    { q->link, "--link" },
                    { q->no_clone, "--no-clone" },

                    { o->device_kind == RESHARD_DEVICE_CUDA, "--device cuda" },
                    { o->model, "--model" },
                    { q->zstd && (!o->format || strcmp(o->format, CONVERT_OWN) != 0), "--zstd" } };

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (refused[i].given)
            return tp_fail(err, TP_E_USAGE,
                           "%s is for checkpoints of tp-train, and %s is, or becomes, another "
                           "framework's; leave it out",
                           refused[i].option, q->ckpt);
    return TP_OK;
}

/* Scripts give --device-mem with any checkpoint, so it is no mistake where it has no effect. */
static void note_no_effect(const struct reshard_options *o)
{
    if (!o->device_memory_given)
        return;
    if (is_conversion(o))
        report_note(PROG, "--device-mem has no effect: a GPU copies only checkpoints of tp-train");
    else if (o->device_kind == RESHARD_DEVICE_CPU)
        report_note(PROG, "--device-mem has no effect with --device cpu");
}

/* Convert, and print the result on rank 0. */
static tp_status convert(struct reshard_options *o, struct comm_control *control,
                         struct tp_err *err)
{
    const struct reshard_request *q = &o->request;
    const bool root = control_rank(control) == 0;
    struct convert_request c = { .source = q->ckpt,
                                 .from_format = o->from_format,
                                 .format = o->format,
                                 .rules = o->rules,
                                 .ignore = { o->ignore.values, o->ignore.n },
                                 .to = q->to,
                                 .config = o->config,
                                 .assets = o->assets,
                                 .out = q->out,
                                 .scratch = getenv("TMPDIR"),
                                 .step = q->step,
                                 .dtype = q->dtype,
                                 .no_optim = q->no_optim,
                                 .options = o->export,
                                 .zstd = q->zstd,
                                 .memory_bytes = q->memory_bytes,
                                 .threads = q->threads,
                                 .journal_s = q->journal_s,
                                 .force = q->force,
                                 .dry_run = q->dry_run,
                                 .control = control };
    struct convert_report report;
    tp_status st = control_agree(control, check_conversion(o, err), err);

    if (st)
        return st;
    c.progress = root ? copy_options_progress("resharding", o->json) : NULL;
    st = convert_run(&report, &c, err);
    if (st)
        progress_end(c.progress, false);
    else
        progress_erase(c.progress);
    if (st || !root)
        return st;
    st = o->json ? convert_print_json(&report, err) : convert_print(&report, q->ckpt, err);
    return q->dry_run ? st : print_reported(st, report.out, err);
}

/* Check the source and options. All processes must find the same kind of source. */
static tp_status check_together(const struct reshard_options *o, struct comm_control *control,
                                struct tp_err *err)
{
    int64_t found = is_conversion(o), all = found;
    tp_status st;

    TP_TRY(control_agree(control, check_foreign(o, err), err));
    TP_TRY(control_sum_i64(control, &all, 1, err));
    if (all > 0 && !found)
        st =
            tp_fail(err, TP_E_USAGE,
                    "%s: is, or becomes, another framework's for other ranks, but rank %d does not "
                    "find its files; all nodes must share its file system",
                    o->request.ckpt, control_rank(control));
    st = control_agree(control, st, err);
done:
    return st;
}

/* Reshard, and print the result on rank 0. */
static tp_status run(struct reshard_options *o, struct comm_world *ranks, struct tp_err *err)
{
    const struct reshard_device_options d = { o->device_kind, o->device_memory_bytes,
                                              o->request.memory_bytes, ranks };
    struct reshard_request *q = &o->request;
    struct reshard_report report;
    struct reshard_device device;
    bool root = control_rank(comm_control(ranks)) == 0;
    tp_status st = check_together(o, comm_control(ranks), err);

    if (st)
        return st;
    if (root)
        note_no_effect(o);
    if (is_conversion(o))
        return convert(o, comm_control(ranks), err);
    st = reshard_device_open(&device, &d, err);
    if (st)
        return st;
    q->device = device.is_usable ? &device.transfer : NULL;
    q->control = comm_control(ranks);
    q->progress = root ? copy_options_progress("resharding", o->json) : NULL;
    st = o->model ? model_plan_make(&report, o->model, q, err) : reshard_run(&report, q, err);
    st = reshard_device_finish(&device, st, err);
    if (st)
        progress_end(q->progress, false);
    else
        progress_erase(q->progress);
    if (!st && root) {
        reshard_device_explain(&device, &report);
        st = o->json ? reshard_print_json(&report, &device, q->dry_run, err)
                     : reshard_print(&report, &device, q->dry_run, err);
        if (!q->dry_run)
            st = print_reported(st, report.out, err);
    }
    reshard_report_free(&report);
    q->device = NULL;
    reshard_device_close(&device);
    return st;
}

/* Read and check the command line and the environment. False: exit with *code; of many processes
 * one has printed the reason. */
static bool understand(struct reshard_options *o, int *code, int argc, char **argv)
{
    struct rank_env_silence silence = rank_env_silence_echo();
    struct tp_err err = { 0 };
    bool ok = parse(o, code, argc, argv);
    tp_status st = TP_OK;

    if (ok && !(st = check_options(o, &err)))
        st = remote_env_read(&err);
    if (st)
        *code = report_json(o->json, PROG, st, &err);
    rank_env_end_silence(silence);
    return ok && !st;
}

int main(int argc, char **argv)
{
    struct reshard_options o = { .request = { .step = -1 },
                                 .copy = copy_options_default(),
                                 .device_memory_bytes = INT64_C(1) << 30 };
    struct comm_env env;
    struct comm_world *ranks = NULL;
    struct tp_err err = { 0 };
    int exit_code, rank;
    tp_status st;

    report_begin();
    if (!understand(&o, &exit_code, argc, argv)) {
        if (exit_code)
            rank_env_wait_for_first();
        return exit_code;
    }
    if (!o.request.dry_run)
        report_outlive_reader();
    open_files_raise();
    rank_env_read(&env);
    st = comm_open(&ranks, &env, 0, &err);
    if (st)
        return report_json(o.json, PROG, st, &err);
    rank = control_rank(comm_control(ranks));
    st = run(&o, ranks, &err);
    if (rank == 0 && o.request.ckpt)
        st = convert_explain(st, o.request.ckpt, o.from_format, &err);
    exit_code = rank == 0 ? report_json(o.json, PROG, st, &err) : tp_exit_code(st);
    /* All processes have the same status, so none waits for long. But mpirun ends all of them when
     * one exits with an error, so the others leave only after rank 0 has printed its message. */
    comm_close(ranks, TP_OK);
    return exit_code;
}
