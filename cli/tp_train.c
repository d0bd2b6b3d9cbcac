/* cli/tp_train.c - tp-train: train a transformer over many ranks, with checkpoints that any other
 * layout can go on from. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "cli/report.h"
#include "comm/comm.h"
#include "comm/launch.h"
#include "core/file.h"
#include "core/heap.h"
#include "core/pool.h"
#include "core/stop.h"
#include "kernels/thread.h"
#include "trainer/advice.h"
#include "trainer/loop.h"
#include "trainer/schedule_picture.h"

static const char PROG[] = "tp-train";
static const char INTRO[] =
    "Train LlamaForCausalLM or GPT2LMHeadModel on many ranks: tensor, sequence, context, pipeline\n"
    "and data parallel, on CPUs.\n"
    "Starts its own ranks, or runs under mpirun or srun with as many as the layout has.";
static const char TAIL[] =
    "SIGTERM or SIGUSR1: finish the step, save, exit 75 (under mpirun: SIGUSR1).\n"
    "Exit: 0 done, 2 the request is wrong, 3 it failed, 75 saved and stopped before the end.\n"
    "Example: tp-train --model model/config.json --data text --layout tp2 --steps 100 --ckpt ckpt";

enum { CONFIG_MAX_BYTES = 1 << 20 };
/* Address space beside the trainer's own, for what collectives keep. */
static const int64_t COMM_SLACK = INT64_C(16) << 20;

struct request {
    struct train_config config;
    struct model model;
    struct trainer_size size;
    struct arena arena;
    const char *layout, *dtype, *device, *recompute, *resume, *plan_path, *print_schedule;
    bool print_plan;
    struct plan plan;
    bool quiet;
};

/* ---- the command line ---- */

static bool parse_options(struct request *r, int *exit_code, int argc, char **argv)
{
    struct train_config *c = &r->config;
    struct optimizer_options *o = &c->opt;
    const struct opt opts[] = {
        OPT_STR('m', "model", "PATH", &c->model_path,
                "folder with config.json and model.safetensors (the start),\n"
                "or a config.json alone (random start)"),
        OPT_STR('d', "data", "FILE", &c->data_path,
                "text or any file, a byte a token; or the prefix of Megatron's\n"
                "token files, FILE.bin and FILE.idx"),
        OPT_INT64('n', "steps", "N", &c->steps, "length of the whole run"),
        OPT_STR('l', "layout", "SPEC", &r->layout,
                "mesh of ranks: tp4, tp2pp2dp2zero1 (default tp1); zero1 deals the\n"
                "optimizer's state to the dp ranks, zero3 weights and gradients too"),
        OPT_INT64(0, "seq", "T", &c->seq, "tokens in a sequence (default 64)"),
        OPT_INT64(0, "batch", "B", &c->batch, "sequences in a step, over all ranks (default 8)"),
        OPT_INT64(0, "micro", "M", &c->micro,
                  "sequences a dp rank takes at once (default: its share)"),
        OPT_STR(0, "dtype", "T", &r->dtype, "fp32, or bf16 products with fp32 masters"),
        OPT_INT64(0, "seed", "N", &c->seed, "of the random start (default 1234)"),
        OPT_HEADING("optimizer (AdamW; linear warmup, then cosine)"),
        OPT_DOUBLE(0, "lr", "X", &o->lr, "largest learning rate (default 1e-3)"),
        OPT_DOUBLE(0, "min-lr", "X", &o->min_lr, "at the end of the run (default 1e-4)"),
        OPT_INT64(0, "warmup", "N", &o->warmup, "steps (default 5)"),
        OPT_DOUBLE(0, "beta1", "X", &o->beta1, "default 0.9"),
        OPT_DOUBLE(0, "beta2", "X", &o->beta2, "default 0.95"),
        OPT_DOUBLE(0, "eps", "X", &o->eps, "default 1e-8"),
        OPT_DOUBLE(0, "weight-decay", "X", &o->weight_decay, "of matrices (default 0.1)"),
        OPT_DOUBLE(0, "clip", "X", &o->clip, "largest gradient norm; 0: none (default 1)"),
        OPT_HEADING("checkpoints"),
        OPT_STR(0, "ckpt", "ROOT", &c->ckpt, "save here: the last step always"),
        OPT_INT64(0, "save-every", "K", &c->save_every, "and every K-th"),
        OPT_INT(0, "keep", "N", &c->keep, "newest that stay; 0: all (default)"),
        OPT_STR_OPT(0, "resume", "auto|must", &r->resume,
                    "go on from ROOT's newest step, whatever layout wrote it;\n"
                    "without one: start anew (auto, the default) or fail (must)"),
        OPT_INT64(0, "exit-step", "N", &c->exit_step, "save and stop (exit 75) after step N"),
        OPT_HEADING("output"),
        OPT_STR(0, "log", "FILE", &c->log,
                "a JSON object a line and step; appended to on --resume"),
        OPT_STR(0, "logits", "FILE", &c->logits,
                "safetensors: input_ids and logits of the first batch at the start"),
        OPT_FLAG('q', "quiet", &r->quiet, "no line a step"),
        OPT_HEADING("machine"),
        OPT_STR(0, "device", "D", &r->device, "auto, cpu or cuda (this build: cpu)"),
        OPT_INT('t', "threads", "N", &c->threads, "of a rank (default: cores / ranks of the host)"),
        OPT_INT(0, "same-bits", "N", &c->same_bits,
                "the same losses, norms and checkpoints, bit for bit, at every tp up\n"
                "to N (a power of two) and every pp, vpp, sp, dp and zero; --micro is\n"
                "then 1 unless given, and the bits depend on it (docs/parallelism/same-bits.md)"),
        OPT_SIZE(0, "mem", "SIZE", &c->mem_bytes, "refuse what needs more a rank, by estimate"),
        OPT_STR(0, "recompute", "R", &r->recompute,
                "none (default); selective: run attention again before a layer goes\n"
                "back, rather than keep its result; full: keep the layers' inputs\n"
                "only and run all of each again"),
        OPT_HEADING("parallel plan and schedule"),
        OPT_STR(0, "plan", "FILE", &r->plan_path,
                "names of the model's tensors and how each is cut,\n"
                "instead of the built-in plan (layout/plan.h)"),
        OPT_FLAG(0, "print-plan", &r->print_plan, "print that table and exit"),
        OPT_STR_OPT(0, "print-schedule", "svg", &r->print_schedule,
                    "print what each rank of the pipeline does when, and exit;\n"
                    "as text, or as a picture"),
        OPT_END
    };

    return report_options(exit_code, PROG, opts, argc, argv, INTRO, TAIL);
}

static tp_status need(const char *value, const char *flag, struct tp_err *err)
{
    return value ? TP_OK : tp_fail(err, TP_E_USAGE, "%s is missing; --help shows the usage", flag);
}

static tp_status read_dtype(struct request *r, struct tp_err *err)
{
    if (!r->dtype || (dtype_parse(&r->config.dtype, r->dtype) &&
                      (r->config.dtype == DTYPE_F32 || r->config.dtype == DTYPE_BF16)))
        return TP_OK;
    return tp_fail(err, TP_E_USAGE, "--dtype is fp32 or bf16, not '%s'", r->dtype);
}

static tp_status read_resume(struct request *r, struct tp_err *err)
{
    if (!r->resume)
        return TP_OK;
    if (strcmp(r->resume, "must") == 0)
        r->config.resume = RESUME_MUST;
    else if (!*r->resume || strcmp(r->resume, "auto") == 0)
        r->config.resume = RESUME_AUTO;
    else
        return tp_fail(err, TP_E_USAGE, "--resume is auto or must, not '%s'", r->resume);
    return TP_OK;
}

static tp_status read_recompute(struct request *r, struct tp_err *err)
{
    if (!r->recompute || strcmp(r->recompute, "none") == 0)
        return TP_OK;
    if (strcmp(r->recompute, "full") == 0)
        r->config.recompute = true;
    else if (strcmp(r->recompute, "selective") == 0)
        r->config.recompute_attention = true;
    else
        return tp_fail(err, TP_E_USAGE, "--recompute is none, selective or full, not '%s'",
                       r->recompute);
    return TP_OK;
}

static tp_status read_machine(struct request *r, struct tp_err *err)
{
    if (r->device && strcmp(r->device, "cuda") == 0)
        return tp_fail(err, TP_E_USAGE,
                       "--device cuda: this build of tp-train has no CUDA; use --device cpu");
    if (r->device && strcmp(r->device, "cpu") != 0 && strcmp(r->device, "auto") != 0)
        return tp_fail(err, TP_E_USAGE, "--device is auto, cpu or cuda, not '%s'", r->device);
    return read_recompute(r, err);
}

static tp_status read_plan(struct request *r, struct tp_err *err)
{
    char *text;
    size_t size;
    tp_status st;

    if (!r->plan_path)
        return TP_OK;
    st = file_read_all(&text, &size, r->plan_path, PLAN_BYTES_MAX, &r->arena, err);
    if (st == TP_E_CORRUPT)
        st = err->status = TP_E_USAGE;
    if (st)
        return tp_fail_in(err, "--plan");
    if ((st = plan_parse(&r->plan, text, size, r->plan_path, &r->arena, err)))
        return st;
    r->model.plan = &r->plan;
    return plan_check(&r->plan, &r->model, r->plan_path, err);
}

static tp_status read_model(struct request *r, struct tp_err *err)
{
    const char *path = r->config.model_path;
    char *text, *file;
    size_t size;
    tp_status st;

    file = file_is_dir(path) ? arena_printf(&r->arena, "%s/config.json", path)
                             : arena_strdup(&r->arena, path);
    if (!file)
        return tp_fail(err, TP_E_NOMEM, "no memory for a path");
    st = file_read_all(&text, &size, file, CONFIG_MAX_BYTES, &r->arena, err);
    if (st == TP_E_CORRUPT)
        st = err->status = TP_E_USAGE; /* not a file, or not a config.json: the request is wrong */
    if (st)
        return tp_fail_in(err, "--model");
    return model_parse(&r->model, text, size, file, &r->arena, err);
}

/* ---- the plan and the schedule, for people ---- */

static bool prints_only(const struct request *r)
{
    return r->print_plan || r->print_schedule;
}

static tp_status print_plan(struct request *r, struct tp_err *err)
{
    const struct plan *plan = r->model.plan ? r->model.plan : plan_builtin(r->model.arch);
    char *text = plan_format(plan, &r->arena);

    if (!text)
        return tp_fail(err, TP_E_NOMEM, "no memory for the plan");
    fputs(text, stdout);
    return TP_OK;
}

static tp_status print_schedule(struct request *r, struct tp_err *err)
{
    const struct spec *s = &r->config.spec;
    struct schedule schedule;
    tp_status st;

    if (*r->print_schedule && strcmp(r->print_schedule, "svg") != 0)
        return tp_fail(err, TP_E_USAGE, "--print-schedule is without a value, or svg, not '%s'",
                       r->print_schedule);
    st = schedule_make(&schedule, s->pp, (int)train_config_micros(&r->config), s->vpp, &r->arena,
                       err);
    if (st)
        return st;
    return *r->print_schedule ? schedule_print_svg(stdout, &schedule, err)
                              : schedule_print_text(stdout, &schedule, err);
}

static tp_status print(struct request *r, struct tp_err *err)
{
    tp_status st = r->print_plan ? print_plan(r, err) : TP_OK;

    if (!st && r->print_schedule)
        st = print_schedule(r, err);
    if (!st && (fflush(stdout) || ferror(stdout)))
        st = tp_fail_errno(err, "standard output cannot be written");
    return st;
}

/* Everything that can be refused before a rank starts. */
static tp_status read_request(struct request *r, struct tp_err *err)
{
    struct train_config *c = &r->config, asked;
    struct layout layout;
    tp_status st;

    TP_TRY(need(c->model_path, "--model", err));
    if (prints_only(r))
        c->steps = 1;
    else
        TP_TRY(need(c->data_path, "--data", err));
    if (r->layout)
        TP_TRY(spec_parse(&c->spec, r->layout, err));
    TP_TRY(read_dtype(r, err));
    TP_TRY(read_resume(r, err));
    TP_TRY(read_machine(r, err));
    TP_TRY(read_model(r, err));
    TP_TRY(read_plan(r, err));
    asked = *c;
    TP_TRY(advice_check(c, &asked, &r->model, err));
    TP_TRY(trainer_layout(&layout, c, &r->model, &r->arena, err));
    if (prints_only(r))
        return print(r, err);
    TP_TRY(trainer_measure(&r->size, c, &r->model, err));
    TP_TRY(advice_budget(&asked, &r->model, err));
done:
    return st;
}

/* ---- a rank ---- */

static void say(void *ctx, bool result, const char *line)
{
    const struct request *r = ctx;

    if (!result) {
        report_note(PROG, "%s", line);
    } else if (!r->quiet) {
        puts(line);
        fflush(stdout);
    }
}

static void set_threads(struct request *r, const struct comm *world)
{
    int n = r->config.threads ? r->config.threads : pool_cores() / comm_local_size(world);

    kernels_set_threads(n > 1 ? n : 1);
}

static tp_status train(struct request *r, struct comm *world, bool *agreed, struct tp_err *err)
{
    const struct loop_voice voice = { say, r };
    struct trainer t;
    tp_status st;

    set_threads(r, world);
    *agreed = true;
    st = trainer_open(&t, &r->config, &r->model, world, err);
    if (!st)
        st = loop_run(&t, &voice, agreed, err);
    trainer_close(&t);
    return st;
}

static int run_rank(struct request *r)
{
    struct tp_err err = { 0 };
    struct comm *world = NULL;
    bool agreed = false, speaks;
    tp_status st = comm_init(&world, r->size.shared + COMM_SLACK, &err);

    if (st)
        return report(PROG, st, &err);
    st = train(r, world, &agreed, &err);
    speaks = agreed ? comm_rank(world) == 0 : st != TP_E_COMM || comm_rank(world) == 0;
    if (st && !agreed)
        tp_fail_in(&err, "rank %d", comm_rank(world));
    if (st && speaks)
        report(PROG, st, &err);
    comm_end(world, st == TP_E_STOPPED ? TP_OK : st);
    return tp_exit_code(st);
}

/* ---- starting ---- */

static bool env_is_nonzero(const char *name)
{
    const char *text = getenv(name);

    return text && strtol(text, NULL, 10) > 0;
}

/* Whether another process of this mpirun or srun finds the same faults in the same command line. */
static bool is_echo(void)
{
    return env_is_nonzero("OMPI_COMM_WORLD_RANK") || env_is_nonzero("PMIX_RANK") ||
           env_is_nonzero("PMI_RANK");
}

/* Send stream to /dev/null; returns what stream_restore takes, -1: it could not be done. */
static int stream_silence(FILE *stream)
{
    int saved = dup(fileno(stream)), null = open("/dev/null", O_WRONLY | O_CLOEXEC);

    if (saved >= 0 && null >= 0)
        dup2(null, fileno(stream));
    if (null >= 0)
        close(null);
    return saved;
}

static void stream_restore(FILE *stream, int saved)
{
    fflush(stream);
    if (saved < 0)
        return;
    dup2(saved, fileno(stream));
    close(saved);
}

static int run_under_mpi(struct request *r, int world)
{
    struct tp_err err = { 0 };
    char text[SPEC_TEXT_MAX];
    int n = spec_world(&r->config.spec);

    if (world && world != n && is_echo())
        return tp_exit_code(TP_E_USAGE);
    if (world && world != n)
        return report(PROG,
                      tp_fail(&err, TP_E_USAGE,
                              "layout %s has %d ranks, but %d processes were started; "
                              "use mpirun -n %d",
                              spec_format(text, &r->config.spec), n, world, n),
                      &err);
    return run_rank(r);
}

static int run_own_ranks(struct request *r)
{
    struct tp_err err = { 0 };
    int rank = -1, code = 0;
    tp_status st = launch_ranks(spec_world(&r->config.spec), &rank, &code, &err);

    if (st)
        return report(PROG, st, &err);
    return rank >= 0 ? run_rank(r) : code;
}

/* Read and check the command line. False: *code is what to exit with; of many processes one has
 * said why. */
static bool understand(struct request *r, int *code, int argc, char **argv)
{
    struct tp_err err = { 0 };
    bool echo = is_echo(), ok;
    int out = echo ? stream_silence(stdout) : -1, error = echo ? stream_silence(stderr) : -1;
    tp_status st;

    ok = parse_options(r, code, argc, argv);
    if (ok && (st = read_request(r, &err))) {
        *code = report(PROG, st, &err);
        ok = false;
    }
    ok = ok && !prints_only(r); /* that was all */
    stream_restore(stdout, out);
    stream_restore(stderr, error);
    return ok;
}

int main(int argc, char **argv)
{
    struct request r = { .config = train_config_default() };
    int code = 0, world = 0;
    bool mpi;

    launch_prepare_env(argv);
    heap_keep();
    mpi = launch_is_mpi(&world);
    if (mpi)
        stop_listen();
    if (understand(&r, &code, argc, argv))
        code = mpi ? run_under_mpi(&r, world) : run_own_ranks(&r);
    arena_free(&r.arena);
    return code;
}
