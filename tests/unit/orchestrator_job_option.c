/* tests/unit/orchestrator_job_option.c - the options that the job's command sets. */
#include "orchestrator/backends.h"
#include "orchestrator/job/job_file.h"
#include "orchestrator/job/job_option.h"

#include <criterion/criterion.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static struct arena arena;
static struct tp_err err;

static tp_status parse(struct job *j, const char *text)
{
    return job_file_parse(j, text, strlen(text), "/tmp/x.yaml", backends_job(), &arena, &err);
}

/* A job file with this command, and what follows it, is refused with this sentence. */
static void assert_refused(const char *before, const char *const wrong[2], const char *after)
{
    struct job j;
    char text[256];

    snprintf(text, sizeof text, "command: tp-train %s%s%s", before, wrong[0], after);
    err = (struct tp_err){ 0 };
    cr_assert_eq(parse(&j, text), TP_E_USAGE, "%s", text);
    cr_expect(strstr(err.msg, wrong[1]), "%s", err.msg);
}

/* tp-train's options are read as getopt_long does; another program's only in their full form. */
Test(job_option, options_of_the_command_are_read_as_tp_train_reads_them)
{
    static const char *const models[] = { "--model m",      "--model=m",
                                          "-m m",           "-mm",
                                          "-qm m",          "-qmm",
                                          "--mod m",        "--mo=m",
                                          "--model x -m m", "-m x -n 5 --model m",
                                          "-n 5 -t 2 -m m" };
    struct job j;
    char text[128];

    for (size_t i = 0; i < sizeof models / sizeof models[0]; i++) {
        snprintf(text, sizeof text, "command: tp-train %s --steps 9\nckpt: c\n", models[i]);
        cr_assert_eq(parse(&j, text), TP_OK, "%s", err.msg);
        cr_assert_str_eq(j.layouts.model, "/tmp/m", "%s", models[i]);
        cr_assert_eq(j.steps, 9, "%s", models[i]);
        cr_assert_eq(j.layouts.n_allow, 0);
    }
    cr_assert_eq(parse(&j, "command: [my, -m, x, --mod, y, --models, z]\nckpt: c\n"), TP_OK);
    cr_expect_null(job_option(&j, "--model"));
}

Test(job_option, what_the_command_fixes_is_not_changed)
{
    static const char *const wrong[][2] = {
        { "-l tp2\nckpt: c\nlayouts: {allow: [tp1, tp4]}\n", "layouts.allow" },
        { "-l tpx\nckpt: c\n", "--layout in the command" },
        { "--batch 8\nckpt: c\nlayouts: {batch: 16}\n",
          "layouts.batch is 16, but the command has --batch 8; write --batch 16 there" },
        { "\nckpt: c\nlayouts: {batch: 16}\n", "the command has no --batch; write --batch 16" },
        { "\nckpt: c\nlayouts: {micro: 2}\n", "the command has no --micro; write --micro 2" },
        { "--seq=32\nckpt: c\nlayouts: {seq: 64}\n", "the command has --seq 32; write --seq 64" },
        { "\nckpt: c\nlayouts: {dtype: bf16}\n", "the command has no --dtype; write --dtype bf16" },
        { "--dtype bf16\nckpt: c\nlayouts: {dtype: fp32}\n", "the command has --dtype bf16" },
        { "--ckpt other\nckpt: c\n", "--ckpt other" },
        { "--ckpt s3://b/other\nckpt: s3://b/c/\n", "--ckpt s3://b/other" },
        { "--steps 60\nckpt: c\nsteps: 100\n", "--steps 60, but steps is 100" },
    };
    struct job j;

    cr_assert_eq(parse(&j, "command: tp-train -l pp2tp2 --ckpt ./c\nckpt: c\n"), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(j.layouts.n_allow, 1);
    cr_expect(j.layouts.allow[0].tp == 2 && j.layouts.allow[0].pp == 2);
    cr_assert_eq(
        parse(&j, "command: tp-train --layout tp2\nckpt: c\nlayouts: {allow: [tp4, tp2]}\n"), TP_OK,
        "%s", err.msg);
    cr_expect(j.layouts.n_allow == 1 && j.layouts.allow[0].tp == 2);
    cr_assert_eq(parse(&j, "command: tp-train --layout {layout} --ckpt {ckpt}\nckpt: c\n"), TP_OK);
    cr_expect_eq(j.layouts.n_allow, 0);
    cr_assert_eq(parse(&j, "command: tp-train --steps 60\nckpt: c\nsteps: 60\n"), TP_OK, "%s",
                 err.msg);
    cr_assert_eq(parse(&j, "command: tp-train --ckpt s3://b/c//\nckpt: s3://b/c/\n"), TP_OK, "%s",
                 err.msg);
    cr_expect_str_eq(j.ckpt, "s3://b/c");
    cr_assert_eq(parse(&j, "command: tp-train --batch 16 --micro {ranks}\nckpt: c\n"
                           "layouts: {batch: 16, micro: 2, seq: 64, dtype: fp32}\n"),
                 TP_OK, "%s", err.msg);
    cr_assert_eq(parse(&j, "command: my --batch 8\nckpt: c\nlayouts: {batch: 16}\n"), TP_OK, "%s",
                 err.msg);
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_refused("", wrong[i], "");
}

/* tp-run adds the command to every attempt, so it may not choose how a run begins. */
Test(job_option, a_choice_for_one_start_is_refused)
{
    static const char *const wrong[][2] = { { "--step 4", "--step" },
                                            { "--step=4", "--step" },
                                            { "--reset-optim", "--reset-optim" } };
    struct job j;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_refused("-m m ", wrong[i], " --steps 9\nckpt: c\n");
    cr_assert_eq(parse(&j, "command: tp-train -m m --steps=9\nckpt: c\n"), TP_OK, "%s", err.msg);
    cr_assert_eq(parse(&j, "command: my --step 4 --reset-optim\nckpt: c\n"), TP_OK, "%s", err.msg);
}

Test(job_option, an_option_that_tp_train_does_not_have_is_refused)
{
    static const char *const wrong[][2] = {
        { "-m m --save-evry 4", "command: tp-train: unknown option '--save-evry'; did you mean "
                                "--save-every?" },
        { "-m m --stps=9", "unknown option '--stps=9'; did you mean --steps?" },
        { "-m m -x 3", "unknown option '-x'" },
        { "-m m --reset-optim=1", "takes no value" },
        { "m --steps 3", "unexpected argument 'm'" },
        { "-m m --steps", "'--steps' needs a value" },
        { "-m m --data --steps 3", "--data needs a value, but '--steps' follows" },
    };
    struct job j;

    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; i++)
        assert_refused("", wrong[i], "\nckpt: c\n");
    cr_assert_eq(parse(&j, "command: tp-train -m m --data=--stps --ckpt-zstd --resume=auto -qt2\n"
                           "ckpt: c\nsteps: 9\n"),
                 TP_OK, "%s", err.msg);
    cr_expect_str_eq(j.command.word[3], "--data=--stps", "the order of the words stays");
    cr_assert_eq(parse(&j, "command: my --stps 4 x\nckpt: c\n"), TP_OK, "%s", err.msg);
}
