/* cli/run/run_context.c - see cli/run/run_context.h. */
#include "cli/run/run_context.h"
#include "cli/print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/report.h"
#include "core/file.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"
#include "orchestrator/state/journal.h"
#include "orchestrator/state/state_owner.h"
#include "orchestrator/web/control.h"

enum { ANSWER_TRIES = 10 };

static tp_status find_self(struct run_context *c, struct tp_err *err)
{
    ssize_t n = readlink("/proc/self/exe", c->self, sizeof c->self - 1);

    c->backend = backends_of(&c->job);
    return n > 0 ? TP_OK : tp_fail_errno(err, "/proc/self/exe: cannot read");
}

static tp_status open_file(struct run_context *c, const char *path, struct tp_err *err)
{
    tp_status st;

    *c = (struct run_context){ 0 };
    environment_copy(&c->env, environ);
    if ((st = job_file_read(&c->job, path, backends_job(), &c->arena, err)))
        return st;
    return find_self(c, err);
}

tp_status run_context_open(struct run_context *c, const char *path, struct tp_err *err)
{
    tp_status st = open_file(c, path, err);

    return st ? st : state_owner_check(&c->job, err);
}

/* A job file of the lines that say where the state is, and what is beside it. A state folder given
 * in place of the file is the only thing known. */
static char *least_job(const char *path, char *text, struct arena *arena)
{
    static const char *const keys[] = { "state:", "name:", "backend:" };
    char full[PATH_MAX], *least = arena_strdup(arena, "command: 'true'\nckpt: unknown\n");

    if (file_is_dir(path))
        return realpath(path, full) && !strchr(full, '\'')
                   ? arena_printf(arena, "%sstate: '%s'\n", least, full)
                   : NULL;
    for (char *next, *line = text; least && line; line = next) {
        if ((next = strchr(line, '\n')))
            *next++ = 0;
        for (size_t i = 0; least && i < sizeof keys / sizeof keys[0]; i++)
            if (strncmp(line, keys[i], strlen(keys[i])) == 0)
                least = arena_printf(arena, "%s%s\n", least, line);
    }
    return least;
}

/* Read what is left of the job file. TP_E_NOTFOUND: it leads to no journal. */
static tp_status find_state(struct run_context *c, const char *path, struct tp_err *err)
{
    char *text = NULL, *least;
    json_t *last = NULL;
    size_t size = 0;
    tp_status st;

    if (!file_is_dir(path))
        (void)!file_read_all(&text, &size, path, JOB_FILE_MAX, &c->arena, err);
    least = least_job(path, text, &c->arena);
    st = least ? job_file_parse(&c->job, least, strlen(least), path, backends_job(), &c->arena, err)
               : tp_fail(err, TP_E_NOTFOUND, "%s: no state folder", path);
    if (st == TP_OK)
        st = journal_peek(&last, c->job.state, err);
    json_decref(last);
    return st ? tp_fail(err, TP_E_NOTFOUND, "%s: no journal", path) : TP_OK;
}

tp_status run_context_open_state(struct run_context *c, const char *path, struct tp_err *err)
{
    struct tp_err why;
    char text[TP_ERR_MAX];
    tp_status st = open_file(c, path, err);

    if (st == TP_OK)
        return state_owner_check(&c->job, err);
    if (st != TP_E_USAGE && st != TP_E_NOTFOUND && !file_is_dir(path))
        return st;
    if (find_state(c, path, &why)) {
        snprintf(text, sizeof text, "%s", err->msg);
        return tp_fail(err, st, "%.700s; if its job runs, give the state folder in its place",
                       text);
    }
    if ((st = state_owner_check(&c->job, &why))) {
        *err = why;
        return st;
    }
    c->job.n_nodes = 0; /* not known: those of find_state are a default */
    if (!file_is_dir(path))
        report_note("tp-run", "warning: %.500s; using the state folder %.400s", err->msg,
                    c->job.state);
    return find_self(c, err);
}

void run_context_close(struct run_context *c)
{
    environment_free(&c->env);
    arena_free(&c->arena);
}

struct backend_call run_context_call(const struct run_context *c)
{
    return (struct backend_call){ .job = &c->job, .self = c->self, .env = &c->env };
}

/* Run `tp-run ask` on the other host. The last line that it prints is the answer. */
static tp_status ask_there(json_t **answer, struct run_context *c, const struct home *home,
                           const json_t *request, struct tp_err *err)
{
    const struct backend_call call = run_context_call(c);
    char *text = json_dumps(request, JSON_COMPACT), *said = NULL;
    char *argv[] = { c->self, "ask", (char *)(uintptr_t)c->job.state, text, NULL };
    const char *newline;
    tp_status st = text ? c->backend->run_at(&said, home, argv, &call, &c->arena, err)
                        : tp_fail(err, TP_E_NOMEM, "no memory for a request");

    free(text);
    if (st)
        return st;
    newline = strrchr(said, '\n');
    *answer = json_loads(newline ? newline + 1 : said, 0, NULL);
    return *answer ? TP_OK : tp_fail(err, TP_E_IO, "%s: no answer: %.200s", home->host, said);
}

static tp_status ask(json_t **answer, struct run_context *c, const json_t *request,
                     struct tp_err *err)
{
    struct home home;
    bool elsewhere = home_is_elsewhere(&home, c->job.state);
    tp_status st;

    if (elsewhere && c->backend->run_at && ask_there(answer, c, &home, request, err) == TP_OK)
        return TP_OK;
    st = control_ask(answer, c->job.state, request, err);
    if (st == TP_E_NOTFOUND && elsewhere && !home.job)
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: no tp-run listens on this host; it was started on host %s", c->job.path,
                     home.host);
    else if (st == TP_E_NOTFOUND && run_leaves_ranks(&c->job))
        st = tp_fail(err, TP_E_NOTFOUND,
                     "%s: no tp-run is running this job, but its ranks run on; tp-run with the job "
                     "file takes them over",
                     c->job.state);
    return st;
}

tp_status run_context_ask(json_t **answer, struct run_context *c, json_t *request,
                          struct tp_err *err)
{
    tp_status st;

    *answer = NULL;
    st = ask(answer, c, request, err);
    if (st == TP_OK && !json_is_true(json_object_get(*answer, "ok"))) {
        const char *why = json_string_value(json_object_get(*answer, "error"));
        bool wrong = json_integer_value(json_object_get(*answer, "exit")) == 2;

        st = tp_fail(err, wrong ? TP_E_USAGE : TP_E_IO, "%s", why ? why : "refused");
        json_decref(*answer);
        *answer = NULL;
    }
    json_decref(request);
    return st;
}

tp_status run_context_ask_once(json_t **answer, const char *path, json_t *request,
                               struct tp_err *err)
{
    struct run_context c;
    tp_status st = run_context_open(&c, path, err);

    *answer = NULL;
    if (st == TP_OK)
        st = run_context_ask(answer, &c, request, err);
    else
        json_decref(request);
    run_context_close(&c);
    return st;
}

tp_status run_context_wait(struct run_context *c, bool (*done)(void *ctx, const json_t *status),
                           void *ctx, struct tp_err *err)
{
    const struct timespec pause = { .tv_nsec = 100 * 1000 * 1000 };

    for (int unanswered = 0; unanswered < ANSWER_TRIES;) {
        json_t *answer = NULL;
        tp_status st = run_context_ask(&answer, c, json_pack("{s:s}", "verb", "status"), err);
        bool is_done = st == TP_OK && done(ctx, json_object_get(answer, "status"));

        json_decref(answer);
        if (is_done || (st && st != TP_E_IO))
            return st;
        unanswered = st ? unanswered + 1 : 0;
        nanosleep(&pause, NULL);
    }
    return err->status;
}

void run_context_print(const json_t *answer, bool as_json)
{
    if (as_json)
        print_json_line(answer);
    else
        print_field("", json_string_value(json_object_get(answer, "text")));
}
