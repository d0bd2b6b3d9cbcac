/* orchestrator/run_launch.c - LAUNCH, and taking over what an earlier tp-run launched. */
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "ckpt/epoch.h"
#include "core/clock.h"
#include "core/file.h"
#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/process/process.h"
#include "orchestrator/process/relay.h"
#include "orchestrator/run_state.h"

void run_attempt_id(const struct run *r, char buf[64])
{
    snprintf(buf, 64, "%s.%lld", r->book.run_id, (long long)r->book.attempt);
}

/* Start a child of tp-run with its output in `log`. keeper: in a session of its own, marked; others
 * die with tp-run. */
pid_t run_spawn(struct run *r, char *const *argv, const char *log, bool keeper)
{
    char id[64], epoch[32], path[8192];
    const char *old = getenv("PATH"), *slash = strrchr(r->self, '/');
    sigset_t none;
    pid_t pid, parent = getpid();
    int fd;

    run_attempt_id(r, id);
    snprintf(epoch, sizeof epoch, "%lld", (long long)r->book.epoch);
    snprintf(path, sizeof path, "%.*s:%s", slash ? (int)(slash - r->self) : 1,
             slash ? r->self : ".", old ? old : "/usr/bin:/bin");
    pid = fork();
    if (pid != 0)
        return pid;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setenv("PATH", path, 1);                        /* tp-train is found beside tp-run */
    setenv("OMPI_MCA_mpi_yield_when_idle", "1", 0); /* ranks may share processors */
    unsetenv("TP_RUN_DIE_AFTER");
    if (!keeper) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (getppid() != parent)
            _exit(127);
    } else {
        setsid();
        setenv(PROCESS_SUPERVISOR_ENV, id, 1);
        setenv(HEARTBEAT_DIR_ENV, r->slots, 1);
        if (r->book.epoch > 0)
            setenv("TP_EPOCH", epoch, 1);
    }
    fd = open("/dev/null", O_RDONLY);
    dup2(fd, 0);
    fd = open(log, O_WRONLY | O_CREAT | O_APPEND, 0644);
    dup2(fd, 1);
    dup2(fd, 2);
    if (fd > 2)
        close(fd);
    if (fd < 0 || chdir(r->job->dir) != 0)
        _exit(126);
    execvp(argv[0], argv);
    _exit(127);
}

static void name_files(struct run *r)
{
    const char *state = r->job->state;
    long long n = r->book.attempt;

    snprintf(r->log, sizeof r->log, "%.3900s/attempt-%04lld.log", state, n);
    snprintf(r->exit_path, sizeof r->exit_path, "%.3900s/attempt-%04lld.exit", state, n);
    if (r->job->backend != &SLURM_JOB_BACKEND && access("/dev/shm", W_OK) == 0)
        snprintf(r->slots, sizeof r->slots, "/dev/shm/tp-run-%s/%lld", r->book.run_id, n);
    else
        snprintf(r->slots, sizeof r->slots, "%.3900s/slots/%lld", state, n);
}

/* Deal ranks to the nodes that can be used, in order. */
static tp_status place_ranks(struct run *r)
{
    int node = 0, left = 0;

    free(r->ranks);
    r->world = spec_world(&r->book.way.spec);
    r->ranks = calloc((size_t)r->world, sizeof *r->ranks);
    if (!r->ranks)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for %d ranks", r->world);
    node = -1;
    for (int i = 0; i < r->world; i++) {
        while (left == 0 && node + 1 < r->job->n_nodes)
            left = run_node_usable(r, ++node, false) ? r->job->nodes[node].slots : 0;
        r->ranks[i] = (struct run_rank){ .node = node, .pidfd = -1 };
        left--;
    }
    return TP_OK;
}

/* The longest step time that any layout had so far; 0: none is known. */
static double slowest_measured(const struct run_record *b)
{
    double most = 0;

    for (int i = 0; i < b->n_measured; i++)
        most = b->measured[i].seconds > most ? b->measured[i].seconds : most;
    return most;
}

static tp_status new_monitor(struct run *r)
{
    const struct job *j = r->job;
    double prior = slowest_measured(&r->book);
    const struct monitor_limits limits = { .floor_ns = (int64_t)(j->watch.floor * 1e9),
                                           .init_ns = (int64_t)(j->watch.init * 1e9),
                                           .save_ns = (int64_t)(j->watch.save * 1e9),
                                           .factor = j->watch.factor,
                                           .slow = j->watch.slow,
                                           .jump = j->watch.jump,
                                           .slow_steps = j->watch.slow_steps,
                                           .prior_ns = (int64_t)(prior * 1e9),
                                           .loss_known = r->book.loss_known };

    r->monitor = monitor_new(r->world, &limits, clock_ns());
    return r->monitor ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory for the monitor");
}

/* srun for the nodes that the ranks were dealt to. */
static tp_status step_command(struct run *r, struct job_words *out)
{
    char *nodes = NULL;
    int n = 0;

    for (int i = 0; i < r->world; i++) {
        const char *name = r->job->nodes[r->ranks[i].node].name;

        if (i > 0 && r->ranks[i].node == r->ranks[i - 1].node)
            continue;
        nodes =
            nodes ? arena_printf(&r->arena, "%s,%s", nodes, name) : arena_strdup(&r->arena, name);
        n++;
    }
    return slurm_step(out, r->job, (long)r->book.slurm_job, nodes ? nodes : "", n, r->world,
                      &r->arena, &r->err);
}

/* What the keeper is asked to run. */
static tp_status keeper_command(struct run *r, struct job_words *out)
{
    static char *const mpirun[] = { "mpirun", "--oversubscribe", "--bind-to", "none", "-n" };
    struct job_words w;
    char id[64];
    int n = 0;
    tp_status st = job_command(&w, r->job, &r->book.way, r->book.attempt, r->choice.step >= 0,
                               &r->arena, &r->err);

    if (st)
        return st;
    out->word = arena_array(&r->arena, (size_t)w.n + 40, sizeof *out->word);
    if (!out->word)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for the command");
    run_attempt_id(r, id);
    out->word[n++] = (char *)(uintptr_t)r->self;
    out->word[n++] = "keep";
    out->word[n++] = arena_strdup(&r->arena, id);
    out->word[n++] = r->exit_path;
    if (r->job->backend == &SLURM_JOB_BACKEND) {
        struct job_words s;

        if ((st = step_command(r, &s)))
            return st;
        for (int i = 0; i < s.n; i++)
            out->word[n++] = s.word[i];
        out->word[n++] = (char *)(uintptr_t)r->self;
        out->word[n++] = "relay";
        out->word[n++] = r->slots;
    } else if (r->job->launcher == JOB_LAUNCH_MPIRUN) {
        for (size_t i = 0; i < sizeof mpirun / sizeof mpirun[0]; i++)
            out->word[n++] = mpirun[i];
        out->word[n++] = arena_printf(&r->arena, "%d", r->world);
        if (geteuid() == 0)
            out->word[n++] = "--allow-run-as-root";
    }
    for (int i = 0; i < w.n; i++)
        out->word[n++] = w.word[i];
    out->n = n;
    return TP_OK;
}

static tp_status watch_keeper(struct run *r, pid_t pid)
{
    r->keeper = pid;
    r->keeper_pidfd = process_pidfd(pid);
    if (r->keeper_pidfd < 0 || run_watch_fd(r, r->keeper_pidfd) != 0)
        return tp_fail_errno(&r->err, "cannot watch the keeper (pid %d)", (int)pid);
    return TP_OK;
}

/* The book as it will be when the command runs; recorded before it is started. */
static tp_status announce(struct run *r)
{
    struct run_record *b = &r->book;
    bool changed = b->attempt > 0 && spec_world(&b->way.spec) != r->layout.ranks;

    b->attempt++;
    b->way = r->layout.way;
    b->open = true;
    b->keeper = b->keeper_start = 0;
    b->best_at_launch = b->best_step;
    b->resumed_at = r->choice.step;
    b->new_layout = false;
    if (changed)
        run_event(r, "rescale", json_pack("{s:i}", "ranks", r->layout.ranks));
    return run_transition(r, RUN_LAUNCH, "intent");
}

static void tell_launch(struct run *r)
{
    const struct run_config *w = &r->book.way;
    json_t *more = json_pack("{s:i,s:I,s:I}", "ranks", r->world, "resumed_at",
                             (json_int_t)r->choice.step, "epoch", (json_int_t)r->book.epoch);

    if (w->micro)
        json_object_set_new(more, "micro", json_integer(w->micro));
    if (w->recompute)
        json_object_set_new(more, "recompute", json_string(recompute_name(w->recompute)));
    run_event(r, "launch", more);
}

tp_status run_launch(struct run *r)
{
    struct job_words w;
    pid_t pid;
    tp_status st;

    time_account_switch(r->ledger, TIME_STARTING, run_now());
    arena_free(&r->arena);
    memset(&r->fault, 0, sizeof r->fault);
    r->stays_for = (struct run_config){ 0 };
    r->drain_until = 0;
    r->drain_killed = false;
    r->lived = false;
    r->stuck_since = 0;
    TP_TRY(announce(r));
    if (r->job->checkpoints == JOB_CKPT_TP)
        TP_TRY(ckpt_claim(&r->book.epoch, r->job->ckpt, &r->err));
    name_files(r);
    TP_TRY(file_remove_tree(r->slots, &r->err));
    TP_TRY(file_make_dirs(r->slots, &r->err));
    if (r->beats >= 0)
        TP_TRY(relay_tell_port(r->slots, r->beats_port, &r->err));
    unlink(r->exit_path);
    TP_TRY(place_ranks(r));
    TP_TRY(new_monitor(r));
    TP_TRY(keeper_command(r, &w));
    r->launched_at = r->saved_at = run_now();
    pid = run_spawn(r, w.word, r->log, true);
    if (pid < 0)
        TP_TRY(tp_fail_errno(&r->err, "cannot fork"));
    TP_TRY(watch_keeper(r, pid));
    r->book.keeper = pid;
    r->book.keeper_start = process_start(pid);
    tell_launch(r);
    st = run_transition(r, RUN_INIT, "started");
done:
    return st;
}

/* Nothing of the run may be alive when a new attempt begins. On other nodes (tp-run may have been
 * started anew on another host than before) it is for the relays to see to it. */
static void end_strays(struct run *r, const char *id)
{
    const struct timespec wait = { .tv_nsec = 20 * 1000 * 1000 };
    char stop[PATH_MAX];
    struct tp_err ignored;

    snprintf(stop, sizeof stop, "%.4000s/stop", r->slots);
    if (r->slurm && file_is_dir(r->slots) && !file_exists(stop))
        file_write_new(stop, "", 0, &ignored);
    for (int i = 0; i < 250 && process_sweep(PROCESS_SUPERVISOR_ENV, id, SIGKILL) +
                                       process_sweep(PROCESS_ID_ENV, id, SIGKILL) >
                                   0;
         i++)
        nanosleep(&wait, NULL);
}

tp_status run_take_over(struct run *r)
{
    char id[64];
    pid_t keeper;
    tp_status st;

    run_attempt_id(r, id);
    keeper = process_find(PROCESS_SUPERVISOR_ENV, id);
    name_files(r);
    if ((st = place_ranks(r)) || (st = new_monitor(r)))
        return st;
    r->launched_at = r->saved_at = run_now();
    r->layout.way = r->book.way;
    r->choice.step = r->book.resumed_at;
    if (r->choice.step >= 0)
        checkpoint_find(&r->choice, r->job->ckpt, &r->err);
    run_event(
        r, "takeover",
        json_pack("{s:b,s:s}", "running", keeper > 0, "state", run_state_name(r->book.state)));
    if (keeper <= 0) {
        end_strays(r, id);
        return run_keeper_gone(r);
    }
    if (r->beats >= 0 && file_is_dir(r->slots) && relay_tell_port(r->slots, r->beats_port, &r->err))
        return r->err.status;
    if ((st = watch_keeper(r, keeper)))
        return st;
    time_account_switch(r->ledger, TIME_STARTING, run_now());
    r->book.keeper = keeper;
    r->book.keeper_start = process_start(keeper);
    if (r->book.state == RUN_DRAIN || r->book.stop || r->book.new_layout) {
        bool softly = r->book.stop || r->book.new_layout;

        r->drain_until = run_now() + (softly ? r->job->grace : 0);
        if (softly)
            kill(keeper, SIGUSR1);
        return run_transition(r, RUN_DRAIN, "taken over");
    }
    return run_transition(r, RUN_INIT, "taken over");
}
