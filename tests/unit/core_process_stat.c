/* tests/unit/core_process_stat.c - /proc/PID/stat is read correctly, also with a strange
 * process name. */
#include "core/process_stat.h"

#include <criterion/criterion.h>
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

Test(process_stat, shows_the_name_and_start_of_this_process)
{
    static const char name[] = "a) b (c) 7 (";
    struct process_stat self, by_pid;

    cr_assert_eq(prctl(PR_SET_NAME, name), 0);
    cr_assert(process_stat_self(&self));
    cr_assert(process_stat_read(&by_pid, getpid()));
    cr_expect_str_eq(self.name, name);
    cr_expect_eq(self.state, 'R');
    cr_expect_gt(self.start, 0);
    cr_expect_eq(self.start, by_pid.start);
}

/* What has no program never gets an environment; what has one may have an empty one. */
Test(process_stat, tells_an_empty_environment_from_none)
{
    struct process_stat self, child, kernel;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0)
        _exit(execve("/bin/sleep", (char *[]){ "sleep", "60", NULL }, (char *[]){ NULL }));
    cr_assert(process_stat_self(&self));
    cr_expect(self.has_program && self.env_bytes > 0);
    do
        cr_assert(process_stat_read(&child, pid) && child.has_program);
    while (child.env_bytes != 0);
    kill(pid, SIGKILL);
    cr_assert_eq(waitid(P_PID, (id_t)pid, &(siginfo_t){ 0 }, WEXITED | WNOWAIT), 0);
    cr_assert(process_stat_read(&child, pid));
    cr_expect(!child.has_program && child.env_bytes == -1);
    waitpid(pid, NULL, 0);
    if (process_stat_read(&kernel, 2) && strcmp(kernel.name, "kthreadd") == 0) /* no container */
        cr_expect(!kernel.has_program && kernel.env_bytes == -1);
}

Test(process_stat, shows_when_a_child_is_stopped_and_when_it_has_ended)
{
    struct process_stat parent, child;
    siginfo_t info;
    pid_t pid = fork();

    cr_assert_geq(pid, 0);
    if (pid == 0) {
        raise(SIGSTOP);
        _exit(7);
    }
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WSTOPPED), 0);
    cr_assert(process_stat_self(&parent));
    cr_assert(process_stat_read(&child, pid));
    cr_expect(child.state == 'T' && child.status == 0);
    cr_expect_geq(child.start, parent.start);
    kill(pid, SIGCONT);
    cr_assert_eq(waitid(P_PID, (id_t)pid, &info, WEXITED | WNOWAIT), 0);
    cr_assert(process_stat_read(&child, pid));
    cr_expect_eq(child.state, 'Z');
    cr_expect(WIFEXITED(child.status) && WEXITSTATUS(child.status) == 7);
    cr_assert_eq(waitpid(pid, NULL, 0), pid);
    child.state = 'R';
    cr_expect_not(process_stat_read(&child, pid));
    cr_expect(child.state == 0 && child.start == 0);
}
