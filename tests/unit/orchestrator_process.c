/* tests/unit/orchestrator_process.c - programs are started, found by their environment, and their
 * end is recorded.
 *
 * covers: orchestrator/process/spawn orchestrator/process/child orchestrator/process/environment
 * covers: orchestrator/process/supervisor */
#include "orchestrator/process/process.h"

#include <criterion/criterion.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/arena.h"
#include "core/clock.h"
#include "core/file.h"
#include "core/file_tree.h"
#include "orchestrator/process/child.h"
#include "orchestrator/process/spawn.h"
#include "orchestrator/process/supervisor.h"

enum { TRIES = 20, SWEEPS = 150 };

static char dir[] = "/tmp/tp-process-XXXXXX";
static struct tp_err err;
static struct environment env;

static void setup(void)
{
    char *const list[] = { "PATH=/usr/bin:/bin", "A=1", NULL };

    cr_assert_not_null(mkdtemp(dir));
    environment_copy(&env, list);
}

static void teardown(void)
{
    environment_free(&env);
    file_tree_remove(dir, &err);
}

TestSuite(process, .init = setup, .fini = teardown, .timeout = 60);

static void sleep_ms(int ms)
{
    nanosleep(&(struct timespec){ .tv_nsec = ms * 1000000L }, NULL);
}

/* ---- environment ---- */

Test(process, an_environment_is_a_value)
{
    static const char *const kept[] = { "SLOW_B", NULL };

    environment_set(&env, "A", "2");
    environment_set(&env, "SLOW_A", "x");
    environment_set(&env, "SLOW_B", "y");
    environment_set(&env, "B", "");
    cr_expect_str_eq(environment_get(&env, "A"), "2");
    cr_expect_str_eq(environment_get(&env, "B"), "");
    cr_expect_null(environment_get(&env, "PAT"), "a part of a name is not found");
    environment_unset_prefix(&env, "SLOW_", kept);
    cr_expect_null(environment_get(&env, "SLOW_A"));
    cr_expect_str_eq(environment_get(&env, "SLOW_B"), "y");
    environment_unset(&env, "A");
    cr_expect_null(environment_get(&env, "A"));
    cr_expect_eq(env.n, 3);
    cr_expect_null(environment_list(&env)[3]);
    cr_expect_null(getenv("SLOW_B"), "the environment of this process is unchanged");
}

Test(process, text_before_a_value_of_any_length)
{
    static char longer[100001];

    memset(longer, 'x', sizeof longer - 1);
    environment_set(&env, "A", longer);
    environment_prepend(&env, "A", "first:");
    cr_expect_eq(strlen(environment_get(&env, "A")), sizeof longer - 1 + 6);
    cr_expect_eq(strncmp(environment_get(&env, "A"), "first:xxx", 9), 0);
    environment_prepend(&env, "NEW", "first:");
    cr_expect_str_eq(environment_get(&env, "NEW"), "first:");
    cr_expect_eq(env.n, 3);
}

/* ---- children ---- */

/* Run a shell script to its end, and return its exit code. */
static int run_child(struct child *c, const char *script, double seconds)
{
    char *argv[] = { "sh", "-c", (char *)(uintptr_t)script, NULL };
    const struct child_setup setup = { .argv = argv, .env = &env, .dir = dir };
    int status;

    cr_assert_eq(child_start(c, &setup, &err), TP_OK, "%s", err.msg);
    c->until = seconds > 0 ? clock_seconds() + seconds : 0;
    while (waitpid(c->pid, &status, WNOHANG) == 0) {
        child_poll(c, clock_seconds());
        sleep_ms(5);
    }
    return child_ended(c, status);
}

Test(process, the_output_of_a_child_is_collected)
{
    struct child c = { .fd = -1 };

    cr_expect_eq(run_child(&c, "pwd; echo $A; echo end >&2; echo; exit 3", 0), 3);
    cr_expect(strstr(c.text, dir) && strstr(c.text, "\n1\nend"), "%s", c.text);
    cr_expect_str_eq(c.last, "end");
    cr_expect_eq(c.n, strlen(c.text));
    cr_expect_eq(run_child(&c, "exit 0", 0), 0);
    cr_expect_str_eq(c.last, "", "no output of the previous child is left");
    child_free(&c);
}

Test(process, more_output_than_a_pipe_holds_does_not_block)
{
    struct child c = { .fd = -1 };

    cr_expect_eq(run_child(&c, "head -c 300000 /dev/zero | tr '\\0' x", 0), 0);
    cr_expect_eq(c.n, 300000);
    child_free(&c);
}

/* The list of the nodes of a large cluster; the limit of time only ends a test that would hang. */
Test(process, output_of_many_mebibytes_is_collected)
{
    struct child c = { .fd = -1 };

    cr_expect_eq(run_child(&c, "head -c 5000000 /dev/zero | tr '\\0' x", 20), 0, "%s", c.last);
    cr_expect_eq(c.n, 5000000);
    child_free(&c);
}

Test(process, output_without_end_fails_and_does_not_block)
{
    struct child c = { .fd = -1 };

    cr_expect_eq(run_child(&c, "head -c 80M /dev/zero | tr '\\0' x", 50), CHILD_TOO_LONG);
    cr_expect(c.too_long && c.n == 64 << 20);
    cr_expect_str_eq(c.last, "it printed more than 64 MiB");
    cr_expect_eq(run_child(&c, "head -c 80M /dev/zero | tr '\\0' x; exit 3", 50), 3);
    cr_expect_eq(run_child(&c, "head -c 64M /dev/zero | tr '\\0' x", 50), 0);
    cr_expect_not(c.too_long);
    child_free(&c);
}

Test(process, a_child_that_takes_too_long_is_killed)
{
    struct child c = { .fd = -1 };

    cr_expect_eq(run_child(&c, "exec sleep 30", 0.1), 128 + SIGKILL);
    child_free(&c);
}

Test(process, a_program_that_does_not_exist_exits_with_127)
{
    struct child c = { .fd = -1 };
    char *argv[] = { "/nonexistent/program", NULL };
    const struct child_setup setup = { .argv = argv, .env = &env };
    int status;

    cr_assert_eq(child_start(&c, &setup, &err), TP_OK);
    waitpid(c.pid, &status, 0);
    cr_expect_eq(child_ended(&c, status), 127);
    cr_expect(strstr(c.last, "/nonexistent/program"), "%s", c.last);
    child_free(&c);
}

/* The new process gets a signal before it can do anything. */
Test(process, signals_are_blocked_from_the_first_moment)
{
    char *argv[] = { "sh", "-c", "exit 7", NULL };
    sigset_t mask;
    struct spawn s = { .argv = argv, .env = &env, .out = -1, .report = -1, .mask = &mask };
    int status, lived = 0;

    sigemptyset(&mask);
    sigaddset(&mask, SIGUSR2);
    for (int i = 0; i < TRIES; i++) {
        pid_t pid = spawn_start(&s);

        cr_assert(pid > 0 && kill(pid, SIGUSR2) == 0);
        cr_assert_eq(waitpid(pid, &status, 0), pid);
        lived += WIFEXITED(status) && WEXITSTATUS(status) == 7;
    }
    cr_expect_eq(lived, TRIES, "%d of %d lived", lived, TRIES);
    cr_assert_eq(sigprocmask(SIG_BLOCK, NULL, &mask), 0);
    cr_expect_not(sigismember(&mask, SIGUSR2), "this process blocks what it blocked before");
}

/* ---- sweeping ---- */

static pid_t sleeper(const char *id)
{
    char *argv[] = { "sleep", "30", NULL };
    struct spawn s = { .argv = argv, .env = &env, .out = -1, .report = -1 };
    pid_t pid;

    environment_set(&env, PROCESS_ID_ENV, id);
    pid = spawn_start(&s);
    cr_assert_gt(pid, 0);
    while (process_find(PROCESS_ID_ENV, id) != pid) /* until it has executed the program */
        sleep_ms(5);
    return pid;
}

Test(process, processes_are_found_by_their_environment)
{
    char first[64], second[64], all[64];
    pid_t a, b;
    int status;

    snprintf(first, sizeof first, "test%d.1", (int)getpid());
    snprintf(second, sizeof second, "test%d.11", (int)getpid());
    snprintf(all, sizeof all, "test%d.", (int)getpid());
    a = sleeper(first);
    b = sleeper(second);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, first, 0), 1, ".11 is not .1");
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, all, 0), 2);
    cr_expect_eq(process_sweep(PROCESS_SUPERVISOR_ENV, all, 0), 0);
    cr_expect(process_start(a) > 0 && process_state(a) != 0);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, first, SIGKILL), 1);
    waitpid(a, &status, 0);
    cr_expect(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, all, SIGKILL), 1);
    waitpid(b, &status, 0);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, all, 0), 0);
    cr_expect_eq(process_start(a), 0);
}

/* tp-run adds its mark as the last variable. */
Test(process, a_process_with_a_large_environment_is_found)
{
    static char longer[100001];
    char id[64], name[16];
    pid_t pid;

    memset(longer, 'x', sizeof longer - 1);
    for (int i = 0; i < 15; i++) {
        snprintf(name, sizeof name, "LONG%d", i);
        environment_set(&env, name, longer);
    }
    snprintf(id, sizeof id, "large%d.1", (int)getpid());
    pid = sleeper(id);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, id, SIGKILL), 1);
    cr_expect_eq(waitpid(pid, NULL, 0), pid);
}

/* A process that executes one program after the other. Its environment cannot be read while it
 * begins one. */
static pid_t start_again_and_again(const char *id)
{
    char path[64];
    char *argv[] = { path, NULL };
    struct spawn s = { .argv = argv, .env = &env, .out = -1, .report = -1 };
    FILE *f;
    pid_t pid;

    snprintf(path, sizeof path, "%s/again", dir);
    f = fopen(path, "w");
    cr_assert(f && fprintf(f, "#!/bin/sh\nexec %s\n", path) > 0);
    fclose(f);
    chmod(path, 0700);
    environment_set(&env, PROCESS_ID_ENV, id);
    pid = spawn_start(&s);
    cr_assert_gt(pid, 0);
    while (process_find(PROCESS_ID_ENV, id) != pid)
        sleep_ms(5);
    return pid;
}

Test(process, each_sweep_finds_a_process_that_executes_one_program_after_another)
{
    char id[64];
    pid_t pid;
    int found = 0;

    snprintf(id, sizeof id, "again%d.1", (int)getpid());
    pid = start_again_and_again(id);
    for (int i = 0; i < SWEEPS; i++)
        found += process_sweep(PROCESS_ID_ENV, id, 0);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, id, SIGKILL), 1);
    cr_expect_eq(waitpid(pid, NULL, 0), pid);
    cr_expect_eq(found, SWEEPS, "found by %d of %d sweeps", found, SWEEPS);
}

/* ---- the supervisor ---- */

/* Supervise a shell script. Returns the outcome that the supervisor writes. */
static struct supervisor_outcome supervise(char **argv)
{
    char path[64], id[32];
    struct supervisor_outcome o = { 0 };
    int status;
    pid_t pid;

    snprintf(path, sizeof path, "%s/exit", dir);
    snprintf(id, sizeof id, "sup%d.1", (int)getpid());
    pid = fork();
    if (pid == 0) {
        const struct supervisor_setup setup = {
            .argv = argv, .id = id, .exit_path = path, .env = &env
        };

        _exit(supervisor_run(&setup, &err));
    }
    waitpid(pid, &status, 0);
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == TP_OK);
    cr_assert_eq(supervisor_read(&o, path, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(process_sweep(PROCESS_ID_ENV, id, 0), 0, "processes are left");
    return o;
}

Test(process, a_supervisor_records_how_the_command_ended)
{
    struct supervisor_outcome o = supervise((char *[]){ "sh", "-c", "exit 75", NULL });

    cr_expect(o.started && o.exit_code == 75 && o.signal == 0);
    o = supervise((char *[]){ "sh", "-c", "kill -9 $$", NULL });
    cr_expect(o.started && o.exit_code == -1 && o.signal == SIGKILL);
    o = supervise((char *[]){ "/nonexistent/program", NULL });
    cr_expect(!o.started && o.exit_code == 2, "the exit code is the errno"); /* ENOENT */
}

Test(process, a_supervisor_kills_what_the_command_leaves)
{
    double begin = clock_seconds();
    struct supervisor_outcome o =
        supervise((char *[]){ "sh", "-c", "setsid sleep 30 & exit 0", NULL });

    cr_expect(o.started && o.exit_code == 0);
    cr_expect_lt(clock_seconds() - begin, 20);
}

/* Supervise a command that leaves a process which executes `script` again and again, and whose pid
 * is in the file pid_path. Returns whether the supervisor has ended it. */
static bool ends_what_executes(const char *script, const char *pid_path)
{
    struct arena a = { 0 };
    char *text, state;
    size_t size;
    pid_t pid;

    unlink(pid_path);
    supervise((char *[]){ "sh", "-c", "setsid $0 & until [ -s $1 ]; do :; done",
                          (char *)(uintptr_t)script, (char *)(uintptr_t)pid_path, NULL });
    cr_assert_eq(file_read_own(&text, &size, pid_path, 100, &a, &err), TP_OK, "%s", err.msg);
    pid = (pid_t)strtol(text, NULL, 10);
    arena_free(&a);
    cr_assert_gt(pid, 0);
    state = process_state(pid);
    if (state)
        kill(pid, SIGKILL);
    return state == 0 || state == 'Z';
}

Test(process, a_supervisor_kills_a_process_that_executes_one_program_after_another)
{
    char script[64], pid_path[64];
    int ended = 0;
    FILE *f;

    snprintf(script, sizeof script, "%s/again", dir);
    snprintf(pid_path, sizeof pid_path, "%s/pid", dir);
    f = fopen(script, "w");
    cr_assert(f && fprintf(f, "#!/bin/sh\n[ -s %s ] || echo $$ > %s\nexec %s\n", pid_path, pid_path,
                           script) > 0);
    fclose(f);
    chmod(script, 0700);
    for (int i = 0; i < TRIES; i++)
        ended += ends_what_executes(script, pid_path);
    cr_expect_eq(ended, TRIES, "%d of %d were ended", ended, TRIES);
}

Test(process, a_missing_or_damaged_outcome_is_refused)
{
    struct supervisor_outcome o;
    char path[64];

    snprintf(path, sizeof path, "%s/exit", dir);
    cr_expect_eq(supervisor_read(&o, path, &err), TP_E_NOTFOUND);
    cr_assert_eq(file_replace(path, "{\"exit_code\": 1}", 16, &err), TP_OK);
    cr_expect_eq(supervisor_read(&o, path, &err), TP_E_CORRUPT);
}

/* 4294967296 is 0 in 32 bits: a success. */
Test(process, an_outcome_that_no_command_has_is_refused)
{
    const char *const wrong[] = {
        "{\"exit_code\": 4294967296, \"signal\": 0, \"started\": true}",
        "{\"exit_code\": -1, \"signal\": 0, \"started\": true}",
        "{\"exit_code\": 0, \"signal\": 9, \"started\": true}",
        "{\"exit_code\": -1, \"signal\": 4294967305, \"started\": true}",
        "{\"exit_code\": 3, \"exit_code\": 0, \"signal\": 0, \"started\": true}",
    };
    struct supervisor_outcome o;
    char path[64];

    snprintf(path, sizeof path, "%s/exit", dir);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        cr_assert_eq(file_replace(path, wrong[i], strlen(wrong[i]), &err), TP_OK);
        cr_expect_eq(supervisor_read(&o, path, &err), TP_E_CORRUPT, "%s", wrong[i]);
    }
}
