/* tests/unit/ckpt_root_lock.c - one process at a time holds ROOT/lock; a dead one does not. */
#include "ckpt/root_lock.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/stop.h"
#include "tests/unit/temp_dir.h"

static const struct root_lock_wait silent = { 0 };

TestSuite(root_lock, .init = temp_dir_make, .fini = temp_dir_remove);

/* Start a process that holds the lock until it is killed, or for 0.3 s more once it gets SIGUSR1.
 * Returns when it has the lock. */
static pid_t start_holder(void)
{
    int ready[2], got;
    sigset_t usr1;
    char byte;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        struct tp_err err;
        int fd;

        prctl(PR_SET_PDEATHSIG, SIGKILL); /* end also when the test fails */
        sigemptyset(&usr1);
        sigaddset(&usr1, SIGUSR1);
        sigprocmask(SIG_BLOCK, &usr1, NULL);
        if (root_lock(&fd, temp_dir, &silent, &err) == TP_OK && write(ready[1], "x", 1) == 1 &&
            sigwait(&usr1, &got) == 0)
            usleep(300000);
        _exit(0);
    }
    close(ready[1]);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    return pid;
}

static void end_holder(pid_t pid)
{
    kill(pid, SIGKILL);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
}

/* What a wait said. The process that holds the lock ends soon after it. */
struct heard {
    pid_t holder;
    int n;
    char sentence[TP_ERR_MAX];
};

static void hear(void *ctx, const char *sentence)
{
    struct heard *h = ctx;

    h->n++;
    snprintf(h->sentence, sizeof h->sentence, "%s", sentence);
    kill(h->holder, SIGUSR1);
}

Test(root_lock, a_wait_lasts_until_the_holder_ends_and_is_announced_once, .timeout = 60)
{
    struct heard heard = { .holder = start_holder() };
    const struct root_lock_wait wait = { hear, &heard, 0 };
    struct tp_err err = { 0 };
    char pid_text[32];
    int fd = -1;

    cr_assert_eq(root_lock(&fd, temp_dir, &wait, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(waitpid(heard.holder, NULL, 0), heard.holder);
    snprintf(pid_text, sizeof pid_text, "process %d ", (int)heard.holder);
    cr_expect_eq(heard.n, 1, "%d sentences", heard.n);
    cr_expect(strstr(heard.sentence, pid_text), "%s", heard.sentence);
    close(fd);
    cr_assert_eq(root_lock(&fd, temp_dir, &wait, &err), TP_OK);
    cr_expect_eq(heard.n, 1, "there was no second wait");
    close(fd);
}

Test(root_lock, is_free_when_it_is_closed_and_when_its_holder_is_killed, .timeout = 60)
{
    struct tp_err err = { 0 };
    int first = -1, second = -1;

    cr_assert_eq(root_lock(&first, temp_dir, &silent, &err), TP_OK, "%s", err.msg);
    close(first);
    cr_assert_eq(root_lock(&second, temp_dir, &silent, &err), TP_OK, "%s", err.msg);
    close(second);
    end_holder(start_holder());
    cr_assert_eq(root_lock(&first, temp_dir, &silent, &err), TP_OK, "%s", err.msg);
    close(first);
}

/* A process that removes an empty root removes the file of the lock, and creates it again when
 * another process has begun there. */
Test(root_lock, who_waited_for_a_file_that_was_removed_has_the_lock_of_the_new_one, .timeout = 60)
{
    struct tp_err err = { 0 };
    int ready[2], first = -1, second = -1;
    char byte;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    cr_assert_eq(root_lock(&first, temp_dir, &silent, &err), TP_OK, "%s", err.msg);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        close(first);
        if (write(ready[1], "w", 1) == 1 && root_lock(&second, temp_dir, &silent, &err) == TP_OK &&
            write(ready[1], "x", 1) == 1)
            pause();
        _exit(0);
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    usleep(200000); /* so that it has opened the file */
    cr_assert_eq(unlink(temp_path("lock")), 0);
    temp_write("lock", "", 0);
    close(first);
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    cr_expect_not(root_lock_try(&second, temp_dir), "two processes hold the lock");
    end_holder(pid);
}

Test(root_lock, a_writer_whose_root_was_removed_while_it_waited_creates_it_again, .timeout = 60)
{
    const char *root = temp_path("root");
    struct tp_err err = { 0 };
    int ready[2], lock = -1, status = -1;
    char byte;
    pid_t pid;

    cr_assert_eq(pipe(ready), 0);
    cr_assert_eq(root_lock_make(&lock, root, &silent, &err), TP_OK, "%s", err.msg);
    pid = fork();
    cr_assert_geq(pid, 0);
    if (pid == 0) {
        close(lock);
        _exit(write(ready[1], "w", 1) != 1 || root_lock_make(&lock, root, &silent, &err) != TP_OK);
    }
    cr_assert_eq(read(ready[0], &byte, 1), 1);
    usleep(200000); /* so that it has opened the file */
    cr_assert_eq(unlink(temp_path("root/lock")), 0);
    cr_assert_eq(rmdir(root), 0);
    close(lock);
    cr_assert_eq(waitpid(pid, &status, 0), pid);
    cr_expect_eq(status, 0);
    cr_expect_eq(access(temp_path("root/lock"), F_OK), 0);
}

/* Each of several processes reads a number and writes it back increased by one. */
Test(root_lock, no_two_processes_hold_it_at_once, .timeout = 120)
{
    enum { PROCESSES = 4, ROUNDS = 25 };
    char path[PATH_MAX];
    pid_t pids[PROCESSES];
    int n = 0;
    FILE *f;

    temp_write("number", "0\n", 2);
    snprintf(path, sizeof path, "%s", temp_path("number"));
    for (int i = 0; i < PROCESSES; i++)
        if ((pids[i] = fork()) == 0) {
            for (int k = 0; k < ROUNDS; k++) {
                struct tp_err err;
                int fd;

                if (root_lock(&fd, temp_dir, &silent, &err) || !(f = fopen(path, "r+")) ||
                    fscanf(f, "%d", &n) != 1)
                    _exit(1);
                usleep(1000);
                rewind(f);
                fprintf(f, "%d\n", n + 1);
                fclose(f);
                close(fd);
            }
            _exit(0);
        }
    for (int i = 0; i < PROCESSES; i++) {
        int status;

        cr_assert_eq(waitpid(pids[i], &status, 0), pids[i]);
        cr_assert_eq(status, 0);
    }
    f = fopen(path, "r");
    cr_assert_eq(fscanf(f, "%d", &n), 1);
    fclose(f);
    cr_assert_eq(n, PROCESSES * ROUNDS);
}

Test(root_lock, names_its_holder_without_waiting, .timeout = 60)
{
    struct tp_err err = { 0 };
    char pid_text[32];
    pid_t holder;
    int fd;

    cr_expect_not(root_lock_is_held(temp_dir, &err), "no process has made the lock yet");
    cr_expect_not(root_lock_is_held("/nonexistent", &err));
    cr_assert_eq(root_lock(&fd, temp_dir, &silent, &err), TP_OK);
    close(fd);
    cr_expect_not(root_lock_is_held(temp_dir, &err));
    holder = start_holder();
    cr_assert(root_lock_is_held(temp_dir, &err));
    snprintf(pid_text, sizeof pid_text, "process %d ", (int)holder);
    cr_expect(strstr(err.msg, pid_text) && strstr(err.msg, "/lock"), "%s", err.msg);
    end_holder(holder);
    cr_expect_not(root_lock_is_held(temp_dir, &err));
}

Test(root_lock, the_wait_for_a_stopped_holder_ends, .timeout = 60)
{
    struct tp_err err = { 0 };
    pid_t holder = start_holder();
    double start = clock_seconds();
    int fd = -1;

    cr_assert_eq(kill(holder, SIGSTOP), 0);
    cr_assert_eq(root_lock(&fd, temp_dir, &silent, &err), TP_E_IO);
    cr_assert(strstr(err.msg, "stopped"), "%s", err.msg);
    cr_assert_eq(fd, -1);
    cr_assert_gt(clock_seconds() - start, 9);
    end_holder(holder);
}

Test(root_lock, a_request_to_stop_ends_the_wait, .timeout = 60)
{
    const struct root_lock_wait patient = { NULL, NULL, 2 };
    struct tp_err err = { 0 };
    pid_t holder = start_holder();
    double start;
    int fd = -1;

    stop_listen();
    kill(getpid(), SIGUSR1);
    cr_assert_eq(root_lock(&fd, temp_dir, &silent, &err), TP_E_STOPPED);
    cr_expect(strstr(err.msg, "stopped on request") && strstr(err.msg, "/lock"), "%s", err.msg);
    start = clock_seconds();
    cr_assert_eq(root_lock(&fd, temp_dir, &patient, &err), TP_E_STOPPED);
    cr_expect_geq(clock_seconds() - start, 2);
    end_holder(holder);
    cr_assert_eq(root_lock(&fd, temp_dir, &silent, &err), TP_OK, "a free lock needs no wait");
    close(fd);
}

Test(root_lock, try_does_not_wait, .timeout = 60)
{
    pid_t holder = start_holder();
    int fd = -1;

    cr_expect_not(root_lock_try(&fd, temp_dir));
    cr_expect_eq(fd, -1);
    end_holder(holder);
    cr_assert(root_lock_try(&fd, temp_dir));
    close(fd);
}

Test(root_lock, a_link_in_its_place_is_not_followed)
{
    struct tp_err err = { 0 };
    int fd = -1;

    cr_assert_eq(symlink("/tmp", temp_path("lock")), 0);
    cr_expect_eq(root_lock(&fd, temp_dir, &silent, &err), TP_E_IO);
    cr_expect_eq(root_lock(&fd, "/nonexistent", &silent, &err), TP_E_IO);
    cr_expect_eq(fd, -1);
}

Test(root_lock, recognizes_the_errors_of_file_systems_without_locks)
{
    cr_expect(root_lock_unsupported(ENOLCK) && root_lock_unsupported(EOPNOTSUPP) &&
              root_lock_unsupported(ENOSYS));
    cr_expect_not(root_lock_unsupported(EWOULDBLOCK));
    cr_expect_not(root_lock_unsupported(EINTR));
}
