/* cli/run/cmd_worker.c - the roles in which tp-run starts itself: `supervise`, `check`, `relay`,
 * `ask` and `standby`. People do not use them, so they have no options. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/verify.h"
#include "cli/report.h"
#include "cli/run/cmd.h"
#include "cli/run/cmd_job.h"
#include "cli/run/run_context.h"
#include "core/heartbeat.h"
#include "core/thread_pool.h"
#include "orchestrator/backends.h"
#include "orchestrator/process/memory_dir.h"
#include "orchestrator/process/process.h"
#include "orchestrator/process/supervisor.h"
#include "orchestrator/web/control.h"

enum {
    TAKE_OVER_TRIES = 24,
    TAKE_OVER_PAUSE_S = 5
}; /* a dead host's lock is released when its lease ends */

static int refuse(const char *prog, const char *sentence)
{
    struct tp_err err = { 0 };

    return report(prog, tp_fail(&err, TP_E_USAGE, "%s", sentence), &err);
}

/* tp-run supervise ID FILE COMMAND...: runs each attempt's command. */
int cmd_run_supervise(int argc, char **argv)
{
    struct tp_err err = { 0 };
    struct environment env;
    const struct supervisor_setup setup = {
        .argv = argv + 3, .id = argv[1], .exit_path = argc > 2 ? argv[2] : NULL, .env = &env
    };
    tp_status st;

    if (argc < 4)
        return refuse("tp-run supervise", "tp-run starts this for each attempt");
    environment_copy(&env, environ);
    memory_dir_hold_path(environment_get(&env, HEARTBEAT_DIR_ENV));
    st = supervisor_run(&setup, &err);
    environment_free(&env);
    return report("tp-run supervise", st, &err);
}

static void on_finding(void *ctx, const char *sentence)
{
    (void)ctx;
    report_note("tp-run check", "%s", sentence);
}

/* tp-run check DIR: verifies a checkpoint in its own process, so that tp-run need not wait. */
int cmd_run_check(int argc, char **argv)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct verify v = { .jobs = thread_pool_cores(), .found = on_finding };
    tp_status st;
    int code;

    if (argc != 2)
        return refuse("tp-run check", "expected a step folder");
    v.dir = argv[1];
    st = ckpt_verify(&v, &arena, &err);
    if (st == TP_OK && v.findings)
        st = tp_fail(&err, TP_E_NO, "%s: %d findings", v.dir, v.findings);
    code = report("tp-run check", st, &err);
    arena_free(&arena);
    return code;
}

/* The signal that asks the rank to save and stop. */
static int stop_signal(const struct environment *env)
{
    const char *text = environment_get(env, RELAY_SIGNAL_ENV);
    long sig = text ? strtol(text, NULL, 10) : 0;

    return sig > 0 && sig < NSIG ? (int)sig : SIGUSR1;
}

/* tp-run relay BACKEND DIR COMMAND...: runs a rank on another host. */
int cmd_run_relay(int argc, char **argv)
{
    const struct backend *backend = argc > 1 ? backends_find(argv[1]) : NULL;
    struct environment env;
    struct relay_setup setup = { .argv = argv + 3, .env = &env, .node = "" };
    struct relay_end end = { 0 };
    struct tp_err err = { 0 };
    const char *id;
    tp_status st;

    if (argc < 4 || !backend || !backend->relay)
        return refuse("tp-run relay", "tp-run starts this on nodes");
    environment_copy(&env, environ);
    id = environment_get(&env, PROCESS_ID_ENV);
    setup.stop_signal = stop_signal(&env);
    setup.id = id ? id : "job";
    setup.dir = argv[2];
    backend->relay(&setup, &env);
    st = relay_run(&end, &setup, &err);
    environment_free(&env);
    if (st)
        return report("tp-run relay", st, &err);
    if (end.signal && !end.asked) /* the launcher reports this too, but not which rank was first */
        report_note("tp-run relay", "rank %d was killed by signal %d", setup.rank, end.signal);
    else if (end.exit_code != 0 && end.exit_code != tp_exit_code(TP_E_STOPPED) && !end.asked)
        report_note("tp-run relay", "rank %d ended with exit code %d", setup.rank, end.exit_code);
    return end.exit_code;
}

/* tp-run ask STATE REQUEST: sends a request to the tp-run on this host, for a verb on another host
 * that cannot reach it (run_context.h). Prints the answer. */
int cmd_run_ask(int argc, char **argv)
{
    struct tp_err err = { 0 };
    json_t *request = argc == 3 ? json_loads(argv[2], JSON_REJECT_DUPLICATES, NULL) : NULL;
    json_t *answer = NULL;
    tp_status st;

    if (!request)
        return refuse("tp-run ask", "tp-run starts this on other hosts");
    st = control_ask(&answer, argv[1], request, &err);
    if (st == TP_OK && (json_dumpf(answer, stdout, JSON_COMPACT) != 0 || putchar('\n') == EOF))
        st = tp_fail_errno(&err, "stdout");
    json_decref(answer);
    json_decref(request);
    return report("tp-run ask", st, &err);
}

/* Run the job here in place of a tp-run whose node is lost. */
static int take_over(struct run_context *c)
{
    const struct backend_call call = run_context_call(c);
    int code;

    report_note("tp-run standby", "the node of tp-run is lost; continuing here");
    c->backend->standby_env(&c->env);
    code = cmd_job_run(c, (struct cmd_job_output){ 0 });
    for (int i = 1; code == tp_exit_code(TP_E_EXISTS) && i < TAKE_OVER_TRIES; i++) {
        sleep(TAKE_OVER_PAUSE_S);
        code = cmd_job_run(c, (struct cmd_job_output){ 0 });
    }
    c->backend->standby_end(&call);
    return code;
}

/* tp-run standby JOB.yaml: waits on another node (orchestrator/process/standby.h). */
int cmd_run_standby(int argc, char **argv)
{
    struct run_context c;
    struct backend_call call;
    struct tp_err err = { 0 };
    bool lost = false;
    int code;
    tp_status st;

    if (argc != 2)
        return refuse("tp-run standby", "tp-run starts this on other nodes");
    st = run_context_open(&c, argv[1], &err);
    call = run_context_call(&c);
    if (st == TP_OK && !c.backend->standby)
        st = tp_fail(&err, TP_E_USAGE, "%s: the backend has no standby", argv[1]);
    if (st == TP_OK)
        st = c.backend->standby(&lost, &call, &err);
    code = report("tp-run standby", st, &err);
    if (lost)
        code = take_over(&c);
    run_context_close(&c);
    return code;
}
