/* tests/unit/orchestrator_memory_dir.c - folders of heartbeats are removed when nobody uses them,
 * and no others. */
#include "orchestrator/process/memory_dir.h"

#include <fcntl.h>
#include <sys/stat.h>

#include "core/heartbeat.h"
#include "core/private_dir.h"
#include "temp_dir.h"

TestSuite(memory_dir, .init = temp_dir_make, .fini = temp_dir_remove);

static struct tp_err err;

/* Make a folder that was last changed long ago. The caller closes it. */
static int make_old(const char *name)
{
    int fd;

    cr_assert_eq(private_dir_make(&fd, temp_path(name), &err), TP_OK, "%s", err.msg);
    cr_assert_eq(futimens(fd, (struct timespec[2]){ { .tv_sec = 1 }, { .tv_sec = 1 } }), 0);
    return fd;
}

static bool is_there(const char *name)
{
    return access(temp_path(name), F_OK) == 0;
}

Test(memory_dir, a_folder_is_removed_when_no_process_holds_it)
{
    int fd = make_old("tp-run-a");

    memory_dir_hold(fd);
    memory_dir_clean(temp_dir, 100);
    cr_expect(is_there("tp-run-a"), "this process holds it");
    close(fd);
    memory_dir_clean(temp_dir, 100);
    cr_expect_not(is_there("tp-run-a"));
}

Test(memory_dir, a_new_folder_stays)
{
    int fd;

    cr_assert_eq(private_dir_make(&fd, temp_path("tp-run-a"), &err), TP_OK, "%s", err.msg);
    close(fd);
    memory_dir_clean(temp_dir, 100);
    cr_expect(is_there("tp-run-a"), "its owner locks it soon");
}

Test(memory_dir, a_folder_whose_ranks_have_reported_just_now_stays)
{
    struct heartbeat *h;
    int fd;

    close(make_old("tp-run-a"));
    cr_assert_eq(heartbeat_open(&h, temp_path("tp-run-a"), 3, 4, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(private_dir_open(&fd, temp_path("tp-run-a"), &err), TP_OK, "%s", err.msg);
    cr_assert_eq(futimens(fd, (struct timespec[2]){ { .tv_sec = 1 }, { .tv_sec = 1 } }), 0);
    close(fd);
    heartbeat_step(h, 5, 1.5);
    heartbeat_close(h, false);
    memory_dir_clean(temp_dir, 100);
    cr_expect(is_there("tp-run-a/rank-00003"), "the job's next tp-run reads it");
    usleep(200000);
    memory_dir_clean(temp_dir, 0.1);
    cr_expect_not(is_there("tp-run-a"));
}

Test(memory_dir, what_is_not_this_users_folder_stays)
{
    int fd = make_old("tp-run-open");

    fchmod(fd, 0777); /* others may have changed it */
    close(fd);
    close(make_old("tp-relay-a"));
    close(make_old("victim"));
    cr_assert_eq(symlink("victim", temp_path("tp-run-link")), 0);
    memory_dir_clean(temp_dir, 100);
    cr_expect(is_there("tp-run-open") && is_there("tp-relay-a") && is_there("victim"));
    cr_expect(is_there("tp-run-link"));
}

Test(memory_dir, a_path_elsewhere_is_not_held)
{
    int fd = make_old("tp-run-a");

    cr_expect_not(memory_dir_is("/home/job.run/heartbeats/3") || memory_dir_is("/dev/shmem/x"));
    cr_expect(memory_dir_is(MEMORY_DIR_PARENT "/tp-run-0123456789abcdef"));
    memory_dir_hold_path(NULL);
    memory_dir_hold_path("/nowhere");
    close(fd);
    if (memory_dir_is(temp_dir)) {
        memory_dir_hold_path(temp_path("tp-run-a"));
        memory_dir_clean(temp_dir, 100);
        cr_expect(is_there("tp-run-a"));
    }
}
