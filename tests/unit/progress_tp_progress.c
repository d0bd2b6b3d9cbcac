/* tests/unit/progress_tp_progress.c - the calls of libtp-progress reach the watcher. */
#include "progress/tp_progress.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <unistd.h>

#include "core/heartbeat.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;

static void make_dir(void)
{
    temp_dir_make();
    setenv("TP_PROGRESS_DIR", temp_dir, 1);
}

TestSuite(tp_progress, .init = make_dir, .fini = temp_dir_remove);

static struct heartbeat_status status_of(int rank)
{
    struct heartbeat_status s;
    int folder = open(temp_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC), fd = -1;

    cr_assert_eq(heartbeat_find(&fd, folder, rank, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(heartbeat_read(&s, fd, rank, &err), TP_OK, "%s", err.msg);
    close(fd);
    close(folder);
    return s;
}

Test(tp_progress, a_watcher_sees_what_a_trainer_reports)
{
    struct tp_progress *p = tp_progress_open(1, 4);
    struct heartbeat_status s;

    cr_assert_not_null(p);
    s = status_of(1);
    cr_expect(s.world == 4 && s.phase == HEARTBEAT_INIT && s.step == -1);
    tp_progress_phase(p, TP_PHASE_TRAIN);
    tp_progress_collective(p, 1);
    tp_progress_step(p, 7, 1.5);
    s = status_of(1);
    cr_expect(s.phase == HEARTBEAT_TRAIN && s.step == 7 && s.loss == 1.5);
    cr_expect(s.entered == 1 && s.left == 0);
    tp_progress_collective(p, 0);
    tp_progress_phase(p, (enum tp_phase)99); /* a number from a newer header is ignored */
    s = status_of(1);
    cr_expect(s.left == 1 && s.phase == HEARTBEAT_TRAIN);
    tp_progress_close(p);
    cr_expect_eq(status_of(1).phase, HEARTBEAT_DONE);
}

Test(tp_progress, ranks_outside_the_world_are_refused)
{
    cr_expect_null(tp_progress_open(-1, 4));
    cr_expect_null(tp_progress_open(4, 4));
    cr_expect_null(tp_progress_open(0, 0));
}

Test(tp_progress, without_tp_run_every_call_does_nothing)
{
    struct tp_progress *p;

    unsetenv("TP_PROGRESS_DIR");
    p = tp_progress_open(0, 1);
    cr_expect_null(p);
    tp_progress_phase(p, TP_PHASE_TRAIN);
    tp_progress_collective(p, 1);
    tp_progress_step(p, 1, NAN);
    tp_progress_close(p);
}
