/* cli/run/cmd_status.c - tp-run status JOB.yaml: shows the state of the job. */
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "cli/print.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/event_text.h"
#include "cli/run/run_context.h"
#include "core/clock.h"
#include "orchestrator/run.h"

static const char *text(const json_t *o, const char *name)
{
    const char *s = json_string_value(json_object_get(o, name));

    return s ? s : "";
}

static double number(const json_t *o, const char *name)
{
    return json_number_value(json_object_get(o, name));
}

static long long integer(const json_t *o, const char *name)
{
    return json_integer_value(json_object_get(o, name));
}

/* The step, or "none" before the first. */
static const char *step_text(char buf[24], const json_t *o, const char *name)
{
    if (integer(o, name) < 0)
        return "none";
    snprintf(buf, 24, "%lld", integer(o, name));
    return buf;
}

static void print_speed(const json_t *s)
{
    double step = number(s, "step_seconds"), tokens = number(s, "tokens_per_second");
    double left = number(s, "left_seconds");
    char text[CLOCK_TEXT_MAX];

    if (step <= 0)
        return;
    printf("speed       %.3g ms per step", 1e3 * step);
    if (tokens > 0)
        printf(", %.0f tokens per second", tokens);
    if (left >= 0)
        printf(", %s left", clock_format_duration(text, left));
    putchar('\n');
}

/* The last fault and what it has cost. */
static void print_fault(const json_t *fault)
{
    const time_t at = event_time(number(fault, "time"));
    double seconds = number(fault, "seconds");
    char clock[32] = "-", took[CLOCK_TEXT_MAX];
    struct tm t;

    if (!json_is_object(fault))
        return;
    if (at > 0 && localtime_r(&at, &t))
        strftime(clock, sizeof clock, "%Y-%m-%d %H:%M:%S", &t);
    printf("last fault  %s: ", clock);
    print_safe(text(fault, "message"));
    if (seconds > 0)
        printf("; training again after %s", clock_format_duration(took, seconds));
    if (integer(fault, "repeated_steps") > 0)
        printf(", %lld steps repeated", integer(fault, "repeated_steps"));
    putchar('\n');
}

static void print_progress(const json_t *s)
{
    bool runs = json_is_true(json_object_get(s, "running"));
    bool is_unknown = strcmp(text(s, "tp_run"), "unreachable") == 0;
    char step[24], saved[24];
    json_t *loss = json_object_get(s, "loss");

    print_field("job         ", text(s, "job"));
    printf("state       %s%s", text(s, "state"), text(s, "message")[0] ? ": " : "");
    print_safe(text(s, "message"));
    print_field("", runs         ? ""
                    : is_unknown ? " (tp-run does not answer)"
                                 : " (tp-run is not running)");
    if (text(s, "tp_run_message")[0])
        print_field("tp-run      ", text(s, "tp_run_message"));
    printf("layout      %s, ", text(s, "layout"));
    if (runs)
        printf("%lld rank%s, ", integer(s, "world"), integer(s, "world") == 1 ? "" : "s");
    printf("attempt %lld\nstep        %s", integer(s, "attempt"), step_text(step, s, "step"));
    if (integer(s, "steps"))
        printf(" of %lld", integer(s, "steps"));
    if (json_is_false(json_object_get(s, "checkpoint_reported")))
        printf(", checkpoint not reported by the program");
    else
        printf(", checkpoint %s", step_text(saved, s, "checkpoint"));
    if (loss)
        printf(", loss %.4g", json_number_value(loss));
    putchar('\n');
    print_speed(s);
    print_fault(json_object_get(s, "last_fault"));
}

static void print_rank(const json_t *v)
{
    double compute = json_number_value(json_object_get(v, "compute_seconds"));

    printf("rank %-6lld %-8s node %s, step %lld, collective %lld", integer(v, "rank"),
           text(v, "state"), text(v, "node"), integer(v, "step"), integer(v, "collective"));
    if (compute > 0)
        printf(", computes %.3g ms per step", 1e3 * compute);
    printf(", pid %lld\n", integer(v, "pid"));
}

static void print_status(const json_t *s)
{
    const json_t *allocation = json_object_get(s, text(s, "backend"));
    const char *cause;
    json_t *v;
    size_t i;

    print_progress(s);
    printf("goodput     %.1f %%\ntime       ",
           100 * json_number_value(json_object_get(s, "goodput")));
    json_object_foreach(json_object_get(s, "spent"), cause, v) if (json_number_value(v) >= 0.05)
        printf(" %s %.1f s", cause, json_number_value(v));
    putchar('\n');
    if (allocation) {
        printf("%-11s ", text(s, "backend"));
        print_field("", text(allocation, "text"));
    }
    if (text(s, "page")[0])
        printf("page        %s\n", text(s, "page"));
    json_array_foreach(json_object_get(s, "nodes"), i, v)
        printf("%s %s:%lld %s", i ? "" : "nodes      ", text(v, "node"), integer(v, "slots"),
               text(v, "state"));
    if (json_array_size(json_object_get(s, "nodes")))
        putchar('\n');
    json_array_foreach(json_object_get(s, "ranks"), i, v) print_rank(v);
}

int cmd_run_status(int argc, char **argv)
{
    const char *path = NULL;
    bool as_json = false;
    struct run_context c;
    struct tp_err err = { 0 };
    json_t *answer = NULL, *status = NULL;
    int code;
    const struct opt opts[] = { OPT_ARG("JOB.yaml", &path,
                                        "the job file, or the job's state folder"),
                                OPT_FLAG(0, "json", &as_json, "print JSON"), OPT_END };
    tp_status st;

    if (!report_options(&code, "tp-run status", opts, argc, argv,
                        "Shows the state of the job, even when no tp-run runs it.", NULL))
        return code;
    TP_TRY(run_context_open_state(&c, path, &err));
    st = run_context_ask(&answer, &c, json_pack("{s:s}", "verb", "status"), &err);
    if (st == TP_OK)
        status = json_incref(json_object_get(answer, "status"));
    else if (st == TP_E_NOTFOUND) /* no tp-run runs it: read the journal */
        st = run_status_stored(&status, &c.job, c.backend, &err);
    if (st == TP_E_NOTFOUND)
        st = tp_fail(&err, TP_E_NOTFOUND, "%s: this job has not been run", path);
    if (status && as_json)
        print_json_line(status);
    else if (status)
        print_status(status);
done:
    json_decref(status);
    json_decref(answer);
    run_context_close(&c);
    return report_json(as_json, "tp-run", st, &err);
}
