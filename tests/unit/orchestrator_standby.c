/* tests/unit/orchestrator_standby.c - when the standby of a tp-run takes over, and when it ends.
 *
 * covers: orchestrator/process/home */
#include "orchestrator/process/standby.h"

#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/file.h"
#include "tests/unit/temp_dir.h"

static struct tp_err err;
static int folder; /* dir, open */

static void setup(void)
{
    temp_dir_make();
    folder = open(temp_dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    cr_assert_geq(folder, 0);
}

TestSuite(standby, .init = setup, .fini = temp_dir_remove);

/* Record that tp-run is on this node, in this job of the scheduler. */
static void put_home(long job, const char *node)
{
    struct home home = { .host = "somewhere", .job = job };

    strcpy(home.node, node);
    cr_assert_eq(home_write(&home, folder, &err), TP_OK, "%s", err.msg);
}

struct looks {
    int n;
    enum standby_verdict then; /* the verdict of the third look, and of later ones */
    enum standby_verdict once; /* the verdict of the first look, which no other look confirms */
    bool ends;                 /* tp-run ends during the first look */
};

static enum standby_verdict look(void *ctx, const struct home *home)
{
    struct looks *l = ctx;

    cr_assert_str_eq(home->node, "n1");
    l->n++;
    if (l->ends)
        home_remove(folder);
    return l->n == 1 ? l->once : l->n < 3 ? STANDBY_WAIT : l->then;
}

static bool wait_on_n2(struct looks *l)
{
    const struct standby s = {
        .state = temp_dir, .job = 42, .node = "n2", .period = 0.01, .look = look, .ctx = l
    };

    return standby_wait(&s);
}

Test(standby, it_takes_over_when_the_node_is_lost)
{
    struct looks l = { .then = STANDBY_TAKE_OVER };

    put_home(42, "n1");
    cr_expect(wait_on_n2(&l));
    cr_expect_eq(l.n, 4, "it waits while nothing is known, and then looks twice");
}

Test(standby, it_ends_with_the_job)
{
    struct looks l = { .then = STANDBY_END };

    put_home(42, "n1");
    cr_expect(!wait_on_n2(&l));
    cr_expect_eq(l.n, 4);
}

Test(standby, one_answer_of_the_scheduler_is_not_believed)
{
    static const enum standby_verdict verdicts[] = { STANDBY_TAKE_OVER, STANDBY_END };

    put_home(42, "n1");
    for (int i = 0; i < 2; i++) {
        struct looks l = { .once = verdicts[i], .then = verdicts[1 - i] };

        cr_expect_eq(wait_on_n2(&l), verdicts[1 - i] == STANDBY_TAKE_OVER);
        cr_expect_eq(l.n, 4);
    }
}

Test(standby, it_ends_when_tp_run_has_ended)
{
    struct looks l = { .ends = true };

    put_home(42, "n1");
    cr_expect(!wait_on_n2(&l));
    cr_expect_eq(l.n, 1);
}

Test(standby, it_ends_when_tp_run_is_in_another_job_or_on_this_node)
{
    struct looks l = { 0 };

    put_home(43, "n1");
    cr_expect(!wait_on_n2(&l));
    put_home(42, "n2");
    cr_expect(!wait_on_n2(&l));
    cr_expect_eq(l.n, 0);
}

Test(standby, home_is_read_as_it_was_written)
{
    struct home here, home;

    cr_expect(!home_read(&home, temp_dir), "no tp-run runs the job");
    home_here(&here, 0, "n1");
    cr_expect_str_eq(here.node, "", "without a scheduler's job there is no node");
    cr_assert_eq(home_write(&here, folder, &err), TP_OK);
    cr_assert(home_read(&home, temp_dir));
    cr_expect(strcmp(home.host, here.host) == 0 && home.job == 0 && !home.node[0]);
    cr_expect(!home_is_elsewhere(&home, temp_dir));
    put_home(42, "n1");
    cr_expect(home_is_elsewhere(&home, temp_dir) && home.job == 42 && strcmp(home.node, "n1") == 0);
    home_remove(folder);
    cr_expect(!home_is_elsewhere(&home, temp_dir));
}

Test(standby, a_damaged_home_file_does_no_harm)
{
    static const char *const texts[] = { "", "\n", "host", "host x", " host 1 ", "a b c d e f" };
    char path[64];
    struct home home;

    snprintf(path, sizeof path, "%s/home", temp_dir);
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        cr_assert_eq(file_replace(path, texts[i], strlen(texts[i]), &err), TP_OK);
        cr_expect_eq(home_read(&home, temp_dir), strpbrk(texts[i], "ah") != NULL, "%s", texts[i]);
        cr_expect(home.job == 0 || home.job == 1);
    }
}
