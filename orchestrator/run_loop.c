/* orchestrator/run_loop.c - see orchestrator/run.h and run_state.h: the event loop, beginning and
 * end. */
#include "orchestrator/run.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/stop.h"
#include "core/text.h"
#include "orchestrator/job/job_command.h"
#include "orchestrator/run_state.h"
#include "orchestrator/state/state_owner.h"

enum { TICK_MS = 100 };

bool run_watch_fd(struct run *r, int fd)
{
    struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };

    return fd >= 0 && epoll_ctl(r->loop.epoll, EPOLL_CTL_ADD, fd, &e) == 0;
}

/* ---- the loop ---- */

static tp_status stop_by_signal(struct run *r, int sig)
{
    struct backend_cause cause;
    char text[64];

    if (sig == SIGTERM && backend_explains_sigterm(&r->backend, &cause))
        return r->record.open ? run_drain_softly(r, cause.reason, cause.message) : TP_OK;
    /* A terminal that closes can send SIGHUP twice: its shell does, and the kernel does. */
    if (r->record.stop && (sig == SIGHUP || run_drain_hurry(r)))
        return TP_OK;
    if (!r->record.stop)
        r->loop.stopped_by = sig;
    r->record.stop = true;
    run_helper_stop(r, true);
    if (!r->record.open)
        return TP_OK;
    snprintf(text, sizeof text, "asked to stop by SIG%s", sigabbrev_np(sig));
    return run_drain_softly(r, event_reason_name(REASON_SIGNAL), text);
}

static tp_status reap(struct run *r)
{
    tp_status st = TP_OK;
    int status;
    pid_t pid;

    while (st == TP_OK && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
        bool mine;

        st = backend_reaped(&r->backend, pid, status, &mine);
        if (!mine && st == TP_OK)
            st = run_helper_reaped(r, pid, status, &mine);
    }
    return st;
}

static tp_status on_signal(struct run *r)
{
    struct signalfd_siginfo info;
    tp_status st = TP_OK;

    while (st == TP_OK && read(r->loop.signals, &info, sizeof info) == sizeof info)
        if (info.ssi_signo != SIGCHLD)
            st = stop_by_signal(r, (int)info.ssi_signo);
    return st ? st : reap(r);
}

static tp_status tick_state(struct run *r)
{
    switch (r->record.state) {
    case RUN_PLAN:
        return run_plan_tick(r);
    case RUN_RESHARD:
        return run_convert_tick(r);
    case RUN_INIT:
    case RUN_TRAIN:
    case RUN_SAVE:
        return run_watch_tick(r);
    case RUN_DRAIN:
        return run_drain_tick(r);
    default:
        return TP_OK;
    }
}

static tp_status tick(struct run *r)
{
    uint64_t times;
    tp_status st;

    if (read(r->loop.timer, &times, sizeof times) < 0)
        return TP_OK;
    st = backend_tick(&r->backend);
    if (st == TP_OK && !r->end.over)
        st = tick_state(r);
    run_helper_tick(r);
    run_root_tick(r);
    run_services_tick(r);
    return st;
}

static tp_status dispatch(struct run *r, int fd)
{
    tp_status st;
    int rank;

    if (fd == r->loop.timer)
        return tick(r);
    if (fd == r->loop.signals)
        return on_signal(r);
    if (run_services_serve(r, fd, &st))
        return st;
    if (fd == r->attempt.supervisor.pidfd)
        return run_supervisor_ended(r);
    rank = attempt_rank_of(&r->attempt, fd);
    return rank >= 0 ? run_rank_ended(r, rank) : TP_OK;
}

static tp_status loop(struct run *r)
{
    tp_status st = TP_OK;

    while (!r->end.over && st == TP_OK) {
        struct epoll_event e;

        /* One event at a time: what it causes may close the descriptors of others, and a new
         * supervisor gets one of their numbers. */
        if (epoll_wait(r->loop.epoll, &e, 1, -1) != 1)
            continue;
        r->err = (struct tp_err){ 0 };
        st = dispatch(r, e.data.fd);
    }
    return st;
}

/* ---- beginning ---- */

static void block_signals(sigset_t *handled)
{
    static const int signals[] = { SIGCHLD, SIGINT, SIGTERM, SIGUSR1, SIGHUP };
    sigset_t ignored;

    sigemptyset(&ignored);
    sigaddset(&ignored, SIGPIPE); /* a reader of our messages may end, but tp-run must continue */
    sigaddset(&ignored, SIGXFSZ); /* so that a limit on file sizes is an error like a full disk */
    sigprocmask(SIG_BLOCK, &ignored, NULL);
    sigemptyset(handled);
    for (size_t i = 0; i < sizeof signals / sizeof signals[0]; i++)
        if (signals[i] != SIGHUP || !stop_is_ignored(SIGHUP)) /* nohup */
            sigaddset(handled, signals[i]);
    sigprocmask(SIG_BLOCK, handled, NULL);
}

static tp_status open_loop(struct run *r)
{
    const struct itimerspec every = { .it_value = { 0, TICK_MS * 1000000L },
                                      .it_interval = { 0, TICK_MS * 1000000L } };
    struct run_loop *l = &r->loop;
    sigset_t handled;

    block_signals(&handled);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    l->epoll = epoll_create1(EPOLL_CLOEXEC);
    l->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    l->signals = signalfd(-1, &handled, SFD_CLOEXEC | SFD_NONBLOCK);
    if (l->epoll < 0 || l->timer < 0 || l->signals < 0 ||
        timerfd_settime(l->timer, 0, &every, NULL) != 0 || !run_watch_fd(r, l->timer) ||
        !run_watch_fd(r, l->signals))
        return tp_fail_errno(&r->err, "cannot make an event loop");
    run_services_watch(r);
    return TP_OK;
}

/* Whether a person has started the job again after its end. */
static bool is_fresh(const struct run *r)
{
    return run_state_is_final(r->record.state) && !r->record.continues;
}

static tp_status open_record(struct run *r, const json_t *last)
{
    const json_t *run = last ? journal_run_record(last) : NULL;
    double now = clock_seconds();
    tp_status st;

    TP_TRY(backend_open(&r->backend, r->setup->backend, &r->host, run));
    if (run)
        TP_TRY(run_record_read(&r->record, run, r->job->state, now, &r->err));
    else
        TP_TRY(run_record_init(&r->record, &r->err));
    node_list_read(&r->nodes, json_object_get(run, "nodes"), now, r->job->restart.exclude_for);
    backend_begin(&r->backend, is_fresh(r));
done:
    return st;
}

static tp_status open_parts(struct run *r)
{
    tp_status (*const parts[])(struct run *) = {
        run_services_open, run_root_open,   run_plan_open,    run_convert_open, run_helper_open,
        run_watch_open,    run_relays_open, run_rescale_open, run_drain_open
    };
    tp_status st = TP_OK;

    for (size_t i = 0; st == TP_OK && i < sizeof parts / sizeof parts[0]; i++)
        st = parts[i](r);
    return st ? st : open_loop(r);
}

/* Whether the job file asks for more steps than were done. When it did not say how many, those that
 * the ranks have reported count. */
static bool wants_more_steps(const struct run *r)
{
    const struct run_record *b = &r->record;
    const int64_t done = b->done_steps > 0 ? b->done_steps : b->best_step;

    return done > 0 && r->job->steps > done;
}

/* A person has started a job that is done. Of a program that does not report its steps, only its
 * exit code is known. */
static tp_status stay_done(struct run *r)
{
    const bool has_steps = r->job->steps > 0;
    char text[PATH_MAX + 300];

    snprintf(text, sizeof text,
             "%s: %s. To continue, ask for more (%s); to run it all again, move %s and its "
             "checkpoints away",
             r->job->name,
             has_steps ? "all steps are done already"
                       : "the command has ended with exit code 0, so the job is done already",
             has_steps ? "`steps`, or --steps in the command"
                       : "`steps` in the job file, if the command reports its steps",
             r->job->state);
    run_note(r, text);
    r->end = (struct run_end){ .over = true, .result = TP_OK };
    return TP_OK;
}

/* A person has started the job again, so its budgets begin again. After a failure the nodes' faults
 * are forgotten too, because the person has probably fixed the cause (which may not have been the
 * nodes: a full disk, for example). */
static void forgive(struct run *r)
{
    struct run_record *b = &r->record;

    b->stop = false;
    b->reason[0] = b->message[0] = 0; /* how it ended the last time */
    if (!b->continues) {
        b->fails_in_row = b->n_restarts = 0;
        b->bad_loss_step = -1;
    }
    if (b->state == RUN_FAILED) {
        node_list_forgive(&r->nodes);
        b->findings.gpus = (struct job_findings_gpus){ 0 }; /* perhaps there are other GPUs now */
    }
    node_list_expect_gpus(&r->nodes);
    b->continues = false;
}

static void warn(struct run *r)
{
    char text[PATH_MAX + 300];

    if (!job_command_never_resumes(r->job))
        return;
    snprintf(
        text, sizeof text,
        "warning: command: %.200s starts tp-train, so tp-run adds no options to it, and without "
        "--resume each restart begins at step 0; let the command begin with tp-train, or add "
        "--layout {layout} --ckpt {ckpt} --resume",
        r->job->command.word[0]);
    run_note(r, text);
}

/* last: the journal's last record, NULL: the job is new. */
static tp_status begin(struct run *r, const json_t *last)
{
    const bool is_old = last != NULL;
    enum run_state was = r->record.state;
    char text[256];
    tp_status st;

    run_forget_last_attempt(r);
    if (is_old && r->job->prepare.n)
        run_helper_end_rest(r); /* of a tp-run that was killed */
    if (is_old && was == RUN_DONE && !wants_more_steps(r))
        return stay_done(r);
    if ((st = run_root_check(r)))
        return st;
    warn(r);
    if (run_page_url(r)[0]) {
        snprintf(text, sizeof text, "status page: %s", run_page_url(r));
        run_note(r, text);
    }
    if (is_old && r->record.open)
        return run_take_over(r, json_object_get(journal_run_record(last), "placement"));
    if (is_old && run_state_is_final(was))
        forgive(r);
    return run_plan_begin(r);
}

/* ---- the end ---- */

static void close_all(struct run *r)
{
    const int fds[] = { r->loop.epoll, r->loop.timer, r->loop.signals };

    run_services_last(r);
    run_watch_close(r);
    attempt_forget(&r->attempt, !r->record.open);
    backend_close(&r->backend, r->end.over); /* before the services, because `stop --wait` returns
                                                when the control socket is closed */
    run_root_close(r);                       /* for the same reason */
    run_services_close(r);
    run_plan_close(r);
    run_relays_close(r);
    free(r->convert);
    free(r->helper);
    free(r->rescale);
    free(r->drain);
    journal_close(r->journal);
    node_list_free(&r->nodes);
    for (size_t i = 0; i < sizeof fds / sizeof fds[0]; i++)
        if (fds[i] >= 0)
            close(fds[i]);
}

/* A job file that was renamed continues its job. */
static tp_status claim_state(struct run *r)
{
    char before[NAME_MAX + 1], text[PATH_MAX + NAME_MAX + 100];
    tp_status st = state_owner_claim(before, r->job, &r->err);

    if (st || !before[0])
        return st;
    snprintf(text, sizeof text, "%s continues the job of %s, which is gone; its state is in %s",
             text_base_name(r->job->path), before, r->job->state);
    run_note(r, text);
    return TP_OK;
}

/* tp-run itself cannot continue, for example because the journal cannot be written. */
static void report_own_end(struct run *r)
{
    char text[TP_ERR_MAX];

    snprintf(text, sizeof text, "%s", r->err.msg);
    run_event(r, EVENT_FAILED, REASON_TP_RUN_ENDED, text_clean(text), NULL);
}

tp_status run_job(const struct job *job, const struct run_setup *setup, struct tp_err *err)
{
    struct run *r = calloc(1, sizeof *r);
    json_t *last = NULL;
    tp_status st;

    if (!r)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    r->job = job;
    r->setup = setup;
    r->loop = (struct run_loop){ -1, -1, -1, 0 };
    attempt_init(&r->attempt);
    run_host_open(r);
    st = journal_open(&r->journal, &last, job->state, &r->err);
    if (st == TP_OK)
        st = claim_state(r);
    if (st == TP_OK)
        st = open_record(r, last);
    if (st == TP_OK)
        st = open_parts(r);
    if (st == TP_OK)
        st = begin(r, last);
    if (st == TP_OK && (st = loop(r)))
        report_own_end(r);
    if (st)
        *err = r->err;
    else if (r->end.result)
        st = tp_fail(err, r->end.result, "%s", r->end.text);
    json_decref(last);
    close_all(r);
    free(r);
    return st;
}
