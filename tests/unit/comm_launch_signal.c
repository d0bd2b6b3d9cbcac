/* tests/unit/comm_launch_signal.c - what signals do to a job of our own launcher. */
#include <stdio.h>
#include <string.h>

#include "core/stop.h"
#include "tests/unit/launched_job.h"

static int stops_when_asked(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    int64_t stop = 0;

    for (int i = 0; !stop && i < 4000; i++) {
        sleep_ms(5);
        stop = stop_requested();
        if (control_max_i64(comm_control(ranks), &stop, 1, err))
            return 3;
    }
    b->mark += stop_requested();
    comm_close(ranks, TP_E_STOPPED);
    return stop ? 75 : 0;
}

Test(comm_launch_signal, a_signal_asks_all_ranks_to_save_and_stop, .timeout = 60)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGUSR1, SIGHUP };

    signal(SIGHUP, SIG_DFL); /* the tests themselves may run under nohup */
    for (int i = 0; i < 4; i++) {
        struct board *b = board_new();
        pid_t pid = launcher(stops_when_asked, b);

        kill(pid, signals[i]);
        cr_expect_eq(wait_code(pid), 75, "signal %d", signals[i]);
        cr_expect_gt(b->mark, 0);
        expect_none_left(b);
    }
}

Test(comm_launch_signal, ctrl_c_reaches_the_ranks_only_through_the_launcher, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(stops_when_asked, b);

    for (int r = 0; r < N; r++) {
        kill(b->pids[r], SIGINT);
        kill(b->pids[r], SIGTERM);
        kill(b->pids[r], SIGHUP);
    }
    sleep_ms(50);
    cr_expect_eq(kill(pid, 0), 0);
    kill(pid, SIGINT);
    cr_expect_eq(wait_code(pid), 75);
}

/* Without a request these ranks end with 0. */
static int ends_unless_asked(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    (void)b;
    sleep_ms(200);
    if (stop_requested())
        return 75;
    if (control_barrier(comm_control(ranks), err))
        return 3;
    comm_close(ranks, TP_OK);
    return 0;
}

Test(comm_launch_signal, under_nohup_a_hangup_is_no_request, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid;

    signal(SIGHUP, SIG_IGN);
    pid = launcher(ends_unless_asked, b);
    kill(pid, SIGHUP);
    cr_expect_eq(wait_code(pid), 0);
}

static int never_ends(struct comm_world *ranks, struct board *b, struct tp_err *err)
{
    (void)b;
    while (rank_of(ranks) == 0)
        sleep_ms(1000);
    return control_barrier(comm_control(ranks), err) ? 3 : 0;
}

Test(comm_launch_signal, a_second_interrupt_ends_at_once, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(never_ends, b);

    kill(pid, SIGINT);
    sleep_ms(300); /* what comes within 200 ms is the same interrupt */
    cr_expect_eq(kill(b->pids[0], 0), 0);
    kill(pid, SIGINT);
    cr_expect_eq(wait_code(pid), 100);
    expect_none_left(b);
}

Test(comm_launch_signal, ranks_die_with_their_launcher, .timeout = 60)
{
    struct board *b = board_new();
    pid_t pid = launcher(never_ends, b);

    kill(pid, SIGKILL);
    cr_expect_eq(wait_code(pid), 1000 + SIGKILL);
    for (int r = 0; r < N; r++) {
        int i = 0;

        /* The process that adopts the ranks may reap them late. A zombie counts as ended. */
        for (; i < 6000 && kill(b->pids[r], 0) == 0; i++) {
            char path[64], line[256] = "";
            FILE *f;

            snprintf(path, sizeof path, "/proc/%d/stat", (int)b->pids[r]);
            if (!(f = fopen(path, "r")) || !fgets(line, sizeof line, f) || strstr(line, ") Z "))
                i = 10000;
            if (f)
                fclose(f);
            sleep_ms(5);
        }
        cr_expect(i != 6000, "rank %d is still alive", r);
    }
}

/* The launcher forwards a request as soon as it has forked the ranks, when they have done nothing
 * yet. */
Test(comm_launch_signal, a_request_while_ranks_start_does_not_kill_them, .timeout = 120)
{
    for (int i = 0; i < 20; i++) {
        struct job j = { .board = board_new() };
        pid_t pid = fork();

        if (pid == 0) {
            sigset_t term;

            sigemptyset(&term);
            sigaddset(&term, SIGTERM);
            sigprocmask(SIG_BLOCK, &term, NULL);
            kill(getpid(), SIGTERM); /* pending until the launcher asks */
            job_run_on(&j, stops_when_asked);
            _exit(j.st ? 100 : j.code);
        }
        cr_assert_eq(wait_code(pid), 75, "try %d", i);
        expect_none_left(j.board);
    }
}

Test(comm_launch_signal, a_request_after_the_end_does_not_replace_the_exit_code, .timeout = 60)
{
    static const int signals[] = { SIGTERM, SIGINT, SIGUSR1 };

    for (int i = 0; i < 3; i++) {
        struct job j = { .board = board_new() };
        pid_t pid = fork();

        if (pid == 0) {
            job_run_on(&j, succeeds);
            kill(getpid(), signals[i]);
            _exit(j.st ? 100 : 42);
        }
        cr_expect_eq(wait_code(pid), 42, "signal %d", signals[i]);
    }
}
