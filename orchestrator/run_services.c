/* orchestrator/run_services.c - see run_state.h: events, time account, control socket, status page
 * and webhook of a run. */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"
#include "orchestrator/run_state.h"
#include "orchestrator/state/event_log.h"
#include "orchestrator/web/control.h"
#include "orchestrator/web/metrics.h"
#include "orchestrator/web/status_page.h"
#include "orchestrator/web/webhook.h"

static const double LINE_EVERY_S = 0.5, WEBHOOK_PATIENCE_S = 3, PAGE_AGAIN_S = 10;
static const double TEXTFILE_EVERY_S = 10, EVENTS_AGAIN_S = 1, EVENTS_PATIENCE_S = 5;

struct run_services {
    struct event_log *events;
    struct time_account *time;
    struct control *control;
    struct status_page *page; /* NULL: none */
    struct webhook *webhook;  /* NULL: none */
    double line_at;           /* when the live line was shown last */
    double page_at;       /* when to try again to open the page, 0: it is open, or there is none */
    double textfile_at;   /* when the metrics file was written last */
    bool textfile_failed; /* that was reported */
    double events_at;     /* when to write the events that wait */
    bool events_failed;   /* some wait, and that was reported */
    tp_status asked;      /* a failure of tp-run itself during a request */
};

/* ---- beginning and end ---- */

static json_t *page_status(void *ctx)
{
    return run_status(ctx);
}

static json_t *page_timeline(void *ctx)
{
    return run_timeline(ctx);
}

static json_t *page_events(void *ctx)
{
    const struct run *r = ctx;

    return json_copy((json_t *)(uintptr_t)event_log_list(r->services->events));
}

static tp_status open_page(struct run *r, struct tp_err *err)
{
    const struct status_page_source source = { page_status, page_timeline, page_events, r };

    return status_page_open(&r->services->page, r->job->page.listen, r->job->page.token_file,
                            &source, err);
}

/* Without a page a new run does not begin, so that a person can correct the job file. But ranks
 * that run, and a job that continues by itself on another node, do not depend on it. */
static tp_status first_page(struct run *r)
{
    tp_status st = open_page(r, &r->err);

    if (st == TP_OK || st == TP_E_NOMEM || !(r->record.open || r->record.continues))
        return st;
    r->services->page_at = clock_seconds() + PAGE_AGAIN_S;
    run_event(r, EVENT_PAGE_FAILED, REASON_PAGE_UNAVAILABLE, r->err.msg, NULL);
    return TP_OK;
}

static void try_page_again(struct run *r, double now)
{
    struct run_services *s = r->services;
    struct tp_err ignored;

    if (s->page_at <= 0 || now < s->page_at)
        return;
    s->page_at = open_page(r, &ignored) == TP_OK ? 0 : now + PAGE_AGAIN_S;
    if (s->page)
        run_watch_fd(r, status_page_fd(s->page));
}

/* Check that the metrics file can be written, before the job begins. */
static tp_status check_textfile(const struct run *r, struct tp_err *err)
{
    const char *path = r->job->page.textfile, *slash = path ? strrchr(path, '/') : NULL;
    char folder[PATH_MAX];

    if (!path || r->record.open || r->record.continues)
        return TP_OK;
    snprintf(folder, sizeof folder, "%.*s", slash > path ? (int)(slash - path) : 1, path);
    if (access(folder, W_OK | X_OK) != 0)
        return tp_fail(err, TP_E_USAGE, "page.textfile: cannot write into %s: %s", folder,
                       strerror(errno));
    return TP_OK;
}

static void write_textfile(struct run *r)
{
    struct run_services *s = r->services;
    json_t *status = run_status(r);
    struct tp_err err = { 0 };
    bool failed = !status || metrics_write(r->job->page.textfile, status, &err);

    s->textfile_at = clock_seconds();
    json_decref(status);
    if (failed && !s->textfile_failed)
        run_event(r, EVENT_PAGE_FAILED, REASON_PAGE_UNAVAILABLE, err.msg, NULL);
    s->textfile_failed = failed;
}

tp_status run_services_open(struct run *r)
{
    const struct job *j = r->job;
    struct run_services *s = r->services = calloc(1, sizeof *s);
    struct home home;
    tp_status st;

    if (!s)
        return tp_fail(&r->err, TP_E_NOMEM, "no memory");
    backend_home(r->backend.table, &home, r->setup->env);
    TP_TRY(event_log_open(&s->events, j->state, &r->err));
    TP_TRY(time_account_open(&s->time, j->state, r->record.spent, clock_seconds(), &r->err));
    TP_TRY(control_open(&s->control, j->state, &home, &r->err));
    TP_TRY(webhook_open(&s->webhook, j->webhook, &r->err));
    TP_TRY(check_textfile(r, &r->err));
    if (j->page.listen && j->page.listen[0])
        TP_TRY(first_page(r));
done:
    return st;
}

static void see_webhook(struct run *r)
{
    char text[400];
    int lost;

    if (webhook_failed(text, sizeof text, &lost, r->services->webhook))
        run_event(r, EVENT_WEBHOOK_FAILED, REASON_WEBHOOK_UNREACHABLE, text,
                  json_pack("{s:i}", "lost", lost));
}

/* ---- events that could not be written ---- */

static void events_failed(struct run *r, const char *why)
{
    struct run_services *s = r->services;
    char text[TP_ERR_MAX];

    s->events_at = clock_seconds() + EVENTS_AGAIN_S;
    if (s->events_failed)
        return;
    s->events_failed = true;
    snprintf(text, sizeof text, "%.800s; events wait until they can be written", why);
    run_note(r, text);
}

static void write_waiting_events(struct run *r, double now)
{
    struct run_services *s = r->services;
    struct tp_err err = { 0 };
    int64_t lost;

    if (!s->events_failed || now < s->events_at)
        return;
    if (event_log_flush(s->events, &err)) {
        events_failed(r, err.msg);
        return;
    }
    s->events_failed = false;
    lost = event_log_take_lost(s->events);
    if (lost)
        run_event(r, EVENT_EVENTS_LOST, REASON_NONE, NULL,
                  json_pack("{s:I}", "lost", (json_int_t)lost));
}

/* The last chance to write them: the disk may be full for a moment only. */
static void close_events(struct run *r)
{
    const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };
    const double until = clock_seconds() + EVENTS_PATIENCE_S;
    struct run_services *s = r->services;
    struct tp_err err = { 0 };
    char text[TP_ERR_MAX];

    write_waiting_events(r, clock_seconds() + EVENTS_AGAIN_S);
    while (s->events_failed && clock_seconds() < until) {
        nanosleep(&pause, NULL);
        write_waiting_events(r, clock_seconds() + EVENTS_AGAIN_S);
    }
    if (s->events && event_log_flush(s->events, &err)) {
        snprintf(text, sizeof text, "%.800s; %lld events are lost: they are not in this file",
                 err.msg,
                 (long long)(event_log_waiting(s->events) + event_log_take_lost(s->events)));
        run_note(r, text);
    }
    event_log_close(s->events);
    s->events = NULL;
}

/* ---- ticks and requests ---- */

void run_services_last(struct run *r)
{
    if (r->loop.epoll >= 0 && r->job->page.textfile) /* the parts were opened */
        write_textfile(r);
}

void run_services_close(struct run *r)
{
    struct run_services *s = r->services;

    if (!s)
        return;
    status_page_close(s->page);
    s->page = NULL;
    webhook_wait(s->webhook, WEBHOOK_PATIENCE_S);
    see_webhook(r);
    webhook_close(s->webhook);
    s->webhook = NULL;
    control_close(s->control);
    if (s->time)
        time_account_close(s->time, clock_seconds());
    close_events(r);
    free(s);
    r->services = NULL;
}

void run_services_watch(struct run *r)
{
    run_watch_fd(r, control_fd(r->services->control));
    if (r->services->page)
        run_watch_fd(r, status_page_fd(r->services->page));
}

static json_t *answer(void *ctx, const json_t *request)
{
    struct run *r = ctx;

    return run_answer(r, request, &r->services->asked);
}

bool run_services_serve(struct run *r, int fd, tp_status *st)
{
    struct run_services *s = r->services;

    *st = TP_OK;
    if (fd == control_fd(s->control)) {
        s->asked = TP_OK;
        control_serve(s->control, answer, r);
        *st = s->asked;
        return true;
    }
    if (s->page && fd == status_page_fd(s->page)) {
        status_page_serve(s->page);
        return true;
    }
    return false;
}

void run_services_tick(struct run *r)
{
    const struct run_reporter *to = r->setup->reporter;
    struct run_services *s = r->services;
    double now = clock_seconds();
    char line[512];

    webhook_tick(s->webhook);
    see_webhook(r);
    control_tick(s->control);
    if (s->page)
        status_page_tick(s->page);
    write_waiting_events(r, now);
    try_page_again(r, now);
    if (r->job->page.textfile && now - s->textfile_at >= TEXTFILE_EVERY_S)
        write_textfile(r);
    if (r->end.over || !to->line || now - s->line_at < LINE_EVERY_S)
        return;
    s->line_at = now;
    time_account_touch(s->time, now);
    run_line(r, line, sizeof line);
    to->line(to->ctx, line);
}

/* ---- reporting ---- */

void run_report(struct run *r, json_t *event)
{
    const struct run_reporter *to = r->setup->reporter;
    struct run_services *s = r->services;
    struct tp_err err = { 0 };

    if (to->event)
        to->event(to->ctx, event);
    if (s->webhook && event_is_urgent(json_string_value(json_object_get(event, "event")))) {
        json_t *copy = json_copy(event);

        json_object_set_new(copy, "job", json_string(r->job->name));
        webhook_post(s->webhook, copy);
        json_decref(copy);
    }
    if (event_log_add(s->events, event, &err))
        events_failed(r, err.msg);
}

void run_note(struct run *r, const char *text)
{
    const struct run_reporter *to = r->setup->reporter;

    if (to->note)
        to->note(to->ctx, text);
}

const char *run_page_url(const struct run *r)
{
    return r->services && r->services->page ? status_page_url(r->services->page) : "";
}

bool run_has_control(const struct run *r)
{
    return r->services != NULL;
}

/* ---- time ---- */

void run_time(struct run *r, enum time_account_cause cause)
{
    time_account_switch(r->services->time, cause, clock_seconds());
}

void run_time_from(struct run *r, enum time_account_cause cause, double at)
{
    time_account_switch(r->services->time, cause, at);
}

void run_time_by_state(struct run *r)
{
    static const enum time_account_cause causes[RUN_STATES] = { [RUN_INIT] = TIME_STARTING,
                                                                [RUN_TRAIN] = TIME_TRAINING,
                                                                [RUN_SAVE] = TIME_SAVING,
                                                                [RUN_DRAIN] = TIME_STOPPING };
    enum run_state s = r->record.state;

    if (s == RUN_INIT || s == RUN_TRAIN || s == RUN_SAVE || s == RUN_DRAIN)
        run_time(r, causes[s]);
}

void run_time_fault(struct run *r, double saved, double alive)
{
    time_account_fault(r->services->time, saved, alive, TIME_PLANNING, clock_seconds());
}

void run_time_flush(struct run *r)
{
    time_account_flush(r->services->time);
}

void run_loss_point(struct run *r, int64_t step, double loss)
{
    time_account_loss(r->services->time, r->record.attempt, step, loss);
}

json_t *run_timeline(const struct run *r)
{
    return time_account_json(r->services->time, clock_seconds());
}
