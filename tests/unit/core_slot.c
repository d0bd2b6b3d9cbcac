/* tests/unit/core_slot.c - the progress slot: what is told is what is read, and costs nothing. */
#include "core/slot.h"

#include <criterion/criterion.h>
#include <limits.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "core/file.h"

static char dir[] = "/tmp/tp-slot-XXXXXX";
static struct tp_err err;

static void make_dir(void)
{
    cr_assert_not_null(mkdtemp(dir));
}

static void drop_dir(void)
{
    file_remove_tree(dir, &err);
}

TestSuite(slot, .init = make_dir, .fini = drop_dir);

Test(slot, reader_sees_what_the_writer_told)
{
    struct slot *s = NULL;
    struct slot_image m;
    char path[PATH_MAX];

    cr_assert_eq(slot_open(&s, dir, 3, 8, &err), TP_OK, "%s", err.msg);
    slot_path(path, sizeof path, dir, 3);
    cr_assert_eq(slot_read(&m, path, 3, &err), TP_OK, "%s", err.msg);
    cr_expect(m.step == -1 && isnan(m.loss) && m.phase == SLOT_INIT && m.world == 8);
    cr_expect_eq(m.pid, getpid());
    cr_expect_gt(m.pid_start, 0);
    slot_phase(s, SLOT_TRAIN);
    slot_collective(s, true);
    slot_collective(s, false);
    slot_collective(s, true);
    slot_step(s, 41, 2.5);
    slot_step(s, 42, 2.25);
    slot_saved(s, 40);
    cr_assert_eq(slot_read(&m, path, 3, &err), TP_OK, "%s", err.msg);
    cr_expect(m.step == 42 && m.loss == 2.25 && m.phase == SLOT_TRAIN && m.saved == 40);
    cr_expect(m.entered == 2 && m.left == 1 && m.step_len_ns > 0);
    slot_close(s);
    cr_assert_eq(slot_read(&m, path, 3, &err), TP_OK, "%s", err.msg);
    cr_expect_eq(m.phase, SLOT_DONE);
}

Test(slot, another_ranks_file_garbage_and_short_files_are_refused)
{
    struct slot *s = NULL;
    struct slot_image m;
    char path[PATH_MAX], junk[SLOT_BYTES];

    cr_assert_eq(slot_open(&s, dir, 1, 4, &err), TP_OK, "%s", err.msg);
    slot_path(path, sizeof path, dir, 1);
    cr_expect_eq(slot_read(&m, path, 2, &err), TP_E_CORRUPT);
    slot_path(path, sizeof path, dir, 9);
    cr_expect_eq(slot_read(&m, path, 9, &err), TP_E_NOTFOUND);
    memset(junk, 0x5a, sizeof junk);
    cr_assert_eq(file_write_new(path, junk, sizeof junk, &err), TP_OK);
    cr_expect_eq(slot_read(&m, path, 9, &err), TP_E_CORRUPT);
    cr_assert_eq(truncate(path, 100), 0);
    cr_expect_eq(slot_read(&m, path, 9, &err), TP_E_CORRUPT);
    slot_close(s);
}

Test(slot, without_a_directory_every_call_does_nothing)
{
    struct slot *s = (struct slot *)1;

    unsetenv(SLOT_DIR_ENV);
    cr_assert_eq(slot_open(&s, NULL, 0, 1, &err), TP_OK);
    cr_assert_null(s);
    slot_phase(s, SLOT_TRAIN);
    slot_collective(s, true);
    slot_step(s, 1, 1.0);
    slot_saved(s, 1);
    slot_close(s);
    cr_expect_eq(slot_open(&s, "/nonexistent/dir", 0, 1, &err), TP_E_IO);
}

static void *write_steps(void *arg)
{
    for (int64_t i = 0; i < 300000; i++)
        slot_step(arg, i, (double)i);
    return NULL;
}

Test(slot, step_and_loss_are_read_as_a_pair_while_they_change)
{
    struct slot *s = NULL;
    struct slot_image m;
    char path[PATH_MAX];
    pthread_t writer;
    int64_t seen = 0, last = -1;

    cr_assert_eq(slot_open(&s, dir, 0, 1, &err), TP_OK);
    slot_path(path, sizeof path, dir, 0);
    pthread_create(&writer, NULL, write_steps, s);
    while (last < 299999) {
        cr_assert_eq(slot_read(&m, path, 0, &err), TP_OK, "%s", err.msg);
        cr_assert_geq(m.step, last, "steps never go back");
        /* loss is stored before its step: at most one ahead */
        if (m.step >= 0)
            cr_assert(m.loss - (double)m.step >= 0 && m.loss - (double)m.step <= 1,
                      "step %ld has loss %g", (long)m.step, m.loss);
        last = m.step;
        seen++;
    }
    pthread_join(writer, NULL);
    slot_close(s);
    cr_expect_gt(seen, 1);
}
