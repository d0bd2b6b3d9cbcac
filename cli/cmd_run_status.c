/* cli/cmd_run_status.c - tp-run status JOB.yaml: where the job is. */
#include <stdio.h>
#include <string.h>

#include "cli/cmd_run.h"
#include "cli/report.h"
#include "cli/run_ask.h"
#include "orchestrator/control.h"
#include "orchestrator/journal.h"

static const char *text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s ? s : "";
}

static long long integer(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

static void print_slurm(const json_t *o)
{
    double left = json_number_value(json_object_get(o, "left"));

    printf("slurm       job %lld %s", integer(o, "job"), text(o, "state"));
    if (text(o, "reason")[0] && strcmp(text(o, "reason"), "None") != 0)
        printf(" (%s)", text(o, "reason"));
    if (left >= 0)
        printf(", %lld:%02lld:%02lld of its wall time left", (long long)left / 3600,
               (long long)left / 60 % 60, (long long)left % 60);
    if (integer(o, "next"))
        printf(", then job %lld goes on", integer(o, "next"));
    putchar('\n');
}

static void print_status(const json_t *s)
{
    json_t *v, *loss = json_object_get(s, "loss");
    const char *cause;
    size_t i;

    printf("job         %s\nstate       %s%s%s\nlayout      %s, %lld ranks, attempt %lld\n",
           text(s, "job"), text(s, "state"), text(s, "reason")[0] ? ": " : "", text(s, "reason"),
           text(s, "layout"), integer(s, "world"), integer(s, "attempt"));
    printf("step        %lld of %lld, checkpoint %lld", integer(s, "step"), integer(s, "steps"),
           integer(s, "checkpoint"));
    if (loss)
        printf(", loss %.4f", json_number_value(loss));
    printf("\ngoodput     %.1f %%\ntime       ",
           100 * json_number_value(json_object_get(s, "goodput")));
    json_object_foreach(json_object_get(s, "spent"), cause, v) if (json_number_value(v) >= 0.05)
        printf(" %s %.1f s", cause, json_number_value(v));
    putchar('\n');
    if (json_object_get(s, "slurm"))
        print_slurm(json_object_get(s, "slurm"));
    printf("page        %s\nnodes      ", text(s, "page"));
    json_array_foreach(json_object_get(s, "nodes"), i, v)
        printf(" %s:%lld %s", text(v, "node"), integer(v, "slots"), text(v, "state"));
    putchar('\n');
    json_array_foreach(json_object_get(s, "ranks"), i, v)
        printf("rank %-6lld %-8s node %s, step %lld, collective %lld, pid %lld\n",
               integer(v, "rank"), text(v, "state"), text(v, "node"), integer(v, "step"),
               integer(v, "collective"), integer(v, "pid"));
}

/* Nobody runs it: what the journal's last record says. */
static tp_status from_journal(const char *path, bool as_json, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job job;
    json_t *last = NULL, *book;
    tp_status st = job_read(&job, path, &arena, err);

    if (st == TP_OK)
        st = journal_peek(&last, job.state, err);
    if (st == TP_E_NOTFOUND)
        st = tp_fail(err, TP_E_NOTFOUND, "%s: this job was never run", path);
    if (st == TP_OK) {
        book = json_object_get(last, "book");
        if (as_json)
            json_dumpf(book, stdout, JSON_COMPACT);
        else
            printf("job         %s\nstate       %s%s%s (tp-run is not running)\nlayout      %s\n"
                   "step        %lld, checkpoint %lld",
                   job.name, text(book, "state"), text(book, "reason")[0] ? ": " : "",
                   text(book, "reason"), text(book, "layout"), integer(book, "best_step"),
                   integer(book, "saved"));
        putchar('\n');
    }
    json_decref(last);
    arena_free(&arena);
    return st;
}

int cmd_run_status(int argc, char **argv)
{
    const char *path = NULL;
    bool as_json = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_FLAG(0, "json", &as_json, "as JSON"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run status", opts, argc, argv, NULL, NULL))
        return code;
    st = run_ask(&answer, path, json_pack("{s:s}", "verb", "status"), &err);
    if (st == TP_E_NOTFOUND)
        st = from_journal(path, as_json, &err);
    else if (st == TP_OK && as_json) {
        json_dumpf(json_object_get(answer, "status"), stdout, JSON_COMPACT);
        putchar('\n');
    } else if (st == TP_OK) {
        print_status(json_object_get(answer, "status"));
    }
    json_decref(answer);
    return report("tp-run", st, &err);
}
