/* cli/run/cmd_status.c - tp-run status JOB.yaml: where the job is. */
#include <stdio.h>
#include <string.h>

#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/run_ask.h"
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run.h"
#include "orchestrator/web/control.h"

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

/* A step, "none" before the first. */
static const char *step_text(char buf[24], const json_t *o, const char *name)
{
    if (integer(o, name) < 0)
        return "none";
    snprintf(buf, 24, "%lld", integer(o, name));
    return buf;
}

static void print_where(const json_t *s)
{
    bool runs = json_is_true(json_object_get(s, "running"));
    char step[24], saved[24];
    json_t *loss = json_object_get(s, "loss");

    printf("job         %s\nstate       %s%s%s%s\n", text(s, "job"), text(s, "state"),
           text(s, "reason")[0] ? ": " : "", text(s, "reason"),
           runs ? "" : " (tp-run is not running)");
    printf("layout      %s, ", text(s, "layout"));
    if (runs)
        printf("%lld ranks, ", integer(s, "world"));
    printf("attempt %lld\nstep        %s", integer(s, "attempt"), step_text(step, s, "step"));
    if (integer(s, "steps"))
        printf(" of %lld", integer(s, "steps"));
    printf(", checkpoint %s", step_text(saved, s, "checkpoint"));
    if (loss)
        printf(", loss %.4g", json_number_value(loss));
    putchar('\n');
}

static void print_status(const json_t *s)
{
    const char *cause;
    json_t *v;
    size_t i;

    print_where(s);
    printf("goodput     %.1f %%\ntime       ",
           100 * json_number_value(json_object_get(s, "goodput")));
    json_object_foreach(json_object_get(s, "spent"), cause, v) if (json_number_value(v) >= 0.05)
        printf(" %s %.1f s", cause, json_number_value(v));
    putchar('\n');
    if (json_object_get(s, "slurm"))
        print_slurm(json_object_get(s, "slurm"));
    if (text(s, "page")[0])
        printf("page        %s\n", text(s, "page"));
    printf("nodes      ");
    json_array_foreach(json_object_get(s, "nodes"), i, v)
        printf(" %s:%lld %s", text(v, "node"), integer(v, "slots"), text(v, "state"));
    putchar('\n');
    json_array_foreach(json_object_get(s, "ranks"), i, v)
        printf("rank %-6lld %-8s node %s, step %lld, collective %lld, pid %lld\n",
               integer(v, "rank"), text(v, "state"), text(v, "node"), integer(v, "step"),
               integer(v, "collective"), integer(v, "pid"));
}

/* Nobody runs it: what the journal's last record says. */
static tp_status from_journal(json_t **status, const char *path, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct job job;
    tp_status st = job_file_read(&job, path, backends_job(), &arena, err);

    if (st == TP_OK)
        st = run_status_stored(status, &job, err);
    if (st == TP_E_NOTFOUND)
        st = tp_fail(err, TP_E_NOTFOUND, "%s: this job was never run", path);
    arena_free(&arena);
    return st;
}

int cmd_run_status(int argc, char **argv)
{
    const char *path = NULL;
    bool as_json = false;
    struct tp_err err = { 0 };
    json_t *answer = NULL, *status = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path, "the job file"),
                                OPT_FLAG(0, "json", &as_json, "as JSON"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run status", opts, argc, argv, NULL, NULL))
        return code;
    st = run_ask(&answer, path, json_pack("{s:s}", "verb", "status"), &err);
    if (st == TP_E_NOTFOUND)
        st = from_journal(&status, path, &err);
    else if (st == TP_OK)
        status = json_incref(json_object_get(answer, "status"));
    if (status && as_json) {
        json_dumpf(status, stdout, JSON_COMPACT);
        putchar('\n');
    } else if (status) {
        print_status(status);
    }
    json_decref(status);
    json_decref(answer);
    return report("tp-run", st, &err);
}
