/* orchestrator/run_helper.c - see run_state.h: a program that runs for PLAN or RESHARD, one at a
 * time. It dies with tp-run. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

#include "core/clock.h"
#include "orchestrator/process/process.h"
#include "orchestrator/run_state.h"

enum { PROGRESS_TEXT = 400, REST_SWEEPS = 50 };

static const double LOOK_EVERY_S = 1;

struct run_helper {
    pid_t pid; /* 0: none */
    enum run_helper_kind kind;
    double since;
    bool stuck;         /* it was killed, because it made no progress */
    double kill_at;     /* it was asked to stop and has time until then, 0: it was not */
    double progress_at; /* when it last made progress */
    char progress[PROGRESS_TEXT];
};

tp_status run_helper_open(struct run *r)
{
    r->helper = calloc(1, sizeof *r->helper);
    return r->helper ? TP_OK : tp_fail(&r->err, TP_E_NOMEM, "no memory");
}

/* Signal the helper and its group: `sh -c` and what it has started. */
static void send(const struct run_helper *h, int sig)
{
    if (kill(-h->pid, sig) != 0) /* it has not made its group yet */
        kill(h->pid, sig);
}

const char *run_helper_id(const struct run *r, char id[RUN_ID_TEXT + 1])
{
    snprintf(id, RUN_ID_TEXT + 1, "%s.", r->record.run_id);
    return id;
}

int run_helper_end_rest(const struct run *r)
{
    static const char *const marks[] = { PROCESS_HELPER_ENV, NULL };
    char id[RUN_ID_TEXT + 1];

    return process_end_all(marks, run_helper_id(r, id), REST_SWEEPS);
}

bool run_helper_runs(const struct run *r)
{
    return r->helper->pid != 0;
}

tp_status run_helper_start(struct run *r, enum run_helper_kind kind, char *const *argv,
                           const char *log)
{
    pid_t pid = run_spawn(r, argv, log, false);

    *r->helper = (struct run_helper){ .pid = pid > 0 ? pid : 0,
                                      .kind = kind,
                                      .since = clock_seconds(),
                                      .progress_at = clock_seconds() };
    return pid > 0 ? TP_OK
                   : tp_fail_errno(&r->err, "cannot start %.200s with its output in %.400s",
                                   argv[0], log);
}

/* ---- watching ---- */

/* What changes while the process works: bytes that it read and wrote (proc(5), /proc/PID/io). */
static void read_progress(char text[PROGRESS_TEXT], pid_t pid)
{
    char path[64];
    FILE *f;
    size_t n;

    snprintf(path, sizeof path, "/proc/%d/io", (int)pid);
    f = fopen(path, "re");
    n = f ? fread(text, 1, PROGRESS_TEXT - 1, f) : 0;
    text[n] = 0;
    if (f)
        fclose(f);
}

/* Kill the helper because it makes no progress. */
static void kill_stuck(struct run *r, double waited, bool stopped)
{
    static const char *const names[] = { "tp-run check (verifies the checkpoint)", "tp-reshard",
                                         "the prepare command" };
    struct run_helper *h = r->helper;
    char text[200];

    snprintf(text, sizeof text, "%s made no progress for %.1f s (pid %d%s); it is killed",
             names[h->kind], waited, (int)h->pid, stopped ? ", process stopped" : "");
    run_event(r, EVENT_HANG, REASON_HELPER_STUCK, text,
              json_pack("{s:i,s:s,s:f}", "rank", -1, "node", "", "seconds", waited));
    h->stuck = true;
    send(h, SIGKILL);
}

/* A helper that is stopped has the deadline of a training step. One that neither reads nor writes
 * has that of a save, except a prepare command, which may do anything. */
void run_helper_tick(struct run *r)
{
    struct run_helper *h = r->helper;
    double now = clock_seconds(), waited = now - h->progress_at;
    char progress[PROGRESS_TEXT], state;

    if (h->pid && h->kill_at > 0 && now >= h->kill_at)
        send(h, SIGKILL);
    if (!h->pid || h->stuck || waited < LOOK_EVERY_S)
        return;
    state = process_state(h->pid);
    read_progress(progress, h->pid);
    if (backend_is_paused(&r->backend) || strcmp(progress, h->progress) != 0) {
        memcpy(h->progress, progress, sizeof progress);
        h->progress_at = now;
    } else if (state == 'T' || state == 't') {
        if (waited > r->job->watch.floor)
            kill_stuck(r, waited, true);
    } else if (h->kind != HELPER_PREPARE && waited > r->job->watch.save) {
        kill_stuck(r, waited, false);
    }
}

/* ---- the end ---- */

/* A helper that was killed because it was stuck says nothing about the checkpoint. */
static tp_status after_stuck(struct run *r)
{
    struct attempt_fault f =
        attempt_fault(FAULT_RESHARD, REASON_HELPER_STUCK, "%s made no progress",
                      r->helper->kind == HELPER_PREPARE ? "the prepare command" : "tp-run check");

    return run_retry(r, &f, "");
}

static tp_status ended(struct run *r, int exit_code)
{
    double seconds = clock_seconds() - r->helper->since;

    if (r->record.state != RUN_PLAN && r->record.state != RUN_RESHARD)
        return TP_OK;
    if (r->record.stop)
        return run_plan_stop(r);
    if (r->helper->stuck && r->helper->kind != HELPER_CONVERT)
        return after_stuck(r);
    switch (r->helper->kind) {
    case HELPER_VERIFY:
        return run_plan_verified(r, exit_code, seconds);
    case HELPER_CONVERT:
        return run_converted(r, exit_code, seconds);
    default:
        return run_prepared(r, exit_code);
    }
}

tp_status run_helper_reaped(struct run *r, pid_t pid, int status, bool *mine)
{
    char text[100];
    int n;

    *mine = pid == r->helper->pid;
    if (!*mine)
        return TP_OK;
    r->helper->pid = 0;
    if (r->helper->kind == HELPER_PREPARE && (n = run_helper_end_rest(r))) {
        snprintf(text, sizeof text,
                 "the prepare command has left %d process%s in the background, "
                 "which %s killed",
                 n, n == 1 ? "" : "es", n == 1 ? "is" : "are");
        run_note(r, text);
    }
    return ended(r, WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

void run_helper_stop(struct run *r, bool hurry)
{
    struct run_helper *h = r->helper;

    if (h->pid <= 0)
        return;
    if (h->kill_at <= 0) {
        send(h, SIGTERM);
        h->kill_at = clock_seconds() + r->job->grace;
    } else if (hurry) {
        send(h, SIGKILL);
    }
}
