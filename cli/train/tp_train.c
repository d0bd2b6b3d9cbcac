/* cli/train/tp_train.c - tp-train: train a transformer over many ranks. Any other layout can
 * resume from its checkpoints. */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cuda_library.h"
#include "cli/open_files.h"
#include "cli/rank_env.h"
#include "cli/remote_env.h"
#include "cli/report.h"
#include "cli/train/train_device.h"
#include "cli/train/train_request.h"
#include "comm/control.h"
#include "comm/launch.h"
#include "comm/world.h"
#include "core/heap.h"
#include "core/heartbeat.h"
#include "core/stop.h"
#include "core/thread_pool.h"
#include "trainer/loop.h"

/* Shared memory for the collectives' own use, in addition to the trainer's. */
static const int64_t COMM_SLACK = INT64_C(16) << 20;

/* ---- a rank ---- */

/* A line that cannot be written (a full disk, a pipe whose reader has ended) is not worth the run:
 * warn once. */
static void print_line(void *ctx, bool is_step, const char *line)
{
    struct train_request *r = ctx;

    if (!is_step) {
        report_note(TRAIN_PROG, "%s", line);
    } else if (!r->quiet && (puts(line) == EOF || fflush(stdout) != 0) && !r->output_lost) {
        r->output_lost = true;
        report_note(TRAIN_PROG, "warning: standard output: %s: training goes on without it",
                    strerror(errno));
    }
}

static int threads_of(const struct train_request *r, struct comm_world *ranks)
{
    int n = r->config.threads ? r->config.threads : thread_pool_cores() / comm_local_size(ranks);

    if (n > r->most_threads) {
        if (control_rank(comm_control(ranks)) == 0)
            report_note(TRAIN_PROG,
                        "a rank has %d of %d threads, because more need more than --mem",
                        r->most_threads, n);
        n = r->most_threads;
    }
    return n > 1 ? n : 1;
}

/* Say why a rank ends before all steps are done: to the watcher, and to people, if this rank has
 * to. */
static void report_end(struct train_request *r, struct comm_world *ranks, tp_status st, bool agreed,
                       struct tp_err *err)
{
    int rank = control_rank(comm_control(ranks));
    bool speaks = agreed ? rank == 0 : st != TP_E_COMM || rank == 0;

    if (st == TP_E_GPU)
        heartbeat_gpu_failed(r->config.heartbeat);
    if (st == TP_E_GPU_FULL)
        heartbeat_gpu_full(r->config.heartbeat);
    if (st && !agreed)
        tp_fail_in(err, "rank %d", rank);
    if (st && speaks)
        report(TRAIN_PROG, st, err);
}

/* The reason is printed before the trainer is closed: other ranks notice that this one closes its
 * connections, and after a failure of a GPU or its network that may take long. What this rank alone
 * knows, its device has to know: closing must not wait for ranks that wait for this one. */
static tp_status train(struct train_request *r, struct comm_world *ranks, struct tp_err *err)
{
    const struct loop_output output = { print_line, r };
    const struct train_device_options options = { .kind = r->device_kind,
                                                  .threads = threads_of(r, ranks),
                                                  .no_comm_thread = !comm_has_threads(ranks),
                                                  .same_gpus = r->own_ranks,
                                                  .ranks = ranks,
                                                  .heartbeat = r->config.heartbeat };
    char note[TRAIN_DEVICE_NOTE_MAX];
    struct trainer_device d = { 0 };
    struct trainer t = { 0 };
    bool agreed = true;
    tp_status st;

    if ((st = train_device_open(&d, note, &options, err))) {
        report_end(r, ranks, st, agreed, err);
        return st;
    }
    if (*note && control_rank(comm_control(ranks)) == 0)
        report_note(TRAIN_PROG, "%s", note);
    d.threads = options.threads;
    heartbeat_gpu_memory(r->config.heartbeat, d.gpu_bytes);
    st = trainer_open(&t, &r->config, &r->model, &d, ranks, err);
    agreed = comm_has_agreed(ranks);
    if (!st)
        st = loop_run(&t, &output, &agreed, err);
    report_end(r, ranks, st, agreed, err);
    if (st && !agreed)
        device_fail(d.device, err);
    trainer_close(&t);
    device_close(d.device);
    return st;
}

/* Report to the watcher from the very start, because another rank may never come. A run continues
 * without a heartbeat when it cannot be opened. */
static void open_heartbeat(struct train_request *r, const struct comm_env *env)
{
    int rank = env->is_mpi ? env->mpi_rank : env->launched.rank,
        world = spec_world(&r->config.spec);
    struct tp_err err = { 0 };

    if (rank >= 0 && rank < world &&
        heartbeat_open(&r->config.heartbeat, getenv(HEARTBEAT_DIR_ENV), rank, world, &err) &&
        rank == 0)
        report_note(TRAIN_PROG, "warning: %s", err.msg);
}

static int run_rank(struct train_request *r, const struct comm_env *env)
{
    struct tp_err err = { 0 };
    struct comm_world *ranks = NULL;
    int64_t on_host = r->device_kind == TRAIN_DEVICE_CUDA ? 0 : r->size.shared;
    tp_status st;

    open_heartbeat(r, env);
    if ((st = comm_open(&ranks, env, on_host + COMM_SLACK, &err)))
        return report(TRAIN_PROG, st, &err);
    st = train(r, ranks, &err);
    heartbeat_close(r->config.heartbeat, st == TP_OK || st == TP_E_STOPPED);
    comm_close(ranks, st == TP_E_STOPPED ? TP_OK : st);
    return tp_exit_code(st);
}

/* ---- starting ---- */

static int run_under_mpi(struct train_request *r, const struct comm_env *env)
{
    struct tp_err err = { 0 };
    char text[SPEC_TEXT_MAX];
    int n = spec_world(&r->config.spec), world = env->mpi_size;

    if (world && world != n && rank_env_is_echo()) {
        rank_env_wait_for_first();
        return tp_exit_code(TP_E_USAGE);
    }
    if (world && world != n)
        return report(TRAIN_PROG,
                      tp_fail(&err, TP_E_USAGE,
                              "layout %s has %d rank%s, but %d process%s started; "
                              "use mpirun -n %d",
                              spec_format(text, &r->config.spec), n, n == 1 ? "" : "s", world,
                              world == 1 ? " was" : "es were", n),
                      &err);
    return run_rank(r, env);
}

static int run_own_ranks(struct train_request *r, struct comm_env *env)
{
    struct tp_err err = { 0 };
    int code = 0;
    tp_status st;

    r->own_ranks = true;
    st = launch_ranks(spec_world(&r->config.spec), &env->launched, &code, &err);

    if (st)
        return report(TRAIN_PROG, st, &err);
    return env->launched.rank >= 0 ? run_rank(r, env) : code;
}

/* Train, in this process or in ranks that it starts. A reader of the messages that ends (`| head`,
 * a log collector that crashes) must not kill a rank or the launcher, whose run is not saved yet.
 * The environment is changed while there is one thread: MPI makes others. */
static int run(struct train_request *r, struct comm_env *env)
{
    signal(SIGPIPE, SIG_IGN);
    if (r->device_kind != TRAIN_DEVICE_CPU && spec_world(&r->config.spec) > 1)
        cuda_library_for_ranks();
    return env->is_mpi ? run_under_mpi(r, env) : run_own_ranks(r, env);
}

/* Read and check the command line. False: exit with *code; of many processes one has printed the
 * reason. */
static bool understand(struct train_request *r, int *code, int argc, char **argv)
{
    struct tp_err err = { 0 };
    struct rank_env_silence silence = rank_env_silence_echo();
    tp_status st;
    bool ok;

    ok = train_request_options(r, code, argc, argv);
    if (ok && (st = train_request_check(r, &err))) {
        *code = report(TRAIN_PROG, st, &err);
        ok = false;
    }
    ok = ok && !train_request_prints(r); /* printing was the whole request */
    rank_env_end_silence(silence);
    return ok;
}

int main(int argc, char **argv)
{
    struct train_request r = { .config = train_config_default() };
    struct comm_env env;
    struct tp_err err = { 0 };
    int code = 0;

    r.epoch = getenv("TP_EPOCH");
    report_begin();
    rank_env_prepare(argv);
    open_files_raise();
    heap_keep();
    rank_env_read(&env);
    if (env.is_mpi)
        stop_listen();
    if (remote_env_read(&err))
        code = report(TRAIN_PROG, err.status, &err);
    else if (understand(&r, &code, argc, argv))
        code = run(&r, &env);
    else if (code)
        rank_env_wait_for_first();
    arena_free(&r.arena);
    return code;
}
