/* orchestrator/run.c - see orchestrator/run.h and run_inside.h: the loop, beginning and end. */
#include "orchestrator/run.h"

#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/signalfd.h>
#include <sys/timerfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "orchestrator/backend/slurm/slurm_options.h"
#include "orchestrator/process/relay.h"
#include "orchestrator/run_slurm.h"
#include "orchestrator/run_state.h"

enum { TICK_MS = 100, BATCH = 32, WEBHOOK_PATIENCE_S = 3 };

int run_watch_fd(struct run *r, int fd)
{
    struct epoll_event e = { .events = EPOLLIN, .data.fd = fd };

    return fd < 0 ? -1 : epoll_ctl(r->epoll, EPOLL_CTL_ADD, fd, &e);
}

/* In a batch job that goes on in another one, or under its number: a SIGTERM of Slurm's, and no
 * wish of somebody's that the job stop. */
static bool slurm_sent_it(struct run *r)
{
    return r->slurm && r->slurm->inside && !r->slurm->waits &&
           r->slurm->inside == r->book.slurm_job && run_slurm_fate(r) == SLURM_TAKEN;
}

static tp_status on_signal(struct run *r)
{
    struct signalfd_siginfo info;
    tp_status st = TP_OK;
    int status;
    pid_t pid;

    while (st == TP_OK && read(r->signals, &info, sizeof info) == sizeof info) {
        if (info.ssi_signo == SIGCHLD)
            continue;
        if (info.ssi_signo == SIGTERM && slurm_sent_it(r)) {
            if (r->book.open)
                st = run_drain_softly(r, r->slurm->why);
            continue;
        }
        if (r->book.stop && r->drain_until > 0) { /* asked twice: now */
            r->drain_until = run_now();
            continue;
        }
        r->book.stop = true;
        run_helper_stop(r);
        if (r->book.open)
            st = run_drain_softly(r, "asked to stop by a signal");
    }
    while (st == TP_OK && (pid = waitpid(-1, &status, WNOHANG)) > 0) {
        bool slurms;

        st = run_slurm_reaped(r, pid, status, &slurms);
        if (!slurms && pid == r->helper.pid) {
            r->helper.pid = 0;
            st = run_helper_done(r,
                                 WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
        }
    }
    return st;
}

static tp_status tick(struct run *r)
{
    uint64_t times;
    tp_status st = TP_OK;

    if (read(r->timer, &times, sizeof times) < 0)
        return TP_OK;
    webhook_tick(r->webhook);
    if (r->page)
        status_page_serve(r->page);
    if (r->slurm)
        st = run_slurm_tick(r);
    if (st || r->over)
        return st;
    switch (r->book.state) {
    case RUN_PLAN:
        st = run_plan_tick(r);
        break;
    case RUN_INIT:
    case RUN_TRAIN:
    case RUN_SAVE:
        st = run_watch_tick(r);
        break;
    case RUN_DRAIN:
        st = run_drain_tick(r);
        break;
    default:
        break;
    }
    if (!r->over)
        run_live_line(r);
    return st;
}

static tp_status dispatch(struct run *r, int fd)
{
    if (fd == r->timer)
        return tick(r);
    if (fd == r->signals)
        return on_signal(r);
    if (fd == control_fd(r->control)) {
        r->asked = TP_OK;
        control_serve(r->control, run_answer, r);
        return r->asked;
    }
    if (r->page && fd == status_page_fd(r->page)) {
        status_page_serve(r->page);
        return TP_OK;
    }
    if (fd == r->keeper_pidfd)
        return run_keeper_gone(r);
    for (int i = 0; i < r->world; i++)
        if (r->ranks[i].pidfd == fd)
            return run_rank_gone(r, i);
    return TP_OK;
}

static tp_status loop(struct run *r)
{
    tp_status st = TP_OK;

    while (!r->over && st == TP_OK) {
        struct epoll_event e[BATCH];
        int n = epoll_wait(r->epoll, e, BATCH, -1);

        for (int i = 0; i < n && !r->over && st == TP_OK; i++) {
            r->err = (struct tp_err){ 0 };
            st = dispatch(r, e[i].data.fd);
        }
    }
    return st;
}

/* ---- beginning and end ---- */

static tp_status open_fds(struct run *r)
{
    const struct itimerspec every = { .it_value = { 0, TICK_MS * 1000000L },
                                      .it_interval = { 0, TICK_MS * 1000000L } };
    sigset_t set, pipe;

    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE); /* who read our messages may go; the job stays watched */
    sigaddset(&pipe, SIGXFSZ); /* and a limit on file sizes is an error like a full disk */
    sigprocmask(SIG_BLOCK, &pipe, NULL);
    sigemptyset(&set);
    sigaddset(&set, SIGCHLD);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigaddset(&set, SIGUSR1);
    sigaddset(&set, SIGHUP);
    sigprocmask(SIG_BLOCK, &set, NULL);
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    r->epoll = epoll_create1(EPOLL_CLOEXEC);
    r->timer = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
    r->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (r->epoll < 0 || r->timer < 0 || r->signals < 0 ||
        timerfd_settime(r->timer, 0, &every, NULL) != 0 || run_watch_fd(r, r->timer) != 0 ||
        run_watch_fd(r, r->signals) != 0 || run_watch_fd(r, control_fd(r->control)) != 0)
        return tp_fail_errno(&r->err, "cannot make an event loop");
    if (r->page)
        run_watch_fd(r, status_page_fd(r->page));
    return TP_OK;
}

static json_t *give_status(void *ctx)
{
    return run_status(ctx);
}

static json_t *give_timeline(void *ctx)
{
    return run_timeline(ctx);
}

static json_t *give_events(void *ctx)
{
    return json_copy((json_t *)(uintptr_t)events_list(((struct run *)ctx)->events));
}

static tp_status open_all(struct run *r, struct job *job, json_t **last)
{
    const struct status_page_source source = { give_status, give_timeline, give_events, r };
    const struct job *j = r->job;
    tp_status st;

    TP_TRY(journal_open(&r->journal, last, j->state, &r->err));
    if (j->backend == &SLURM_JOB_BACKEND)
        TP_TRY(run_slurm_open(r, job, *last));
    if (*last)
        st = run_record_read(&r->book, json_object_get(*last, "book"), j, run_now(), &r->err);
    else
        st = run_record_init(&r->book, j, &r->err);
    TP_TRY(st);
    if (r->slurm)
        run_slurm_begin(r);
    TP_TRY(events_open(&r->events, j->state, &r->err));
    TP_TRY(time_account_open(&r->ledger, j->state, r->book.spent, run_now(), &r->err));
    TP_TRY(control_open(&r->control, j->state, &r->err));
    TP_TRY(webhook_open(&r->webhook, j->webhook, &r->err));
    if (j->page.listen && j->page.listen[0])
        TP_TRY(status_page_open(&r->page, j->page.listen, j->page.token_file, &source, &r->err));
    st = open_fds(r);
done:
    return st;
}

static void close_all(struct run *r)
{
    run_forget_attempt(r);
    run_slurm_close(r); /* before control: `stop --wait` waits for that too */
    status_page_close(r->page);
    webhook_close(r->webhook, WEBHOOK_PATIENCE_S);
    control_close(r->control);
    if (r->ledger)
        time_account_close(r->ledger, run_now());
    events_close(r->events);
    journal_close(r->journal);
    run_record_free(&r->book);
    arena_free(&r->arena);
    arena_free(&r->kept);
    for (int fd = 0, fds[] = { r->epoll, r->timer, r->signals, r->beats }; fd < 4; fd++)
        if (fds[fd] >= 0)
            close(fds[fd]);
}

/* The job file asks for more steps than those that were done. */
static bool wants_more_steps(const struct run *r)
{
    return r->book.steps > 0 && r->job->steps > r->book.steps;
}

static tp_status stay_done(struct run *r)
{
    char text[PATH_MAX + 200];

    snprintf(
        text, sizeof text,
        "%s: is done already, nothing to do. A larger `steps` goes on from here; to run it all "
        "again move %s and its checkpoints away",
        r->job->name, r->job->state);
    if (r->voice->note)
        r->voice->note(r->voice->ctx, text);
    r->over = true;
    r->result = TP_OK;
    return TP_OK;
}

/* Somebody wants it to go on after its end: budgets begin anew. After a failure he has had a look
 * at the nodes too: what they were blamed for may have been the job's (a full disk, say). */
static void forgive(struct run_record *b)
{
    b->stop = false;
    if (!b->chained) {
        b->fails_in_row = b->n_restarts = b->idle_links = 0;
        b->nan_step = -1;
    }
    for (int i = 0; b->state == RUN_FAILED && i < b->n_nodes; i++) {
        b->nodes[i].blame = 0;
        b->nodes[i].excluded_to = b->nodes[i].back_since = 0;
    }
    b->chained = false;
}

static tp_status begin(struct run *r, bool is_old)
{
    enum run_state was = r->book.state;

    if (is_old && was == RUN_DONE && !wants_more_steps(r))
        return stay_done(r);
    if (r->page && r->voice->note) {
        char text[256];

        snprintf(text, sizeof text, "status page: %s", status_page_url(r->page));
        r->voice->note(r->voice->ctx, text);
    }
    if (is_old && r->book.open)
        return run_take_over(r);
    if (is_old && was >= RUN_DONE)
        forgive(&r->book);
    return run_plan_begin(r);
}

tp_status run_job(struct job *job, const char *self, const struct run_reporter *voice,
                  struct tp_err *err)
{
    struct run *r = calloc(1, sizeof *r);
    json_t *last = NULL;
    tp_status st;

    if (!r)
        return tp_fail(err, TP_E_NOMEM, "no memory");
    r->job = job;
    r->self = self;
    r->voice = voice;
    r->beats = job->backend == &SLURM_JOB_BACKEND ? relay_listen(&r->beats_port) : -1;
    r->epoll = r->timer = r->signals = r->keeper_pidfd = -1;
    st = open_all(r, job, &last);
    if (st == TP_OK)
        st = begin(r, last != NULL);
    if (st == TP_OK)
        st = loop(r);
    if (st)
        *err = r->err;
    else if (r->result)
        st = tp_fail(err, r->result, "%s", r->result_text);
    json_decref(last);
    close_all(r);
    free(r);
    return st;
}
