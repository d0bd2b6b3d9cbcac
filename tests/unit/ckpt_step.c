/* tests/unit/ckpt_step.c - the names of steps, and what makes a step complete. */
#include "ckpt/step.h"

#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "tests/unit/temp_dir.h"
#include "tests/unit/tiny_ckpt.h"

TestSuite(step, .init = temp_dir_make, .fini = temp_dir_remove);

Test(step, each_step_has_exactly_one_name)
{
    static const struct {
        const char *name;
        enum step_kind kind;
        int64_t step;
    } cases[] = {
        { "step-00000000", STEP_DIR, 0 },
        { "step-00000500", STEP_DIR, 500 },
        { "step-99999999", STEP_DIR, 99999999 },
        { "step-100000000", STEP_DIR, 100000000 },
        { "step-9223372036854775807", STEP_DIR, INT64_MAX },
        { "step-00000500.tmp-0123456789abcdef", STEP_TMP, 500 },
        { "step-00000500.tmp-", STEP_TMP, 500 },
        { "step-3", STEP_NONE, 0 },
        { "step-0000000003", STEP_NONE, 0 },
        { "step-9223372036854775808", STEP_NONE, 0 },
        { "step--0000001", STEP_NONE, 0 },
        { "step-+0000001", STEP_NONE, 0 },
        { "step- 0000001", STEP_NONE, 0 },
        { "step-00000500.old", STEP_NONE, 0 },
        { "step-00000500x", STEP_NONE, 0 },
        { "step-", STEP_NONE, 0 },
        { "Step-00000500", STEP_NONE, 0 },
        { "latest", STEP_NONE, 0 },
        { "", STEP_NONE, 0 },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char name[STEP_NAME_MAX];
        int64_t step = -1;

        cr_expect_eq(step_parse_name(&step, cases[i].name), cases[i].kind, "%s", cases[i].name);
        if (cases[i].kind != STEP_NONE)
            cr_expect_eq(step, cases[i].step, "%s", cases[i].name);
        if (cases[i].kind == STEP_DIR)
            cr_expect_str_eq(step_name(name, step), cases[i].name);
    }
}

Test(step, a_scan_lists_steps_in_order_and_ignores_other_names)
{
    static const char *const names[] = { "step-00000020", "step-100000000",         "step-00000003",
                                         "latest",        "step-00000003.tmp-abcd", "step-4" };
    static const char *const expected[] = { "step-00000003", "step-00000003.tmp-abcd",
                                            "step-00000020", "step-100000000" };
    struct ckpt_step *steps = NULL;
    struct tp_err err = { 0 };
    int n = -1;

    cr_assert_eq(step_scan(&steps, &n, temp_dir, &err), TP_OK);
    cr_assert_eq(n, 0);
    free(steps);
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        cr_assert_eq(mkdir(temp_path(names[i]), 0777), 0);
    cr_assert_eq(step_scan(&steps, &n, temp_dir, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(n, 4);
    for (int i = 0; i < n; i++)
        cr_expect_str_eq(steps[i].name, expected[i]);
    free(steps);
    cr_expect_eq(step_scan(&steps, &n, temp_path("none"), &err), TP_E_NOTFOUND);
}

static tp_status load(const char *name, struct tp_err *err)
{
    struct arena arena = { 0 };
    struct manifest m;
    tp_status st = step_load(&m, temp_path(name), &arena, err);

    arena_free(&arena);
    return st;
}

Test(step, is_complete_only_with_every_shard_at_its_full_length)
{
    const char *shard = temp_path("step-00000004/rank-00001.h5"), *moved = temp_path("moved");
    struct tp_err err = { 0 };
    struct stat sb;

    tiny_ckpt(temp_dir, "tp2", 4, 1, DTYPE_F32);
    cr_assert_eq(load("step-00000004", &err), TP_OK, "%s", err.msg);
    cr_assert_eq(stat(shard, &sb), 0);
    cr_assert_eq(truncate(shard, sb.st_size + 1), 0);
    cr_expect_eq(load("step-00000004", &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, shard), "%s", err.msg);
    cr_assert_eq(truncate(shard, sb.st_size), 0);
    cr_expect_eq(load("step-00000004", &err), TP_OK, "%s", err.msg);
    cr_assert_eq(rename(shard, moved), 0);
    cr_expect_eq(load("step-00000004", &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "rank 1 is missing"), "%s", err.msg);
    cr_assert_eq(symlink(moved, shard), 0);
    cr_expect_eq(load("step-00000004", &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "not a regular file"), "%s", err.msg);
}

Test(step, a_directory_with_the_name_of_another_step_is_refused)
{
    struct tp_err err = { 0 };

    tiny_ckpt(temp_dir, "tp1", 4, 1, DTYPE_F32);
    cr_assert_eq(rename(temp_path("step-00000004"), temp_path("step-00000005")), 0);
    cr_expect_eq(load("step-00000005", &err), TP_E_CORRUPT);
    cr_expect(strstr(err.msg, "manifest of step 4"), "%s", err.msg);
    cr_assert_eq(rename(temp_path("step-00000005"), temp_path("my-checkpoint")), 0);
    cr_expect_eq(load("my-checkpoint", &err), TP_OK, "any other name is fine: %s", err.msg);
    cr_assert_eq(unlink(temp_path("my-checkpoint/manifest.json")), 0);
    cr_expect_eq(load("my-checkpoint", &err), TP_E_NOTFOUND);
}

Test(step, a_step_that_another_program_removed_or_replaced_is_not_called_damaged)
{
    const char *dir = temp_path("step-00000004");
    struct arena arena = { 0 };
    struct shard_reader *r = NULL;
    struct manifest m;
    struct tp_err err = { 0 };

    tiny_ckpt(temp_dir, "tp2", 4, 1, DTYPE_F32);
    cr_assert_eq(step_load(&m, dir, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(rename(dir, temp_path("old")), 0); /* as prune does, between manifest and shards */
    cr_expect_eq(ckpt_open_shard(&r, dir, &m, 0, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "removed by another program") && strstr(err.msg, dir), "%s", err.msg);
    tiny_ckpt(temp_dir, "tp1", 4, 1, DTYPE_F32);
    cr_expect_eq(ckpt_open_shard(&r, dir, &m, 0, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "replaced by another program"), "%s", err.msg);

    /* damage is still called damage */
    cr_assert_eq(step_load(&m, dir, &arena, &err), TP_OK, "%s", err.msg);
    cr_assert_eq(unlink(temp_path("step-00000004/rank-00000.h5")), 0);
    cr_expect_neq(ckpt_open_shard(&r, dir, &m, 0, &err), TP_E_IO);
    cr_expect(strstr(err.msg, "rank-00000.h5"), "%s", err.msg);
    arena_free(&arena);
}
