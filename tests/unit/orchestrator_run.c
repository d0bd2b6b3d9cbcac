/* tests/unit/orchestrator_run.c - the state machine, with a backend that does what a test says.
 *
 * The ranks' command is a shell script. A shell script replaces tp-run's supervisor too, so that no
 * other program is needed.
 *
 * covers: orchestrator/attempt orchestrator/run_loop orchestrator/run_transition
 * covers: orchestrator/run_services orchestrator/run_nodes orchestrator/run_host
 * covers: orchestrator/run_plan orchestrator/run_launch orchestrator/run_drain
 * covers: orchestrator/run_diagnose orchestrator/run_restart
 * covers: orchestrator/run_status orchestrator/run_requests
 * covers: orchestrator/backend/backend */
#include "orchestrator/run.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/run_state.h"
#include "orchestrator/web/control.h"

static struct arena arena;
static struct tp_err err;
static char dir[] = "/tmp/tp-run-unit-XXXXXX";
static char self[64];
static struct job job;

/* `tp-run supervise ID FILE COMMAND...`, as process/supervisor.h says: signals are forwarded. They
 * are blocked at its start, and a shell cannot change that, so it begins once more without. */
static const char SUPERVISOR[] =
    "#!/bin/sh\n"
    "[ \"$1\" = supervise ] || exit 0\n"
    "[ $AGAIN ] || AGAIN=1 exec perl -MPOSIX -e 'sigprocmask(SIG_SETMASK, POSIX::SigSet->new);"
    " exec @ARGV' \"$0\" \"$@\"\n"
    "out=$3; id=$2; shift 3\n"
    "TP_RUN_ID=$id \"$@\" &\n"
    "pid=$!\n"
    "for s in USR1 TERM USR2; do trap \"kill -$s $pid; cut=1\" $s; done\n"
    "cut=1; while [ $cut ]; do\n" /* a signal cuts `wait` off; 127: the status was read before */
    "  cut=; wait $pid; status=$?; [ $status = 127 ] || code=$status\n"
    "done\n"
    "printf '{\"exit_code\": %d, \"signal\": 0, \"started\": true}' $code >$out.new\n"
    "mv $out.new $out\n";

/* ---- the backend ---- */

struct fake {
    const struct backend_host *host;
    int ticks, calls;
    void (*tick)(struct fake *f); /* set by the test */
    bool not_ready;
    double silent_until;                /* until then the scheduler does not answer */
    enum backend_allocation allocation; /* what happens to the allocation */
    bool record_seen;
    json_t *events; /* of the run */
};

static struct fake fake;

static tp_status fake_open(void **state, const struct backend_host *host, const json_t *run_record)
{
    fake.host = host;
    fake.record_seen =
        json_is_true(json_object_get(json_object_get(run_record, "backend"), "remembered"));
    node_list_add(host->nodes, "a", 1);
    node_list_add(host->nodes, "b", 1);
    *state = &fake;
    return TP_OK;
}

static tp_status fake_tick(void *state)
{
    struct fake *f = state;

    f->ticks++;
    cr_assert_lt(f->ticks, 300, "the run does not end"); /* 30 s */
    if (f->tick)
        f->tick(f);
    return TP_OK;
}

static tp_status fake_ready(void *state, bool *ready)
{
    const struct fake *f = state;

    *ready = !f->not_ready;
    return TP_OK;
}

static json_t *fake_record(const void *state)
{
    (void)state;
    return json_pack("{s:b}", "remembered", 1);
}

static enum backend_allocation fake_after_save(void *state, struct backend_cause *cause)
{
    const struct fake *f = state;

    *cause = (struct backend_cause){ "preempted", "another job needs the nodes" };
    return f->allocation;
}

static tp_status fake_hand_over(void *state, const struct backend_cause *cause, bool *plan)
{
    struct fake *f = state;

    cr_assert_str_eq(cause->reason, "preempted");
    f->calls++;
    f->allocation = BACKEND_ALLOCATION_STAYS;
    *plan = true;
    return TP_OK;
}

static struct backend_log fake_read_log(const void *state, const char *text)
{
    (void)state;
    return (struct backend_log){ .unreachable = strstr(text, "no controller") != NULL };
}

static const struct job_backend FAKE_JOB = { .name = "fake", .finds_nodes = true };

static const char LAYOUTS[] = "[dp2, dp1]";

static const struct backend FAKE = {
    .job = &FAKE_JOB,
    .open = fake_open,
    .tick = fake_tick,
    .ready = fake_ready,
    .record = fake_record,
    .after_save = fake_after_save,
    .hand_over = fake_hand_over,
    .read_log = fake_read_log,
};

static struct backend backend; /* FAKE, as the test changes it */
static const char *textfile;   /* page.textfile; NULL: none */

/* ---- a job ---- */

static void on_event(void *ctx, const json_t *event)
{
    (void)ctx;
    json_array_append(fake.events, (json_t *)(uintptr_t)event);
}

static void setup(void)
{
    cr_assert_not_null(mkdtemp(dir));
    snprintf(self, sizeof self, "%s/tp-run", dir);
    cr_assert_eq(file_write_new(self, SUPERVISOR, sizeof SUPERVISOR - 1, &err), TP_OK);
    cr_assert_eq(chmod(self, 0755), 0);
    fake = (struct fake){ .events = json_array() };
    backend = FAKE;
}

static void teardown(void)
{
    json_decref(fake.events);
    arena_free(&arena);
    file_tree_remove(dir, &err);
}

TestSuite(run, .init = setup, .fini = teardown, .timeout = 60);

/* Run a job whose ranks run this shell script. keys: more lines of the job file; allow: the layouts
 * that it may run. */
static tp_status run(const char *script, const char *keys, const char *allow)
{
    const struct job_backend *const known[] = { &FAKE_JOB, NULL };
    char *const env_list[] = { "PATH=/usr/bin:/bin", NULL };
    struct run_reporter reporter = { .event = on_event };
    struct environment env;
    struct run_setup setup = { &backend, self, &env, &reporter };
    char path[64], text[2000];
    tp_status st;

    snprintf(path, sizeof path, "%s/job.yaml", dir);
    snprintf(text, sizeof text,
             "command: [sh, -c, '%s']\nckpt: c\ncheckpoints: none\nsteps: 10\n"
             "layouts: {allow: %s}\npage: {listen: \"\", textfile: \"%s\"}\n%s",
             script, allow, textfile ? textfile : "", keys);
    cr_assert_eq(job_file_parse(&job, text, strlen(text), path, known, &arena, &err), TP_OK, "%s",
                 err.msg);
    environment_copy(&env, env_list);
    st = run_job(&job, &setup, &err);
    environment_free(&env);
    return st;
}

static int count(const char *event)
{
    const json_t *e;
    size_t i;
    int n = 0;

    json_array_foreach(fake.events, i, e) n +=
        strcmp(json_string_value(json_object_get(e, "event")), event) == 0;
    return n;
}

/* A field of the newest event with this code. */
static const json_t *field(const char *event, const char *name)
{
    for (size_t i = json_array_size(fake.events); i-- > 0;) {
        const json_t *e = json_array_get(fake.events, i);

        if (strcmp(json_string_value(json_object_get(e, "event")), event) == 0)
            return json_object_get(e, name);
    }
    cr_assert(0, "no event %s", event);
    return NULL;
}

static void has_reason(const char *event, const char *reason)
{
    cr_expect_str_eq(json_string_value(field(event, "reason")), reason);
    cr_expect(json_string_value(field(event, "message")),
              "an event has a sentence as well as a code");
}

static struct run *the_run(void)
{
    return fake.host->run;
}

/* ---- how a job ends ---- */

Test(run, a_command_that_exits_with_0_ends_the_job)
{
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(count("launch"), 1);
    has_reason("done", "all_steps_done");
}

Test(run, repeated_starts_without_a_step_end_the_job)
{
    cr_assert_eq(run("echo boom; exit 4", "restart: {no_progress: 3, backoff: 0.01s}\n", LAYOUTS),
                 TP_E_COMM);
    cr_expect_eq(count("launch"), 3);
    cr_expect_eq(count("restart"), 2);
    has_reason("rank_exit", "command_failed");
    has_reason("failed", "no_progress");
    cr_expect(strstr(err.msg, "boom"), "%s", err.msg);
}

Test(run, a_refused_command_line_is_not_tried_again)
{
    cr_assert_eq(run("exit 2", "", LAYOUTS), TP_E_USAGE);
    cr_expect_eq(count("launch"), 1);
    has_reason("failed", "command_refused");
}

Test(run, a_used_up_budget_of_restarts_ends_the_job)
{
    cr_assert_eq(run("exit 4", "restart: {max: 2, no_progress: 9, backoff: 0.01s}\n", LAYOUTS),
                 TP_E_COMM);
    cr_expect_eq(count("launch"), 3);
    has_reason("failed", "too_many_restarts");
}

Test(run, a_backend_that_lost_its_scheduler_costs_no_restart)
{
    char script[160];

    /* the first two runs have no controller; a fault would fail the job at once */
    snprintf(
        script, sizeof script,
        "echo x >>%s/tries; [ $(wc -l <%s/tries) -gt 2 ] && exit 0; echo no controller; exit 1",
        dir, dir);
    cr_assert_eq(run(script, "restart: {no_progress: 1}\n", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(count("launch"), 3);
    cr_expect_eq(count("restart"), 0);
}

/* ---- waiting ---- */

static void free_a_node_later(struct fake *f)
{
    struct node *b = node_list_find(f->host->nodes, "b");

    if (f->ticks == 1)
        f->calls = (int)run_plans_computed(the_run());
    if (f->ticks < 20)
        cr_assert_eq(run_plans_computed(the_run()), f->calls, "computed again in tick %d",
                     f->ticks);
    if (f->ticks == 20)
        node_bring_back(b, clock_seconds());
}

static void begin_without_b(void *state, bool fresh)
{
    const struct fake *f = state;

    (void)fresh;
    node_lose(node_list_find(f->host->nodes, "b"));
}

Test(run, a_job_that_waits_for_nodes_plans_nothing_until_one_comes)
{
    backend.begin = begin_without_b;
    fake.tick = free_a_node_later;
    cr_assert_eq(run("exit 0", "restart: {settle: 0s}\n", "[dp2]"), TP_OK, "%s", err.msg);
    cr_expect_geq(fake.ticks, 20);
    cr_expect_eq(fake.calls, 1);
    cr_expect_eq(count("plan"), 2, "one for waiting and one for launching");
}

static void ready_later(struct fake *f)
{
    cr_assert(f->ticks >= 5 || run_plans_computed(the_run()) == 0);
    f->not_ready = f->ticks < 5;
}

Test(run, it_waits_for_a_backend_that_is_not_ready)
{
    fake.not_ready = true;
    fake.tick = ready_later;
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_geq(fake.ticks, 5);
}

/* ---- nodes ---- */

static void lose_b(struct fake *f)
{
    const struct backend_cause cause = { "no_power", "the node has no power" };
    struct run *r = the_run();

    if (f->calls == 0 && r->record.state == RUN_INIT && r->attempt.world == 2) {
        f->calls++;
        cr_assert(f->host->node_has_ranks(r, node_list_find(f->host->nodes, "b")));
        cr_assert_eq(f->host->node_lost(r, node_list_find(f->host->nodes, "b"), &cause), TP_OK);
    }
}

Test(run, after_a_lost_node_the_next_layout_starts_at_once)
{
    char script[160];
    double begin = clock_seconds();

    fake.tick = lose_b;
    snprintf(script, sizeof script, "[ -e %s/once ] && exit 0; touch %s/once; sleep 50", dir, dir);
    cr_assert_eq(run(script, "restart: {no_progress: 1}\n", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_lt(clock_seconds() - begin, 40, "the ranks on other nodes are killed");
    cr_expect_eq(json_integer_value(field("restart", "fails_in_row")), 0);
    has_reason("node_lost", "no_power");
    has_reason("restart", "node_lost");
    cr_expect_eq(json_integer_value(field("rescale", "ranks")), 1);
    cr_expect_str_eq(json_string_value(field("launch", "layout")), "tp1");
}

/* ---- nodes with faults ---- */

static const char ONE_FAULT[] = "restart: {blame: 1, exclude_for: 1h, backoff: 0.01s}\n";

/* A script that fails at its first `n` starts, and names rank 0. */
static const char *fails(char script[200], int n)
{
    snprintf(script, 200,
             "echo x >>%s/tries; [ $(wc -l <%s/tries) -gt %d ] && exit 0; "
             "echo rank 0 was killed by signal 9; exit 4",
             dir, dir, n);
    return script;
}

Test(run, a_node_with_faults_is_excluded_if_a_layout_fits_the_others)
{
    char script[200];

    cr_assert_eq(run(fails(script, 1), ONE_FAULT, LAYOUTS), TP_OK, "%s", err.msg);
    has_reason("node_lost", "repeated_faults");
    cr_expect_str_eq(json_string_value(field("node_lost", "node")), "a");
    cr_expect_str_eq(json_string_value(field("launch", "layout")), "tp1");
}

Test(run, a_node_that_is_needed_is_not_excluded)
{
    char script[200];

    cr_assert_eq(run(fails(script, 2), ONE_FAULT, "[dp2]"), TP_OK, "%s", err.msg);
    cr_expect_eq(count("node_lost"), 0);
    cr_expect_eq(count("launch"), 3);
}

Test(run, the_last_node_is_not_excluded)
{
    char script[200];

    cr_assert_eq(run(fails(script, 2), ONE_FAULT, LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(count("node_lost"), 1, "a is excluded, then b fails");
    cr_expect_eq(count("launch"), 3);
}

/* b is lost when a is excluded. */
static void lose_b_when_it_is_alone(struct fake *f)
{
    const struct backend_cause cause = { "no_power", "the node has no power" };
    struct run *r = the_run();

    if (f->calls == 0 && r->record.state == RUN_INIT && r->attempt.world == 1) {
        f->calls++;
        cr_assert_eq(f->host->node_lost(r, node_list_find(f->host->nodes, "b"), &cause), TP_OK);
    }
}

Test(run, an_exclusion_ends_when_no_layout_fits_the_other_nodes)
{
    char script[200];

    fake.tick = lose_b_when_it_is_alone;
    snprintf(script, sizeof script,
             "echo x >>%s/tries; case $(wc -l <%s/tries) in 1) echo rank 0 was killed by signal 9; "
             "exit 4;; 2) sleep 20;; esac",
             dir, dir);
    cr_assert_eq(run(script, ONE_FAULT, LAYOUTS), TP_OK, "%s", err.msg);
    has_reason("node_back", "node_needed");
    cr_expect_str_eq(json_string_value(field("node_back", "node")), "a");
    cr_expect_eq(count("launch"), 3);
}

static bool wants_none(const void *state, int usable, bool has_layout)
{
    (void)state, (void)usable, (void)has_layout;
    return false;
}

static void end_exclusion(struct fake *f)
{
    struct node *a = node_list_find(f->host->nodes, "a");

    if (a->excluded_to > 0 && ++f->calls == 5)
        a->excluded_to = 0;
}

Test(run, a_scheduler_may_have_other_nodes_for_one_that_is_excluded)
{
    char script[200];

    backend.wants_nodes = wants_none;
    fake.tick = end_exclusion;
    cr_assert_eq(run(fails(script, 1), ONE_FAULT, "[dp2]"), TP_OK, "%s", err.msg);
    cr_expect_eq(count("node_lost"), 1);
    cr_expect_eq(count("node_back"), 0);
    cr_expect_geq(fake.calls, 5);
}

/* ---- stopping ---- */

static void stop_when_it_runs(struct fake *f)
{
    struct stat sb;
    char path[64];

    snprintf(path, sizeof path, "%s/up", dir);
    if (f->calls == 0 && stat(path, &sb) == 0) {
        f->calls++;
        kill(getpid(), SIGTERM);
    }
}

Test(run, a_signal_lets_the_ranks_save)
{
    char script[160];

    fake.tick = stop_when_it_runs;
    snprintf(script, sizeof script,
             "trap \"exit 75\" TERM; touch %s/up; while :; do sleep 0.02; done", dir);
    cr_assert_eq(run(script, "", LAYOUTS), TP_E_STOPPED);
    has_reason("drain", "signal");
    has_reason("stopped", "saved");
    cr_expect_eq(count("killed"), 0);
}

Test(run, ranks_that_do_not_save_within_the_grace_are_killed)
{
    char script[160];
    double begin = clock_seconds();

    fake.tick = stop_when_it_runs;
    snprintf(script, sizeof script, "trap \"\" TERM; touch %s/up; while :; do sleep 0.02; done",
             dir);
    cr_assert_eq(run(script, "grace: 0.5s\n", LAYOUTS), TP_E_STOPPED);
    cr_expect_geq(clock_seconds() - begin, 0.5);
    has_reason("killed", "grace_over");
    has_reason("stopped", "not_saved");
}

Test(run, the_signal_that_asks_to_stop_is_that_of_the_job_file)
{
    char script[160];

    fake.tick = stop_when_it_runs;
    snprintf(script, sizeof script,
             "trap \"exit 75\" USR2; touch %s/up; while :; do sleep 0.02; done", dir);
    cr_assert_eq(run(script, "stop_signal: SIGUSR2\n", LAYOUTS), TP_E_STOPPED);
    has_reason("stopped", "saved");
}

/* torchrun ends with 1 when it gets SIGTERM, whatever its ranks do. */
Test(run, a_command_that_stops_when_it_is_asked_to_is_no_fault_whatever_its_exit_code)
{
    char script[160];

    fake.tick = stop_when_it_runs;
    snprintf(script, sizeof script,
             "trap \"exit 1\" TERM; touch %s/up; while :; do sleep 0.02; done", dir);
    cr_assert_eq(run(script, "restart: {no_progress: 1}\n", LAYOUTS), TP_E_STOPPED);
    has_reason("stopped", "not_saved");
    cr_expect_eq(count("rank_exit"), 0);
}

Test(run, a_command_that_is_asked_to_stop_and_exits_with_0_is_not_done)
{
    char script[160];

    fake.tick = stop_when_it_runs;
    snprintf(script, sizeof script,
             "trap \"exit 0\" TERM; touch %s/up; while :; do sleep 0.02; done", dir);
    cr_assert_eq(run(script, "", LAYOUTS), TP_E_STOPPED);
    has_reason("stopped", "saved");
}

/* Whether the script runs and the test has not acted yet. */
static bool runs(struct fake *f)
{
    struct stat sb;
    char path[64];

    snprintf(path, sizeof path, "%s/up", dir);
    return stat(path, &sb) == 0 && f->calls++ == 0;
}

/* Ask for a layout, which the second attempt gets. */
static void resize(const char *to, const char *layout)
{
    json_t *request = json_pack("{s:s,s:s}", "verb", "resize", "to", to), *answer;
    tp_status st = TP_OK;

    answer = run_answer(the_run(), request, &st);
    cr_assert(json_is_true(json_object_get(answer, "ok")) && st == TP_OK);
    cr_expect_str_eq(json_string_value(json_object_get(answer, "layout")), layout);
    cr_expect_eq(json_integer_value(json_object_get(answer, "attempt")), 2);
    cr_expect(!strstr(json_string_value(json_object_get(answer, "text")), "already"));
    json_decref(answer);
    json_decref(request);
}

static void resize_when_it_runs(struct fake *f)
{
    if (!runs(f))
        return;
    resize("dp1", "tp1");
    resize("dp2", "tp1dp2"); /* what runs until it has saved and stopped */
    resize("dp1", "tp1");
}

/* The first attempt runs until it is asked to stop, and exits with this code; the next one is done.
 */
static void run_until_asked(int code)
{
    char script[200];

    snprintf(
        script, sizeof script,
        "[ -e %s/up ] && exit 0; trap \"exit %d\" TERM; touch %s/up; while :; do sleep 0.02; done",
        dir, code, dir);
    cr_assert_eq(run(script, "restart: {no_progress: 1}\n", LAYOUTS), TP_OK, "%s", err.msg);
}

Test(run, a_resize_costs_no_restart_whatever_the_exit_code)
{
    fake.tick = resize_when_it_runs;
    run_until_asked(1);
    cr_expect_eq(count("restart"), 0);
    cr_expect_eq(count("launch"), 2);
}

static void resize_and_lose_b(struct fake *f)
{
    const struct backend_cause cause = { "no_power", "the node has no power" };

    if (!runs(f))
        return;
    resize("dp1", "tp1");
    cr_assert_eq(f->host->node_lost(the_run(), node_list_find(f->host->nodes, "b"), &cause), TP_OK);
}

Test(run, a_node_that_is_lost_while_ranks_stop_is_the_reason_for_the_restart)
{
    fake.tick = resize_and_lose_b;
    run_until_asked(3);
    has_reason("restart", "node_lost");
    cr_expect_eq(count("rank_exit"), 0);
}

/* ---- the scheduler takes the nodes away ---- */

Test(run, ranks_that_saved_because_the_nodes_are_taken_away_continue_elsewhere)
{
    char script[160];

    fake.allocation = BACKEND_ALLOCATION_TAKEN;
    snprintf(script, sizeof script, "[ -e %s/once ] && exit 0; touch %s/once; exit 75", dir, dir);
    cr_assert_eq(run(script, "restart: {no_progress: 1}\n", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(fake.calls, 1, "handed over once");
    cr_expect_eq(count("restart"), 0, "this is not a fault");
    cr_expect_eq(count("launch"), 2);
}

Test(run, ranks_that_saved_and_exited_without_a_request_stop_the_job)
{
    cr_assert_eq(run("exit 75", "", LAYOUTS), TP_E_STOPPED);
    cr_expect_eq(fake.calls, 0);
    has_reason("stopped", "saved");
}

/* ---- what is remembered ---- */

Test(run, a_stopped_job_continues_with_what_the_backend_has_remembered)
{
    json_int_t attempt;

    cr_assert_eq(run("exit 75", "", LAYOUTS), TP_E_STOPPED);
    cr_expect(!fake.record_seen);
    attempt = json_integer_value(field("launch", "attempt"));
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect(fake.record_seen);
    cr_expect_eq(json_integer_value(field("launch", "attempt")), attempt + 1);
}

/* What status says while the second run trains, which ends when it has been read. */
static void read_status(struct fake *f)
{
    json_t *status = run_status(the_run());
    char path[64];

    if (f->calls == 0 && the_run()->record.state == RUN_INIT) {
        f->calls++;
        snprintf(path, sizeof path, "%s/read", dir);
        cr_assert_eq(file_write_new(path, "", 0, &err), TP_OK, "%s", err.msg);
        cr_expect_str_eq(json_string_value(json_object_get(status, "message")), "");
        cr_expect_str_eq(json_string_value(json_object_get(status, "reason")), "");
    }
    json_decref(status);
}

Test(run, a_job_that_continues_does_not_say_how_it_ended_before)
{
    char script[160];

    cr_assert_eq(run("exit 75", "", LAYOUTS), TP_E_STOPPED);
    fake.tick = read_status;
    snprintf(script, sizeof script, "until [ -e %s/read ]; do sleep 0.02; done", dir);
    cr_assert_eq(run(script, "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(fake.calls, 1);
}

Test(run, the_last_fault_and_its_cost_are_remembered)
{
    char script[160];
    json_t *status = NULL;
    const json_t *fault;

    snprintf(script, sizeof script, "[ -e %s/once ] && exit 0; touch %s/once; echo boom; exit 4",
             dir, dir);
    cr_assert_eq(run(script, "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_assert_eq(run_status_stored(&status, &job, &FAKE, &err), TP_OK, "%s", err.msg);
    fault = json_object_get(status, "last_fault");
    cr_expect_str_eq(json_string_value(json_object_get(fault, "reason")), "command_failed");
    cr_expect(strstr(json_string_value(json_object_get(fault, "message")), "boom"));
    json_decref(status);
}

Test(run, the_file_of_metrics_shows_how_the_job_ended)
{
    char keys[200], path[64], *text;
    size_t size;

    snprintf(path, sizeof path, "%s/job.prom", dir);
    snprintf(keys, sizeof keys, "restart: {no_progress: 1}\nname: n\n");
    textfile = path;
    cr_assert_eq(run("sleep 0.3; exit 4", keys, LAYOUTS), TP_E_COMM);
    cr_assert_eq(file_read_own(&text, &size, path, 1 << 16, &arena, &err), TP_OK, "%s", err.msg);
    cr_expect(strstr(text, "tp_run_state{tp_job=\"n\",state=\"failed\"} 1\n"), "%s", text);
    textfile = NULL;
    cr_assert_eq(run("exit 0", "name: n\n", LAYOUTS), TP_OK, "%s", err.msg);
}

Test(run, a_file_of_metrics_that_cannot_be_written_is_an_error_at_the_start)
{
    textfile = "/proc/none/job.prom";
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_E_USAGE);
    cr_expect(strstr(err.msg, "page.textfile"), "%s", err.msg);
}

Test(run, a_job_that_is_done_is_not_launched_again)
{
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_OK);
    cr_assert_eq(run("exit 9", "", LAYOUTS), TP_OK);
    cr_expect_eq(count("launch"), 1);
}

/* docs/DESIGN.md: files of earlier versions still load. A version whose events had no codes wrote
 * tests/fixture/journal-earlier: a job of two nodes lost node b and was then stopped. */
Test(run, a_journal_of_an_earlier_version_is_continued)
{
    char *text, path[64];
    size_t size;
    json_t *status = NULL;

    cr_assert_eq(
        file_read_own(&text, &size, "tests/fixture/journal-earlier", 1 << 16, &arena, &err), TP_OK,
        "%s", err.msg);
    snprintf(path, sizeof path, "%s/job.run", dir);
    cr_assert_eq(file_make_dirs(path, &err), TP_OK);
    snprintf(path, sizeof path, "%s/job.run/journal", dir);
    cr_assert_eq(file_write_new(path, text, size, &err), TP_OK);
    cr_assert_eq(run("exit 0", "", LAYOUTS), TP_OK, "%s", err.msg);
    cr_expect_eq(json_integer_value(field("launch", "attempt")), 3);
    cr_expect_str_eq(json_string_value(field("launch", "layout")), "tp1");
    cr_expect_eq(json_integer_value(field("done", "step")), 106, "the best step is known");
    cr_assert_eq(run_status_stored(&status, &job, &FAKE, &err), TP_OK, "%s", err.msg);
    cr_expect_gt(json_number_value(json_object_get(json_object_get(status, "spent"), "lost")), 1.1);
    cr_expect_str_eq(json_string_value(json_object_get(status, "reason")), "all_steps_done");
    json_decref(status);
}
