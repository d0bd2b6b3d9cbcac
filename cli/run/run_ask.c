/* cli/run/run_ask.c - see cli/run/run_ask.h. */
#include "cli/run/run_ask.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "orchestrator/backend/slurm/slurm_command.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/web/control.h"

static const double PATIENCE_S = 30;

/* The last line of what `tp-run ask` printed on the other host is the answer. */
static tp_status ask_there(json_t **answer, const struct control_home *home, const struct job *job,
                           const json_t *request, struct arena *arena, struct tp_err *err)
{
    char self[PATH_MAX], *said = NULL, *text = json_dumps(request, JSON_COMPACT);
    ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
    const char *newline;
    struct job_words words;
    tp_status st;

    if (!text || n <= 0) {
        free(text);
        return tp_fail(err, TP_E_NOMEM, "no memory for a request");
    }
    self[n] = 0;
    slurm_on_node(&words, home->slurm_job, home->node, arena, self, "ask", job->state, text, NULL);
    st = slurm_ask(&said, &words, "/", PATIENCE_S, arena, err);
    free(text);
    if (st)
        return st;
    newline = strrchr(said, '\n');
    *answer = json_loads(newline ? newline + 1 : said, 0, NULL);
    return *answer ? TP_OK : tp_fail(err, TP_E_IO, "%s: no answer: %.200s", home->host, said);
}

static tp_status ask(json_t **answer, const struct job *job, const json_t *request,
                     struct arena *arena, struct tp_err *err)
{
    struct control_home home;
    bool elsewhere = control_is_elsewhere(&home, job->state);
    tp_status st;

    if (elsewhere && home.slurm_job && home.node[0] &&
        ask_there(answer, &home, job, request, arena, err) == TP_OK)
        return TP_OK;
    st = control_ask(answer, job->state, request, err);
    if (st == TP_E_NOTFOUND && elsewhere && !home.slurm_job)
        st = tp_fail(err, TP_E_NOTFOUND, "%s: nobody listens here; tp-run was started on host %s",
                     job->path, home.host);
    return st;
}

tp_status run_ask(json_t **answer, const char *path, json_t *request, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job job;
    tp_status st = job_file_read(&job, path, backends_job(), &arena, err);

    *answer = NULL;
    if (st == TP_OK)
        st = ask(answer, &job, request, &arena, err);
    if (st == TP_OK && !json_is_true(json_object_get(*answer, "ok"))) {
        const char *why = json_string_value(json_object_get(*answer, "error"));
        bool wrong = json_integer_value(json_object_get(*answer, "exit")) == 2;

        st = tp_fail(err, wrong ? TP_E_USAGE : TP_E_IO, "%s", why ? why : "refused");
        json_decref(*answer);
        *answer = NULL;
    }
    json_decref(request);
    arena_free(&arena);
    return st;
}

void run_ask_print(const json_t *answer, bool as_json)
{
    if (as_json)
        json_dumpf(answer, stdout, JSON_COMPACT);
    else
        fputs(json_string_value(json_object_get(answer, "text")), stdout);
    putchar('\n');
}
