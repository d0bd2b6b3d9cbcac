/* tests/unit/orchestrator_checkpoint_selection.c - the checkpoint that an attempt starts from, and
 * the wait for the lock of its root.
 *
 * covers: orchestrator/plan/root_wait */
#include "orchestrator/plan/checkpoint_selection.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/root_lock.h"
#include "core/file.h"
#include "orchestrator/plan/root_wait.h"
#include "tests/unit/fixture.h"
#include "tests/unit/temp_dir.h"

static char root[64];
static struct tp_err err;
static struct arena arena;

static void setup(void)
{
    temp_dir_make();
    snprintf(root, sizeof root, "%s/ckpt", temp_dir);
}

static void teardown(void)
{
    arena_free(&arena);
    temp_dir_remove();
}

TestSuite(checkpoint_selection, .init = setup, .fini = teardown);

static void save(int64_t step, int tp)
{
    static struct tensor tensors[] = { { .group = "param",
                                         .name = "w",
                                         .dtype = DTYPE_F32,
                                         .ndim = 2,
                                         .shape = { 6, 4 },
                                         .placement = { .dim = 0, .unit = 1, .blocks = 1 } } };
    struct spec s = spec_default();
    struct layout l;

    s.tp = tp;
    cr_assert_eq(layout_make(&l, &s, 1, tensors, 1, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(fixture_checkpoint(root, step, &l, NULL, 7, false, &err), TP_OK, "%s", err.msg);
}

static struct checkpoint_selection select_one(void)
{
    struct checkpoint_selection c;

    cr_assert_eq(checkpoint_select(&c, root, &err), TP_OK, "%s", err.msg);
    return c;
}

Test(checkpoint_selection, a_root_that_does_not_exist_has_no_checkpoint)
{
    struct checkpoint_selection c = select_one();

    cr_expect(c.step == -1 && !c.any_ever);
}

Test(checkpoint_selection, the_newest_complete_step_is_selected_with_its_layout)
{
    struct checkpoint_selection c;
    char path[128];

    save(10, 1);
    save(20, 2);
    snprintf(path, sizeof path, "%s/step-00000030", root); /* incomplete */
    cr_assert_eq(file_make_dirs(path, &err), TP_OK);
    c = select_one();
    cr_expect(c.step == 20 && c.spec.tp == 2 && c.bytes > 0 && c.any_ever);
    cr_expect(strstr(c.dir, "step-00000020"));
}

Test(checkpoint_selection, a_quarantined_step_is_not_selected_again)
{
    struct checkpoint_selection c;
    char to[PATH_MAX], again[PATH_MAX];

    save(10, 1);
    save(20, 2);
    c = select_one();
    cr_assert_eq(checkpoint_quarantine(to, &c, root, &err), TP_OK, "%s", err.msg);
    cr_expect(file_is_dir(to) && !file_exists(c.dir));
    cr_expect_eq(select_one().step, 10);
    save(20, 2); /* it was saved again and is bad again: both are kept */
    c = select_one();
    cr_assert_eq(checkpoint_quarantine(again, &c, root, &err), TP_OK, "%s", err.msg);
    cr_expect(file_is_dir(to) && file_is_dir(again));
    c = select_one();
    cr_assert_eq(checkpoint_quarantine(to, &c, root, &err), TP_OK);
    c = select_one();
    cr_expect(c.step == -1 && c.any_ever, "there were checkpoints");
}

/* ---- the root's lock ---- */

Test(checkpoint_selection, a_lock_held_for_long_is_reported_once_with_its_holder)
{
    struct root_wait w = { 0 };
    struct tp_err who;
    char name[32];
    bool report;
    int fd;

    save(10, 1);
    cr_expect(!root_wait_is_locked(&w, root, 100, &report, &who) && !report);
    cr_assert_eq(root_lock(&fd, root, &(struct root_lock_wait){ 0 }, &err), TP_OK, "%s", err.msg);
    cr_expect(root_wait_is_locked(&w, root, 101, &report, &who) && !report,
              "a short wait is not reported");
    cr_expect(root_wait_is_locked(&w, root, 104, &report, &who) && report);
    snprintf(name, sizeof name, "%d", (int)getpid());
    cr_expect(strstr(who.msg, name), "%s", who.msg);
    cr_expect(root_wait_is_locked(&w, root, 110, &report, &who) && !report, "once");
    close(fd);
    cr_expect(!root_wait_is_locked(&w, root, 111, &report, &who) && !report);
    cr_assert_eq(root_lock(&fd, root, &(struct root_lock_wait){ 0 }, &err), TP_OK);
    cr_expect(root_wait_is_locked(&w, root, 112, &report, &who) && !report,
              "a new wait starts from zero");
    close(fd);
}
