/* orchestrator/run_launch.c - see run_state.h: LAUNCH, and taking over an attempt that an earlier
 * tp-run has launched. */
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/epoch.h"
#include "core/clock.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/process/process.h"
#include "orchestrator/process/relay.h"
#include "orchestrator/process/spawn.h"
#include "orchestrator/run_state.h"

enum { STRAY_SWEEPS = 250 };

/* ---- starting a program ---- */

/* tp-run's environment, with tp-run's own folder first in PATH. */
static void make_env(struct environment *env, const struct run *r)
{
    const char *self = r->setup->self, *slash = strrchr(self, '/');
    char folder[PATH_MAX];

    environment_copy(env, environment_list(r->setup->env));
    if (!environment_get(env, "PATH"))
        environment_set(env, "PATH", "/usr/bin:/bin");
    snprintf(folder, sizeof folder, "%.*s:", slash ? (int)(slash - self) : 1, slash ? self : ".");
    environment_prepend(env, "PATH", folder);
    if (!environment_get(env, "OMPI_MCA_mpi_yield_when_idle")) /* ranks may share processors */
        environment_set(env, "OMPI_MCA_mpi_yield_when_idle", "1");
}

/* Add the variables for the supervisor and the ranks. */
static void add_attempt(struct environment *env, const struct run *r)
{
    char epoch[32], sig[16];

    environment_set(env, PROCESS_SUPERVISOR_ENV, r->attempt.id);
    environment_set(env, HEARTBEAT_DIR_ENV, r->attempt.heartbeats);
    snprintf(epoch, sizeof epoch, "%lld", (long long)r->record.epoch);
    if (r->record.epoch > 0)
        environment_set(env, "TP_EPOCH", epoch);
    snprintf(sig, sizeof sig, "%d", job_signal(r->job));
    environment_set(env, RELAY_SIGNAL_ENV, sig);
    run_gpus_select(r, env);
}

pid_t run_spawn(struct run *r, char *const *argv, const char *log, bool supervisor)
{
    struct environment env;
    struct spawn s = { .argv = argv,
                       .env = &env,
                       .dir = r->job->dir,
                       .report = -1,
                       .own_session = supervisor,
                       .own_group = !supervisor,
                       .dies_with_parent = !supervisor };
    char id[RUN_ID_TEXT + 1];
    sigset_t forwarded;
    pid_t pid = -1;

    make_env(&env, r);
    if (supervisor) {
        supervisor_signals(&forwarded);
        s.mask = &forwarded;
        add_attempt(&env, r);
    } else {
        environment_set(&env, PROCESS_HELPER_ENV, run_helper_id(r, id));
    }
    s.out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC, 0644);
    if (s.out >= 0) {
        pid = spawn_start(&s);
        close(s.out);
    }
    environment_free(&env);
    return pid;
}

/* ---- launching ---- */

/* Make the words: tp-run supervise ID FILE, the words that start the ranks, the job's command. */
static tp_status supervisor_words(struct run *r, struct job_words *out, struct arena *arena)
{
    struct attempt *a = &r->attempt;
    struct backend_launch launch = { .world = a->world,
                                     .heartbeats = a->heartbeats,
                                     .arena = arena };
    struct node **nodes = arena_array(arena, (size_t)a->world, sizeof(struct node *));
    struct job_words start, command;
    tp_status st;

    if (!nodes)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for the command");
    for (int i = 0; i < a->world; i++)
        nodes[i] = a->rank[i].node;
    launch.node = nodes;
    if ((st = backend_command(&r->backend, &launch, &start)))
        return st;
    st = job_command(&command, r->job, &r->record.config, r->record.attempt,
                     run_selected_checkpoint(r)->step >= 0, arena, &r->err);
    if (st)
        return st;
    out->n = 0;
    out->word = arena_array(arena, (size_t)(start.n + command.n) + 5, sizeof *out->word);
    if (!out->word)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory for the command");
    out->word[out->n++] = (char *)(uintptr_t)r->setup->self;
    out->word[out->n++] = "supervise";
    out->word[out->n++] = a->id;
    out->word[out->n++] = a->exit_path;
    for (int i = 0; i < start.n; i++)
        out->word[out->n++] = start.word[i];
    for (int i = 0; i < command.n; i++)
        out->word[out->n++] = command.word[i];
    out->word[out->n] = NULL;
    return TP_OK;
}

static void name_attempt(struct run *r)
{
    attempt_name(&r->attempt, r->job->state, r->record.run_id, r->record.attempt);
}

/* The path for the record: without the state folder, whose name may not be UTF-8 as JSON has to be.
 */
static const char *recorded_path(const struct run *r, const char *path)
{
    const char *state = r->job->state;
    size_t n = strlen(state);

    return strncmp(path, state, n) == 0 && path[n] == '/' ? path + n + 1 : path;
}

/* Record the attempt as it will be when the command runs, before it is started. */
static tp_status announce(struct run *r)
{
    const struct plan_candidate *layout = run_selected_layout(r);
    struct run_record *b = &r->record;
    bool changed = b->attempt > 0 && spec_world(&b->config.spec) != layout->ranks;

    b->attempt++;
    name_attempt(r);
    if (attempt_choose_heartbeats(&r->attempt, r->job->state, b->attempt,
                                  r->backend.table->has_relays, &r->err))
        return r->err.status;
    snprintf(b->heartbeats, sizeof b->heartbeats, "%s", recorded_path(r, r->attempt.heartbeats));
    b->heartbeats_dev = b->heartbeats_ino = 0;
    b->config = layout->config;
    b->open = true;
    b->supervisor = b->supervisor_start = 0;
    b->best_at_launch = b->best_step;
    b->resumed_at = run_selected_checkpoint(r)->step;
    b->relaunch = false;
    if (changed)
        run_event(r, EVENT_RESCALE, REASON_NONE, NULL, json_pack("{s:i}", "ranks", layout->ranks));
    return run_transition(r, RUN_LAUNCH, "intent");
}

static void report_launch(struct run *r)
{
    const struct run_config *c = &r->record.config;
    json_t *more =
        json_pack("{s:i,s:I,s:I}", "ranks", r->attempt.world, "resumed_at",
                  (json_int_t)r->record.resumed_at, "epoch", (json_int_t)r->record.epoch);

    if (r->job->checkpoints != JOB_CKPT_TP) /* the command knows where it begins */
        json_object_set_new(more, "checkpoints", json_string("none"));
    if (c->micro)
        json_object_set_new(more, "micro", json_integer(c->micro));
    if (c->recompute)
        json_object_set_new(more, "recompute", json_string(recompute_name(c->recompute)));
    run_event(r, EVENT_LAUNCH, REASON_NONE, NULL, more);
}

/* Wake the loop when the supervisor ends, and record which process it is. */
static tp_status watch_supervisor(struct run *r, pid_t pid)
{
    struct supervisor *s = &r->attempt.supervisor;

    if (supervisor_watch(s, pid, &r->err))
        return r->err.status;
    if (!run_watch_fd(r, s->pidfd))
        return tp_fail_errno(&r->err, "cannot watch the supervisor (pid %d)", (int)pid);
    r->record.supervisor = pid;
    r->record.supervisor_start = process_start(pid);
    run_root_set_child(r);
    return TP_OK;
}

static tp_status start(struct run *r)
{
    struct arena arena = { 0 };
    struct job_words words;
    pid_t pid = -1;
    tp_status st = supervisor_words(r, &words, &arena);

    attempt_set_launched(&r->attempt, clock_seconds());
    if (st == TP_OK)
        pid = run_spawn(r, words.word, r->attempt.log, true);
    if (st == TP_OK && pid < 0)
        st = tp_fail_errno(&r->err, "cannot start the supervisor");
    arena_free(&arena);
    return st ? st : watch_supervisor(r, pid);
}

static tp_status place_ranks(struct run *r)
{
    return attempt_place(&r->attempt, spec_world(&r->record.config.spec), &r->nodes,
                         clock_seconds(), &r->err);
}

/* The journal has their name already, and gets their identity with the next record. */
static tp_status make_heartbeats(struct run *r)
{
    struct private_dir_id id;
    tp_status st = attempt_make_heartbeats(&r->attempt, &r->err);

    id = private_dir_id(r->attempt.heartbeats_fd);
    r->record.heartbeats_dev = id.dev;
    r->record.heartbeats_ino = id.ino;
    return st;
}

tp_status run_launch(struct run *r)
{
    tp_status st;

    run_time(r, TIME_STARTING);
    run_rescale_reset(r);
    run_drain_reset(r);
    TP_TRY(run_root_claim(r, true));
    if (run_root_is_in_store(r)) { /* before there is an attempt, because the store may fail */
        st = ckpt_claim(&r->record.epoch, r->job->ckpt, &(struct root_lock_wait){ 0 }, &r->err);
        if (st == TP_E_IO)
            return run_root_failed(r, r->err.msg);
        TP_TRY(st);
    }
    TP_TRY(announce(r));
    if (run_root_is_folder(r))
        TP_TRY(ckpt_claim(&r->record.epoch, r->job->ckpt, &(struct root_lock_wait){ 0 }, &r->err));
    TP_TRY(make_heartbeats(r));
    unlink(r->attempt.exit_path);
    TP_TRY(place_ranks(r));
    TP_TRY(run_relays_begin(r));
    TP_TRY(run_watch_begin(r));
    TP_TRY(start(r));
    report_launch(r);
    st = run_transition(r, RUN_INIT, "started");
done:
    return st;
}

/* ---- taking over ---- */

static void find_heartbeats(struct run *r, struct tp_err *err)
{
    const struct private_dir_id id = { r->record.heartbeats_dev, r->record.heartbeats_ino };
    const char *recorded = r->record.heartbeats;
    char path[PATH_MAX];

    if (recorded[0] == '/' || !recorded[0])
        snprintf(path, sizeof path, "%s", recorded);
    else
        snprintf(path, sizeof path, "%.3900s/%.150s", r->job->state, recorded);
    attempt_find_heartbeats(&r->attempt, path, &id, err);
}

void run_forget_last_attempt(struct run *r)
{
    struct tp_err ignored;

    if (r->record.open || !r->record.heartbeats[0])
        return;
    find_heartbeats(r, &ignored);
    attempt_forget(&r->attempt, true);
}

/* Kill all processes of the attempt before a new one begins. On other hosts the relays do it, also
 * if tp-run was started again on another host. */
static void end_strays(struct run *r)
{
    static const char *const marks[] = { PROCESS_SUPERVISOR_ENV, PROCESS_ID_ENV, NULL };

    run_relays_stop(r);
    process_end_all(marks, r->attempt.id, STRAY_SWEEPS);
}

tp_status run_take_over(struct run *r, const json_t *placement)
{
    struct tp_err ignored;
    pid_t pid;
    tp_status st;

    name_attempt(r);
    find_heartbeats(r, &ignored);
    pid = process_find(PROCESS_SUPERVISOR_ENV, r->attempt.id);
    if ((st = place_ranks(r)))
        return st;
    attempt_restore_placement(&r->attempt, placement, &r->nodes);
    if ((st = run_watch_begin(r)))
        return st;
    attempt_set_launched(&r->attempt, clock_seconds());
    run_plan_restore(r);
    run_event(r, EVENT_TAKEOVER, REASON_NONE, NULL,
              json_pack("{s:b,s:s}", "running", pid > 0, "state", run_state_name(r->record.state)));
    if (pid <= 0) {
        end_strays(r);
        run_drain_recall(r);
        return run_supervisor_ended(r);
    }
    if ((st = run_relays_begin(r)) || (st = watch_supervisor(r, pid)))
        return st;
    run_time(r, TIME_STARTING);
    if (r->record.state == RUN_DRAIN || r->record.stop || r->record.relaunch)
        return run_drain_resume(r);
    return run_transition(r, RUN_INIT, "taken over");
}
