/* cli/run_ask.c - see cli/run_ask.h. */
#include "cli/run_ask.h"

#include "orchestrator/control.h"

tp_status run_ask(json_t **answer, const char *path, json_t *request, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job job;
    tp_status st = job_read(&job, path, &arena, err);

    *answer = NULL;
    if (st == TP_OK)
        st = control_ask(answer, job.state, request, err);
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
