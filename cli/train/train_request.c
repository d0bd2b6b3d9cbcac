/* cli/train/train_request.c - see cli/train/train_request.h. */
#include "cli/train/train_request.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "ckpt/codec.h"
#include "ckpt/root.h"
#include "cli/report.h"
#include "cli/train/model_place.h"
#include "core/file.h"
#include "core/text.h"
#include "core/thread_pool.h"
#include "kernels/cpu/cpu.h"
#include "layout/model_config.h"
#include "layout/train_option.h"
#include "reshard/formats/foreign_adapter.h"
#include "reshard/formats/foreign_model.h"
#include "reshard/formats/hf_config.h"
#include "storage/location.h"
#include "trainer/data/token_file.h"
#include "trainer/pipeline/schedule_diagram.h"
#include "trainer/resume_step.h"
#include "trainer/suggestions.h"

static const char INTRO[] =
    "Train a transformer, such as Llama, Qwen3, Gemma or GPT-2 (docs/MODELS.md has all), on many\n"
    "ranks: tensor, sequence, context, pipeline, expert and data parallel, on CPUs or NVIDIA "
    "GPUs.\n"
    "It needs --data and --steps, and --model or a checkpoint to resume from.\n"
    "It starts its own ranks. Under mpirun or srun it needs one process per rank of the layout.";
static const char TAIL[] =
    "SIGTERM, SIGUSR1, SIGINT (Ctrl-C) or SIGHUP (a terminal that closes): finish the step, save,\n"
    "exit 75. Under mpirun use SIGUSR1. Under nohup SIGHUP is ignored.\n"
    "When the reader of its output ends (`| head`), training goes on to its end.\n"
    "Exit: 0 done, 2 the request is wrong, 3 the run failed, 75 saved and stopped before the end.\n"
    "Example: tp-train --model model/config.json --data text --layout tp2 --steps 100 --ckpt ckpt";

static const char GRAPHS_HELP[] =
    "on (default): on a GPU the operations of a step are recorded once and\n"
    "then launched together; off: each step launches them one by one";
static const char MEM_HELP[] = "refuse a run whose estimated memory per rank is larger; with\n"
                               "--device cuda the memory of its GPU";
static const char RECOMPUTE_HELP[] =
    "none (default); selective: compute attention again in the backward pass;\n"
    "full: keep only the layers' inputs, and compute each layer again";

/* ---- the command line ---- */

static bool parse(int *exit_code, const struct opt *opts, int argc, char **argv)
{
    const struct report_program program = {
        .usage = TRAIN_PROG, .intro = INTRO, .tail = TAIL, .version = kernels_cpu_description()
    };

    return report_program_options(exit_code, &program, opts, argc, argv);
}

bool train_request_options(struct train_request *r, int *exit_code, int argc, char **argv)
{
    struct train_config *c = &r->config;
    struct train_optimizer *o = &c->opt;
    const struct opt opts[] = {
        OPT_STR(train_option_letter("model"), "model", "PATH", &c->model_path,
                "folder with config.json and model.safetensors, or config.json (random\n"
                "weights); also https://..., s3://...; with --resume by default the saved model"),
        OPT_STR(train_option_letter("data"), "data", "FILE", &c->data_path,
                "the prefix of Megatron's token files, FILE.bin and FILE.idx; or a text file,\n"
                "whose bytes are the tokens (vocabularies beyond 1024: only as bytes:FILE)"),
        OPT_INT64(train_option_letter("steps"), "steps", "N", &c->steps, "steps of the whole run"),
        OPT_STR(train_option_letter("layout"), "layout", "SPEC", &r->layout,
                "mesh of ranks: tp4, tp2pp2dp2zero1 (default tp1); zero1 partitions the\n"
                "optimizer's state over the dp ranks, zero3 weights and gradients too;\n"
                "ep divides the experts of a mixture among the ranks of dp x cp"),
        OPT_INT64(0, "seq", "T", &c->seq_length, "tokens in a sequence (default 64)"),
        OPT_INT64(0, "batch", "B", &c->global_batch_size, "sequences per step (default 8)"),
        OPT_INT64(0, "micro", "M", &c->micro_batch_size,
                  "sequences in a microbatch of a dp rank (default: all of its sequences)"),
        OPT_STR(0, "dtype", "fp32|bf16", &r->dtype, "bf16 keeps fp32 masters (default fp32)"),
        OPT_INT64(0, "seed", "N", &c->seed, "seed of the random weights (default 1234)"),
        OPT_HEADING("optimizer (AdamW; linear warmup, then cosine)"),
        OPT_DOUBLE(0, "lr", "X", &o->lr, "largest learning rate (default 1e-3)"),
        OPT_DOUBLE(0, "min-lr", "X", &o->min_lr, "learning rate at the end (default 1e-4)"),
        OPT_INT64(0, "warmup", "N", &o->warmup, "steps of warmup (default 5)"),
        OPT_DOUBLE(0, "beta1", "X", &o->beta1, "default 0.9"),
        OPT_DOUBLE(0, "beta2", "X", &o->beta2, "default 0.95"),
        OPT_DOUBLE(0, "eps", "X", &o->eps, "default 1e-8"),
        OPT_DOUBLE(0, "weight-decay", "X", &o->weight_decay, "decay of matrices (default 0.1)"),
        OPT_DOUBLE(0, "clip", "X", &o->clip, "largest gradient norm; 0: no clipping (default 1)"),
        OPT_HEADING("checkpoints"),
        OPT_STR(0, "ckpt", "ROOT", &c->ckpt, "save the last step here: a folder, or s3://..."),
        OPT_INT64(0, "save-every", "K", &c->save_every, "also save every K-th step"),
        OPT_INT(0, "keep", "N", &c->keep,
                "steps to keep, up to the one just saved; 0: all (default)"),
        OPT_STR_OPT(0, "ckpt-zstd", "L", &r->ckpt_zstd,
                    "compress checkpoints, level 1 to 19 (default 1)"),
        OPT_STR_OPT(0, "resume", "auto|must", &r->resume,
                    "continue from ROOT's newest intact step, of any layout;\n"
                    "without one: start at step 0 (auto, the default) or fail (must)"),
        OPT_INT64(0, "step", "N", &c->step, "resume from step N only"),
        OPT_FLAG(0, "reset-optim", &c->reset_optim, "resume with a new optimizer (zero moments)"),
        OPT_INT64(0, "exit-step", "N", &c->exit_step, "save and stop (exit 75) after step N"),
        OPT_HEADING("output"),
        OPT_STR(0, "log", "FILE", &c->log, "write a JSON object per step; --resume appends"),
        OPT_STR(0, "logits", "FILE", &c->logits,
                "write input_ids and logits of the first batch as safetensors"),
        OPT_FLAG(train_option_letter("quiet"), "quiet", &r->quiet, "do not print a line per step"),
        OPT_HEADING("machine"),
        OPT_STR(0, "device", "cpu|cuda|auto", &r->device,
                "cpu (default); cuda: NVIDIA GPUs, one for each rank (docs/GPU.md);\n"
                "auto: cuda if each rank has a GPU, otherwise cpu"),
        OPT_STR(0, "cuda-graphs", "on|off", &r->cuda_graphs, GRAPHS_HELP),
        OPT_INT(train_option_letter("threads"), "threads", "N", &c->threads,
                "threads of a rank (default: cores / ranks of the host; fewer if --mem\n"
                "does not hold the scratch memory of attention for each)"),
        OPT_INT(0, "same-bits", "N", &c->same_bits,
                "the same losses, norms and checkpoints, bit for bit, at every tp up\n"
                "to N (a power of two) and every pp, vpp, sp, dp and zero; --micro is\n"
                "then 1 unless given, and the bits depend on it (docs/parallelism/same-bits.md)"),
        OPT_SIZE(0, "mem", "SIZE", &c->mem_bytes, MEM_HELP),
        OPT_STR(0, "recompute", "none|selective|full", &r->recompute, RECOMPUTE_HELP),
        OPT_HEADING("parallel plan and schedule"),
        OPT_STR(0, "plan", "FILE", &r->plan_path,
                "names and cuts of tensors; default: built in (layout/parallel_plan.h)"),
        OPT_FLAG(0, "print-plan", &r->print_plan, "print the plan and exit"),
        OPT_STR_OPT(0, "print-schedule", "svg", &r->print_schedule,
                    "print which pass each pipeline rank runs when, as text or svg, and exit"),
        OPT_END
    };

    return parse(exit_code, opts, argc, argv);
}

static tp_status need(const char *value, const char *flag, struct tp_err *err)
{
    return value ? TP_OK : tp_fail(err, TP_E_USAGE, "%s is missing; --help shows the usage", flag);
}

static tp_status read_dtype(struct train_request *r, struct tp_err *err)
{
    if (!r->dtype ||
        dtype_parse(&r->config.dtype, r->dtype)) /* layout/workload_check.h checks which one */
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--dtype is fp32 or bf16, not '%s'", r->dtype);
}

/* Without the slashes at its end: a store's key "a//step" is not "a/step". */
static tp_status read_root(struct train_request *r, struct tp_err *err)
{
    char clean[PATH_MAX];
    tp_status st = location_clean(clean, r->config.ckpt, err);

    if (!st && !(r->config.ckpt = arena_strdup(&r->arena, clean)))
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory", clean);
    if (st)
        return tp_fail_in(err, "--ckpt");
    return model_place_check_root(r->config.ckpt, r->config.model_path, err);
}

/* The options of checkpoints. */
static tp_status read_checkpoints(struct train_request *r, struct tp_err *err)
{
    struct train_config *c = &r->config;

    if (c->ckpt && read_root(r, err))
        return err->status;
    if (r->ckpt_zstd && codec_parse_level(&c->ckpt_zstd, "--ckpt-zstd", r->ckpt_zstd, err))
        return err->status;
    if (!r->resume)
        return TP_OK;
    if (strcmp(r->resume, "must") == 0)
        c->resume = RESUME_MUST;
    else if (!*r->resume || strcmp(r->resume, "auto") == 0)
        c->resume = RESUME_AUTO;
    else
        return tp_fail(err, TP_E_USAGE, "--resume is auto or must, not '%s'", r->resume);
    return TP_OK;
}

static tp_status read_recompute(struct train_request *r, struct tp_err *err)
{
    if (!r->recompute || recompute_parse(&r->config.recompute, r->recompute))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--recompute is none, selective or full, not '%s'",
                   r->recompute);
}

static tp_status read_device(struct train_request *r, struct tp_err *err)
{
    r->device_kind = TRAIN_DEVICE_CPU;
    if (!r->device || strcmp(r->device, "cpu") == 0)
        return TP_OK;
    if (strcmp(r->device, "cuda") == 0)
        r->device_kind = TRAIN_DEVICE_CUDA;
    else if (strcmp(r->device, "auto") == 0)
        r->device_kind = TRAIN_DEVICE_AUTO;
    else
        return tp_fail(err, TP_E_USAGE, "--device is cpu, cuda or auto, not '%s'", r->device);
    r->config.on_gpu = r->device_kind == TRAIN_DEVICE_CUDA;
    return TP_OK;
}

static tp_status read_graphs(struct train_request *r, struct tp_err *err)
{
    if (!r->cuda_graphs)
        return TP_OK;
    r->config.cuda_graphs = strcmp(r->cuda_graphs, "on") == 0;
    if (r->config.cuda_graphs || strcmp(r->cuda_graphs, "off") == 0)
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--cuda-graphs is on or off, not '%s'", r->cuda_graphs);
}

static tp_status read_machine(struct train_request *r, struct tp_err *err)
{
    tp_status st;

    if ((st = read_device(r, err)) || (st = read_graphs(r, err)))
        return st;
    if (r->config.threads && (st = thread_pool_check_workers("--threads", r->config.threads, err)))
        return st;
    return read_recompute(r, err);
}

static tp_status read_plan(struct train_request *r, struct tp_err *err)
{
    if (!r->plan_path)
        return TP_OK;
    if (parallel_plan_read(&r->plan, r->plan_path, &r->arena, err))
        return tp_fail_in(err, "--plan");
    r->model.plan = &r->plan;
    return parallel_plan_check(&r->plan, &r->model, r->plan_path, err);
}

/* Without --model: the model of the checkpoint to resume. */
static tp_status read_saved_model(struct train_request *r, struct tp_err *err)
{
    struct train_config *c = &r->config;
    struct arena arena = { 0 };
    struct ckpt_found found;
    tp_status st = ckpt_open(&found, c->ckpt, c->step, &arena, err);

    if (st) {
        tp_fail_in(err, "--model is missing, and no checkpoint has the model");
        resume_step_advise(st, c, err);
    } else if (!found.manifest.model_config) {
        st = tp_fail(err, TP_E_USAGE, "%s does not say which model it is; give --model", found.dir);
    } else {
        const char *config = found.manifest.model_config;

        c->model_path = arena_strdup(&r->arena, found.dir);
        st = c->model_path
                 ? model_config_parse(&r->model, config, strlen(config), found.dir, &r->arena, err)
                 : tp_fail(err, TP_E_NOMEM, "%s: no memory", found.dir);
    }
    arena_free(&arena);
    return st;
}

static tp_status read_model(struct train_request *r, struct tp_err *err)
{
    char clean[PATH_MAX], method[QUANT_METHOD_MAX];
    tp_status st;

    if (!r->config.model_path)
        return read_saved_model(r, err);
    st = location_clean(clean, r->config.model_path, err);
    if (!st && !(r->config.model_path = arena_strdup(&r->arena, clean)))
        st = tp_fail(err, TP_E_NOMEM, "%s: no memory", clean);
    if (!st)
        st = foreign_adapter_check(r->config.model_path, err);
    if (!st)
        st = foreign_model_config(&r->model, r->config.model_path, false, &r->arena, err);
    if (!st && foreign_model_is_quantized(method, &r->model)) /* what tp-train saves is not */
        st = hf_config_remove(&r->model, "quantization_config", &r->arena, err);
    if (st == TP_E_NOTFOUND)
        st = model_place_explain(r->config.model_path, err);
    return st ? tp_fail_in(err, "--model") : TP_OK;
}

/* ---- printing the plan and the schedule ---- */

bool train_request_prints(const struct train_request *r)
{
    return r->print_plan || r->print_schedule;
}

static tp_status print_plan(struct train_request *r, struct tp_err *err)
{
    const struct parallel_plan plan = parallel_plan_of(&r->model);
    char *text = parallel_plan_format(&plan, &r->arena);

    if (!text)
        return tp_fail(err, TP_E_NOMEM, "no memory for the plan");
    fputs(text, stdout);
    return TP_OK;
}

static tp_status print_schedule(struct train_request *r, struct tp_err *err)
{
    const struct spec *s = &r->config.spec;
    struct schedule schedule;
    tp_status st;

    if (*r->print_schedule && strcmp(r->print_schedule, "svg") != 0)
        return tp_fail(err, TP_E_USAGE, "--print-schedule takes no value, or svg, not '%s'",
                       r->print_schedule);
    st = schedule_make(&schedule, s->pp, (int)train_config_micros(&r->config), s->vpp, &r->arena,
                       err);
    if (st)
        return st;
    return *r->print_schedule ? schedule_print_svg(stdout, &schedule, err)
                              : schedule_print_text(stdout, &schedule, err);
}

static tp_status print(struct train_request *r, struct tp_err *err)
{
    tp_status st = r->print_plan ? print_plan(r, err) : TP_OK;

    if (!st && r->print_schedule)
        st = print_schedule(r, err);
    if (!st && (fflush(stdout) || ferror(stdout)))
        st = tp_fail_errno(err, "standard output cannot be written");
    return st;
}

static tp_status read_epoch(struct train_request *r, struct tp_err *err)
{
    char *end;

    if (!r->epoch || !r->epoch[0])
        return TP_OK;
    r->config.epoch = strtoll(r->epoch, &end, 10);
    return !*end && r->config.epoch > 0
               ? TP_OK
               : tp_fail(err, TP_E_USAGE, "TP_EPOCH is \"%s\", expected a number from 1", r->epoch);
}

/* Whether two paths are of one file, or will be. */
static bool is_same_file(const char *a, const char *b)
{
    struct stat s;

    if (!file_is_same(a, b))
        return strcmp(a, b) == 0; /* neither is there */
    return stat(a, &s) == 0 && S_ISREG(s.st_mode);
}

/* A log is emptied, and logits replace a file: not the one that is trained on. */
static tp_status check_written(const char *flag, const char *path, const struct train_config *c,
                               struct tp_err *err)
{
    const char *data = token_file_path(c->data_path);
    bool named = text_ends_with(data, ".bin") || text_ends_with(data, ".idx");
    int n = (int)strlen(data) - (named ? 4 : 0);
    char bin[PATH_MAX], idx[PATH_MAX];
    const char *const read[] = { data, bin, idx }, *of = NULL;

    snprintf(bin, sizeof bin, "%.*s.bin", n, data);
    snprintf(idx, sizeof idx, "%.*s.idx", n, data);
    for (size_t i = 0; i < sizeof read / sizeof *read; i++)
        if (is_same_file(path, read[i]))
            of = "--data";
    if (c->model_path &&
        (is_same_file(path, c->model_path) || model_place_has(c->model_path, path)))
        of = "--model";
    return of ? tp_fail(err, TP_E_USAGE, "%s %.400s: is a file of %s; name another file", flag,
                        path, of)
              : TP_OK;
}

static tp_status check_all_written(const struct train_config *c, struct tp_err *err)
{
    tp_status st = TP_OK;

    if (!c->data_path)
        return TP_OK;
    if (c->log)
        st = check_written("--log", c->log, c, err);
    if (c->logits && !st)
        st = check_written("--logits", c->logits, c, err);
    if (c->log && c->logits && !st && is_same_file(c->log, c->logits))
        st = tp_fail(err, TP_E_USAGE, "--log and --logits %.400s: are the same file", c->log);
    return st;
}

/* The files of the command line, which are local. */
static tp_status check_files(const struct train_request *r, struct tp_err *err)
{
    const struct train_config *c = &r->config;
    const char *const files[][2] = { { "--data", c->data_path },
                                     { "--log", c->log },
                                     { "--logits", c->logits } };

    if (!train_request_prints(r) && need(c->data_path, "--data", err))
        return err->status;
    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (files[i][1] && location_is_remote(files[i][1]))
            return tp_fail(err, TP_E_USAGE,
                           "%s %.400s: must be a local file; only --ckpt and --model take URLs",
                           files[i][0], files[i][1]);
    return check_all_written(c, err);
}

tp_status train_request_check(struct train_request *r, struct tp_err *err)
{
    struct train_config *c = &r->config, asked;
    struct layout layout;
    tp_status st;

    TP_TRY(read_checkpoints(r, err));
    if (c->resume == RESUME_NO || !c->ckpt)
        TP_TRY(need(c->model_path, "--model", err));
    TP_TRY(check_files(r, err));
    if (train_request_prints(r))
        c->steps = 1;
    if (r->layout)
        TP_TRY(spec_parse(&c->spec, r->layout, err));
    TP_TRY(read_dtype(r, err));
    TP_TRY(read_machine(r, err));
    TP_TRY(read_epoch(r, err));
    TP_TRY(read_model(r, err));
    TP_TRY(read_plan(r, err));
    asked = *c;
    TP_TRY(suggestions_check(c, &asked, &r->model, err));
    TP_TRY(trainer_layout(&layout, c, &r->model, &r->arena, err));
    if (train_request_prints(r))
        return print(r, err);
    /* first, because measuring takes longer */
    TP_TRY(suggestions_budget(&r->most_threads, &asked, &r->model, err));
    TP_TRY(trainer_measure(&r->size, c, &r->model, NULL, err));
done:
    return st;
}
