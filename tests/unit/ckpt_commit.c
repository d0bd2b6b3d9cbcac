/* tests/unit/ckpt_commit.c - a step is there whole or not at all. */
#include <criterion/criterion.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ckpt/verify.h"
#include "core/file.h"
#include "tests/unit/fixture.h"

static char top[] = "/tmp/tp-commit-XXXXXX", root[64];

static void make_root(void)
{
    cr_assert(mkdtemp(top) != NULL);
    snprintf(root, sizeof root, "%s/root", top);
}

static void remove_root(void)
{
    struct tp_err err;

    file_remove_tree(top, &err);
}

TestSuite(commit, .init = make_root, .fini = remove_root);

static struct tensor tensors[] = {
    { .name = "w",
      .group = "param",
      .ndim = 2,
      .shape = { 6, 4 },
      .placement = { -1, 1, 1, 0, 0 } },
};

static struct layout one_tensor(void)
{
    static struct arena arena;
    struct spec s = spec_default();
    struct tp_err err;
    struct layout l;

    cr_assert_eq(layout_make(&l, &s, 1, tensors, 1, &arena, &err), TP_OK);
    return l;
}

static tp_status save(int64_t step, uint64_t seed, bool force, struct tp_err *err)
{
    struct layout l = one_tensor();

    return fixture_checkpoint(root, step, &l, NULL, seed, force, err);
}

static int count_entries(bool complete_only)
{
    struct arena arena = { 0 };
    struct ckpt_step *steps;
    struct tp_err err;
    int n = 0, count = 0;

    cr_assert_eq(ckpt_list(&steps, &n, root, &arena, &err), TP_OK);
    for (int i = 0; i < n; i++)
        count += steps[i].complete || !complete_only;
    arena_free(&arena);
    return count;
}

/* The seed that the only step at `path` was written with, by its manifest; all bytes verified. */
static uint64_t seed_of(const char *path, int64_t step)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    char dir[PATH_MAX];
    struct verify v = { .dir = dir, .jobs = 1 };
    uint64_t seed;

    cr_assert_eq(ckpt_locate(dir, path, step, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_verify(&v, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(v.findings, 0);
    seed = v.manifest.state.seed;
    arena_free(&arena);
    return seed;
}

Test(commit, a_step_appears_once_and_is_replaced_only_by_force)
{
    struct tp_err err = { 0 };
    char link[PATH_MAX], target[PATH_MAX] = "";

    cr_assert_eq(save(5, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(save(5, 2, false, &err), TP_E_EXISTS);
    cr_assert_eq(seed_of(root, 5), 1);
    cr_assert_eq(save(5, 2, true, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(seed_of(root, 5), 2);
    cr_assert_eq(save(7, 3, false, &err), TP_OK);
    cr_assert_eq(save(6, 4, false, &err), TP_OK);
    cr_assert_eq(count_entries(false), 3);
    snprintf(link, sizeof link, "%s/latest", root);
    cr_assert_gt(readlink(link, target, sizeof target - 1), 0);
    cr_assert_str_eq(target, "step-00000007");
    cr_assert_eq(seed_of(link, -1), 3);
}

Test(commit, abort_leaves_nothing)
{
    struct ckpt_txn t;
    struct tp_err err = { 0 };

    cr_assert_eq(ckpt_begin(&t, root, 1, 0, false, &err), TP_OK, "%s", err.msg);
    cr_assert(file_is_dir(t.tmp));
    ckpt_abort(&t);
    ckpt_abort(&t);
    cr_assert_not(file_exists(root));
}

Test(commit, an_older_job_cannot_commit)
{
    struct manifest m = { .layout = one_tensor(), .state = { .dtype = "fp32" } };
    struct ckpt_txn t;
    struct tp_err err = { 0 };
    int64_t old, new;

    cr_assert_eq(ckpt_claim(&old, root, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(ckpt_begin(&t, root, 3, old, false, &err), TP_OK);
    cr_assert_eq(ckpt_claim(&new, root, &err), TP_OK);
    cr_assert_eq(new, old + 1);
    cr_assert_eq(ckpt_commit(&t, &m, &err), TP_E_STALE);
    ckpt_abort(&t);
    cr_assert_eq(count_entries(false), 0);
}

Test(commit, leftovers_of_the_dead_go_and_those_of_the_living_stay)
{
    struct ckpt_txn alive;
    struct tp_err err = { 0 };
    char dead[PATH_MAX];

    cr_assert_eq(ckpt_begin(&alive, root, 9, 0, false, &err), TP_OK);
    snprintf(dead, sizeof dead, "%s/step-00000009.tmp-0123", root);
    cr_assert_eq(mkdir(dead, 0777), 0);
    cr_assert_eq(save(9, 1, false, &err), TP_OK, "%s", err.msg);
    cr_assert_not(file_exists(dead));
    cr_assert(file_is_dir(alive.tmp));
    ckpt_abort(&alive);
}

Test(commit, of_two_writers_one_wins, .timeout = 120)
{
    for (int round = 0; round < 60; round++) {
        struct tp_err err = { 0 };
        int wins = 0, exists = 0;
        pid_t child[4];

        for (int i = 0; i < 4; i++)
            if ((child[i] = fork()) == 0) {
                tp_status st = save(1, (uint64_t)i + 1, false, &err);

                _exit(st == TP_OK ? 0 : st == TP_E_EXISTS ? 1 : 2);
            }
        for (int i = 0; i < 4; i++) {
            int status;

            waitpid(child[i], &status, 0);
            wins += WIFEXITED(status) && WEXITSTATUS(status) == 0;
            exists += WIFEXITED(status) && WEXITSTATUS(status) == 1;
        }
        cr_assert_eq(wins, 1);
        cr_assert_eq(exists, 3);
        cr_assert_eq(count_entries(false), 1);
        seed_of(root, 1);
        file_remove_tree(root, &err);
    }
}

Test(commit, a_reader_sees_the_old_or_the_new_while_a_step_is_replaced, .timeout = 120)
{
    struct tp_err err = { 0 };
    uint64_t last = 0;
    int status;
    pid_t child;

    cr_assert_eq(save(1, 1, false, &err), TP_OK);
    if ((child = fork()) == 0) {
        for (uint64_t seed = 2; seed <= 60; seed++)
            if (save(1, seed, true, &err))
                _exit(1);
        _exit(0);
    }
    while (waitpid(child, &status, WNOHANG) == 0) {
        struct arena arena = { 0 };
        struct manifest m;
        char dir[PATH_MAX];

        /* the directory may be exchanged between two looks into it, never be half there */
        if (ckpt_open(dir, &m, root, 1, &arena, &err) == TP_OK) {
            cr_assert_geq(m.state.seed, last);
            last = m.state.seed;
        } else {
            cr_assert_eq(err.status, TP_E_CORRUPT, "%s", err.msg);
        }
        arena_free(&arena);
    }
    cr_assert(WIFEXITED(status) && WEXITSTATUS(status) == 0);
    cr_assert_eq(seed_of(root, 1), 60);
}

Test(commit, a_damaged_newest_step_is_passed_over_and_said)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct manifest m;
    char dir[PATH_MAX], path[PATH_MAX];

    cr_assert_eq(save(10, 1, false, &err), TP_OK);
    cr_assert_eq(save(20, 2, false, &err), TP_OK);
    snprintf(path, sizeof path, "%s/step-00000020/manifest.json", root);
    cr_assert_eq(truncate(path, 100), 0);
    err = (struct tp_err){ 0 };
    cr_assert_eq(ckpt_open(dir, &m, root, -1, &arena, &err), TP_OK);
    cr_assert_eq(m.step, 10);
    cr_assert(strstr(err.msg, "step-00000020") && strstr(err.msg, "step-00000010"), "%s", err.msg);
    cr_assert_eq(ckpt_open(dir, &m, root, 20, &arena, &err), TP_E_CORRUPT);
    cr_assert_eq(count_entries(true), 1);
    arena_free(&arena);
}

Test(commit, folders_that_are_no_checkpoint_are_refused_and_unchanged)
{
    struct arena arena = { 0 };
    struct tp_err err = { 0 };
    struct manifest m;
    char dir[PATH_MAX];

    cr_assert_eq(ckpt_open(dir, &m, "ckpt", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(dir, &m, "/nonexistent", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(dir, &m, "Makefile", -1, &arena, &err), TP_E_NOTFOUND);
    cr_assert_eq(ckpt_open(dir, &m, "", -1, &arena, &err), TP_E_USAGE);
    cr_assert_eq(ckpt_prune(top, 1, 0, false, NULL, NULL, &err), TP_E_NOTFOUND);
    cr_assert_not(file_exists(root));
    arena_free(&arena);
}

Test(commit, prune_keeps_the_newest_and_the_divisible)
{
    struct tp_err err = { 0 };
    char dir[PATH_MAX];

    for (int64_t step = 10; step <= 70; step += 10)
        cr_assert_eq(save(step, 1, false, &err), TP_OK);
    cr_assert_eq(ckpt_prune(root, 2, 30, true, NULL, NULL, &err), TP_OK);
    cr_assert_eq(count_entries(false), 7);
    cr_assert_eq(ckpt_prune(root, 2, 30, false, NULL, NULL, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(count_entries(false), 3);
    for (int64_t step = 10; step <= 70; step += 10)
        cr_assert_eq(ckpt_locate(dir, root, step, &err),
                     step == 30 || step == 60 || step == 70 ? TP_OK : TP_E_NOTFOUND);
}
